/** Small pieces of the page. Text becomes text nodes: nothing a server sends is ever read as markup. */

type Child = Node | string;

export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, string>>,
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const out = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== "" || key === "value") out.setAttribute(key, value);
  out.append(...children);
  return out;
}

export function show(place: HTMLElement, ...children: Child[]): void {
  place.replaceChildren(...children);
  place.hidden = false;
}

/** A number with four digits that count. */
export function number(value: number): string {
  return String(Number(value.toPrecision(4)));
}

export function bytes(count: number): string {
  return count < 1e6 ? `${number(Math.round(count / 100) / 10)} kB` : `${number(Math.round(count / 1e4) / 100)} MB`;
}

/** The scores as bars from the smallest one up; the decided class is marked by colour and by its place in the text. */
export function bars(labels: readonly string[], values: ArrayLike<number>, decision: number): HTMLElement {
  const scores = Array.from(values);
  const low = Math.min(0, ...scores);
  const span = Math.max(...scores.map(Math.abs), ...scores.map((score) => score - low)) || 1;
  const cells = scores.flatMap((score, k) => {
    const fill = element("i", {});
    fill.style.width = `${(100 * (score - low)) / span}%`;
    return [
      element("span", {}, labels[k]!),
      element("span", { class: k === decision ? "track best" : "track", "aria-hidden": "true" }, fill),
      element("span", {}, number(score)),
    ];
  });
  return element("div", { class: "bars", role: "group", "aria-label": "Scores" }, ...cells);
}
