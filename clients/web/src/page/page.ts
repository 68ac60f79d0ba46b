/** The page: a form made from the plan, the way of a question to the server and back, and what left the computer. */
import type { Answer } from "../client.ts";
import { readTable } from "../csv.ts";
import { messageOf, TokenError } from "../errors.ts";
import { type Connection, connect, featureName, refuseOutside } from "../index.ts";
import type { Plan } from "../plan.ts";
import { checked } from "../samples.ts";
import type { KeyOrigin } from "../worker.ts";
import { showAnswers } from "./answers.ts";
import { Keeper } from "./keeper.ts";
import { findPlace } from "./place.ts";
import { bytes, element, number, show } from "./view.ts";

const CLIPPED_IS_HERE = "for the answer to values moved to its edge, tick the box and press the button, and nothing more is sent";

const $ = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const place = findPlace();
const keeper = new Keeper(place.worker, place.wasm, place.storage);
let server: Connection | undefined;
let token: string | undefined;
let replyBytes = 0;
/** The hash of the plan that the form was made from. */
let shown = "";
/** A question that was answered, but whose answer was not shown, because a sample lay outside the server's box. */
let unread: { readonly rows: readonly Float64Array[]; readonly exchange: Exchange } | undefined;

/** What was sent and received for one question; the replies are not read yet. */
interface Exchange {
  readonly replies: readonly { id: string; reply: ArrayBuffer }[];
  readonly up: number;
  readonly down: number;
  readonly glimpse: Uint8Array;
  readonly seconds: number;
}

/** Connect for so many questions, and make a key for the plan. */
async function open(questions: number): Promise<void> {
  const model = server?.plan.modelId ?? place.model; // what the form is for
  server = await connect({ ...place, model, token, questions });
  unread = undefined; // its key ends
  const started = await keeper.start(server.plan);
  replyBytes = started.replyBytes;
  const box = $<HTMLInputElement>("keep");
  if (started.origin === "kept") box.checked = true;
  else if (box.checked) await keeper.keep();
  keyStatus(started.origin);
  if (started.keys !== null) await server.register(started.keys);
}

async function start(entered?: string): Promise<void> {
  hideProblem();
  token = entered;
  const button = $<HTMLButtonElement>("connect");
  button.disabled = true; // a second start beside the first would make a second worker
  try {
    await open(1);
  } catch (error) {
    $("status").textContent = "";
    if (!(error instanceof TokenError) || token !== undefined) problem(error);
    if (error instanceof TokenError) askForToken();
    return;
  } finally {
    button.disabled = false;
  }
  $("access").hidden = true;
  if (server!.plan.sha256 !== shown) form(server!.plan);
  shown = server!.plan.sha256;
  $("keeping").hidden = !place.storage;
  document.documentElement.dataset["ready"] = "yes";
}

function keyStatus(origin: KeyOrigin): void {
  const made = origin === "replaced" ? "The kept key can't be read, so a new one was made" : "A key was made in this tab";
  const box = $<HTMLInputElement>("keep");
  const words = box.checked ? "The key is kept in this browser until you untick the box below" : `${made}; it ends when you close it`;
  $("status").textContent = `Ready. ${words}.`;
}

function askForToken(): void {
  $("access").hidden = false;
  $("token").focus();
}

function form(plan: Plan): void {
  $("columns").textContent = String(plan.features);
  $<HTMLInputElement>("clip").checked = plan.clip;
  const fields = Array.from({ length: plan.features }, (_, i) => {
    const [low, high] = [plan.low[i]!, plan.high[i]!];
    const input = element("input", {
      id: `value-${i}`, type: "text", inputmode: "decimal", autocomplete: "off", value: String(middle(low, high)),
      "aria-describedby": `range-${i}`,
    });
    const range = element("small", { id: `range-${i}` }, `${number(low)} to ${number(high)}`);
    return element("div", {}, element("label", { for: `value-${i}` }, featureName(plan, i)), input, range);
  });
  $("fields").replaceChildren(...fields);
  $("question").hidden = false;
}

/** A short number near the middle of a range. */
function middle(low: number, high: number): number {
  const rounded = Number(((low + high) / 2).toPrecision(3));
  return rounded >= low && rounded <= high ? rounded : (low + high) / 2;
}

function typed(plan: Plan): Float64Array[] {
  const row = Float64Array.from({ length: plan.features }, (_, i) => {
    const input = $<HTMLInputElement>(`value-${i}`);
    // Firefox keeps only 15 digits in valueAsNumber, so the text is read.
    const value = input.value.trim() === "" ? Number.NaN : Number(input.value);
    input.setAttribute("aria-invalid", String(!(value >= plan.low[i]! && value <= plan.high[i]!)));
    return value;
  });
  return [row];
}

