/** What answers look like: one decision in words and bars, many as a table with a download. */
import type { Answer } from "../client.ts";
import { writeTable } from "../csv.ts";
import type { Plan } from "../plan.ts";
import { bars, element, number, show } from "./view.ts";

const SHOWN = 200; // rows of the result table; the download has all

export function showAnswers(place: HTMLElement, answers: readonly Answer[], plan: Plan): void {
  if (answers.length === 1) one(place, answers[0]!, plan);
  else many(place, answers, plan);
}

function className(plan: Plan, decision: number): string {
  return plan.classNames?.[decision] ?? `class ${decision}`;
}

function one(place: HTMLElement, answer: Answer, plan: Plan): void {
  const { decision, logits } = answer;
  const verdict = element("p", { class: "verdict", id: "verdict" }, `The answer is ${className(plan, decision)}.`);
  const shown = logits.length === 1 ? single(logits[0]!, plan) : bars(Array.from(logits, (_, k) => className(plan, k)), logits, decision);
  show(place, verdict, ...trust(answer, plan), shown);
}

/** A model with one output decides by its sign, so a bar would have nothing to compare it with. */
function single(score: number, plan: Plan): HTMLElement {
  return element("p", {}, `Score: ${number(score)}. A positive score means ${className(plan, 1)}, any other ${className(plan, 0)}.`);
}

function trust({ margin, certain, reliable }: Answer, plan: Plan): HTMLElement[] {
  const text = certain
    ? `Its margin of ${number(margin)} is larger than anything encryption can change (${number(plan.error)}).`
    : `Its margin of ${number(margin)} is smaller than what encryption can change (${number(plan.error)}): do not rely on it.`;
  const out = [element("p", { class: certain ? "" : "lost" }, text)];
  if (reliable !== null) {
    const promise = reliable
      ? `Reliable: at least ${number(100 * plan.reliable!.level)}% of such decisions are the original model's.`
      : "Not among the decisions the model's owner calls reliable.";
    out.push(element("p", { class: reliable ? "good" : "lost" }, promise));
  }
  return out;
}

type Row = (string | number)[];

function many(place: HTMLElement, answers: readonly Answer[], plan: Plan): void {
  const rows = answers.map((answer, n): Row => [n + 1, className(plan, answer.decision), ...judged(answer)]);
  const header = ["sample", "decision", ...["margin", "certain", "reliable"].slice(0, rows[0]!.length - 2)];
  const outputs = answers[0]!.logits.length;
  const names = outputs === 1 ? ["score"] : Array.from({ length: outputs }, (_, k) => `score of ${className(plan, k)}`);
  const file = writeTable([...header, ...names], rows.map((row, n) => [...row, ...answers[n]!.logits]));
  const link = element("a", { href: URL.createObjectURL(new Blob([file], { type: "text/csv" })), download: "answers.csv" }, "Download all as CSV");
  const body = rows.slice(0, SHOWN).map((row) =>
    element("tr", {}, ...row.map((cell) => element("td", {}, typeof cell === "number" ? number(cell) : cell))),
  );
  show(
    place,
    element("p", { class: "verdict", id: "verdict" }, `${answers.length} answers. ${summary(rows)}.`),
    element("p", {}, link, rows.length > SHOWN ? ` The first ${SHOWN} are shown.` : ""),
    element(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Answers" },
      element("table", {}, element("thead", {}, element("tr", {}, ...header.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...body)),
    ),
  );
}

/** The margin, whether it is certain, and, where the plan says so, reliable. */
function judged({ margin, certain, reliable }: Answer): Row {
  const word = (yes: boolean) => (yes ? "yes" : "no");
  return [margin, word(certain), ...(reliable === null ? [] : [word(reliable)])];
}

function summary(rows: readonly Row[]): string {
  const counts = new Map<Row[number], number>();
  for (const row of rows) counts.set(row[1]!, (counts.get(row[1]!) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([name, count]) => `${name}: ${count}`).join(", ");
}