async function ask(): Promise<void> {
  const text = $<HTMLTextAreaElement>("csv").value;
  const asked = server!.plan;
  const rows = checked(text.trim() === "" ? typed(asked) : readTable(text, asked), asked) as Float64Array[];
  if (server!.wantsOther(rows.length)) await open(rows.length); // with a fresh key
  const { plan } = server!;
  const clip = $<HTMLInputElement>("clip").checked;
  if (server!.pinned && !clip) refuseOutside(rows, server!);
  // Asking again, now with clipping, would tell the server that a sample lies outside the box it chose.
  const before = clip && unread !== undefined && same(unread.rows, rows) ? unread.exchange : undefined;
  const exchange = before ?? (await sendAll(rows, plan));
  unread = clip ? undefined : { rows, exchange };
  if (!clip) refuseOutside(rows, server!, `${CLIPPED_IS_HERE}; it learns it if you correct the value and ask again`);
  unread = undefined;
  const answers: Answer[] = [];
  for (const { id, reply } of exchange.replies) answers.push(...(await keeper.decide(reply, id)));
  showAnswers($("answer"), answers, plan);
  traffic(rows, exchange);
}

function same(a: readonly Float64Array[], b: readonly Float64Array[]): boolean {
  return a.length === b.length && a.every((row, n) => row.every((value, i) => value === b[n]![i]));
}

async function sendAll(rows: readonly Float64Array[], plan: Plan): Promise<Exchange> {
  const started = performance.now();
  const replies: { id: string; reply: ArrayBuffer }[] = [];
  let [up, down, glimpse] = [0, 0, new Uint8Array()];
  progress(0, rows.length);
  // Everything is sent before anything is judged: an error must not tell the server what a reply decrypted to.
  for (let first = 0; first < rows.length; first += plan.perRequest) {
    const request = await keeper.encrypt(rows.slice(first, first + plan.perRequest));
    up += request.body.length;
    if (glimpse.length === 0) glimpse = request.body.slice(132, 132 + 48);
    const reply = await server!.send(request, replyBytes);
    down += reply.byteLength;
    replies.push({ id: request.id, reply });
    progress(Math.min(first + plan.perRequest, rows.length), rows.length);
  }
  return { replies, up, down, glimpse, seconds: (performance.now() - started) / 1000 };
}

function traffic(rows: readonly Float64Array[], sent: Exchange): void {
  const values = Array.from(rows[0]!.slice(0, 12), number).join(", ");
  const more = rows.length * rows[0]!.length > 12 ? ", …" : "";
  show($("stayed"), element("p", {}, element("code", {}, values + more)), element("p", {}, "The values, the key, and the decrypted scores."));
  const hex = Array.from(sent.glimpse, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  show(
    $("left"),
    element("p", {}, element("code", {}, `${hex} …`)),
    element("p", {}, `${bytes(sent.up)} of ciphertext sent, ${bytes(sent.down)} received, in ${number(sent.seconds)} s.`),
  );
  $("traffic").hidden = false;
}

function progress(done: number, total: number): void {
  const bar = $<HTMLProgressElement>("progress");
  bar.hidden = total <= 1;
  [bar.max, bar.value] = [total, done];
}

function problem(error: unknown): void {
  const text = messageOf(error);
  $("problem").textContent = text.charAt(0).toUpperCase() + text.slice(1) + ".";
  $("problem").hidden = false;
}

function hideProblem(): void {
  $("problem").hidden = true;
}

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  void start($<HTMLInputElement>("token").value.trim());
});

$("question").addEventListener("submit", async (event) => {
  event.preventDefault();
  hideProblem();
  $("answer").hidden = $("traffic").hidden = true;
  const button = $<HTMLButtonElement>("ask");
  button.disabled = true;
  try {
    await ask();
  } catch (error) {
    problem(error);
    if (error instanceof TokenError) askForToken();
  } finally {
    button.disabled = false;
    $("progress").hidden = true;
  }
});

$<HTMLInputElement>("keep").addEventListener("change", async (event) => {
  const box = event.target as HTMLInputElement;
  hideProblem();
  box.disabled = true;
  try {
    await (box.checked ? keeper.keep() : keeper.forget());
  } catch (error) {
    box.checked = false;
    problem(error);
  } finally {
    box.disabled = false;
  }
  keyStatus("made");
});

$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset["theme"] ?? (dark ? "dark" : "light");
  document.documentElement.dataset["theme"] = now === "dark" ? "light" : "dark";
  $("theme").textContent = now === "dark" ? "Dark" : "Light";
});

const area = $<HTMLTextAreaElement>("csv");
$<HTMLInputElement>("file").addEventListener("change", async (event) => {
  const file = (event.target as HTMLInputElement).files?.[0];
  if (file !== undefined) area.value = await file.text();
});
area.addEventListener("dragover", (event) => {
  event.preventDefault();
  area.classList.add("over");
});
area.addEventListener("dragleave", () => area.classList.remove("over"));
area.addEventListener("drop", async (event) => {
  event.preventDefault();
  area.classList.remove("over");
  const file = event.dataTransfer?.files[0];
  area.value = file === undefined ? (event.dataTransfer?.getData("text") ?? "") : await file.text();
});

void start();
