/** The page: a form made from the plan, the way of a question to the server and back, and what left the computer. */
import type { Answer } from "../client.ts";
import { type Cells, readCells } from "../csv.ts";
import { AskError, messageOf, TokenError } from "../errors.ts";
import { asPromised, type Connection, connect, refuseOutside } from "../index.ts";
import { HEADER_BYTES } from "../message.ts";
import type { Plan } from "../plan.ts";
import { checked } from "../samples.ts";
import { SEED_BYTES } from "../seeds.ts";
import { showAnswers } from "./answers.ts";
import { type Inputs, inputsOf } from "./inputs.ts";
import { Keeper } from "./keeper.ts";
import { findPlace } from "./place.ts";
import { bytes, element, number, show } from "./view.ts";

const CLIPPED_IS_HERE = "To see the answer for values moved to the edge, tick the box and press the button; nothing more is sent";

const CIPHERTEXT = HEADER_BYTES + SEED_BYTES; // where the first one of a request begins

const MOST_FIELDS = 200; // an image has more values than anybody types

const $ = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const place = findPlace();
const keeper = new Keeper(place.worker, place.wasm);
let server: Connection | undefined;
let inputs: Inputs | undefined;
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

/** Connect for so many questions, and prepare the worker for the plan. */
async function open(questions: number): Promise<void> {
  const model = server?.plan.modelId ?? place.model; // what the form is for
  server = await connect({ ...place, model, token, questions });
  unread = undefined; // its keys end
  replyBytes = await keeper.start(server.plan);
}

async function start(entered?: string): Promise<void> {
  hideProblem();
  token = entered;
  const button = $<HTMLButtonElement>("connect");
  button.disabled = true; // a second start beside the first would make a second worker
  try {
    await open(1);
    if (server!.plan.sha256 !== shown) {
      if (server!.plan.featurePart !== null) $("status").textContent = "Loading the part of the model that runs on this computer…";
      inputs = await inputsOf(server!, place);
      form(inputs, server!.plan);
    }
    shown = server!.plan.sha256;
  } catch (error) {
    $("status").textContent = "";
    if (!(error instanceof TokenError) || token !== undefined) problem(error);
    if (error instanceof TokenError) askForToken();
    return;
  } finally {
    button.disabled = false;
  }
  $("access").hidden = true;
  $("status").textContent = "Ready. Every request is encrypted with a key of its own, which ends with its answer.";
  document.documentElement.dataset["ready"] = "yes";
}

function askForToken(): void {
  $("access").hidden = false;
  $("token").focus();
}

function form({ columns, fields }: Inputs, plan: Plan): void {
  $("columns").textContent = columns.count === 1 ? "one value" : `${columns.count} values`;
  $<HTMLInputElement>("clip").checked = plan.clip;
  const many = fields.length > MOST_FIELDS;
  $("values").hidden = many;
  $<HTMLDetailsElement>("table").open = many;
  const made = many ? [] : fields.map(({ label, range }, i) => {
    const value = range === null ? "" : String(middle(...range));
    const input = element("input", { id: `value-${i}`, type: "text", inputmode: columns.text ? "" : "decimal", autocomplete: "off", value });
    if (range === null) return element("div", {}, element("label", { for: `value-${i}` }, label), input);
    input.setAttribute("aria-describedby", `range-${i}`);
    const words = element("small", { id: `range-${i}` }, range.map(number).join(" to "));
    return element("div", {}, element("label", { for: `value-${i}` }, label), input, words);
  });
  $("fields").replaceChildren(...made);
  $("question").hidden = false;
}

/** A short number near the middle of a range. */
function middle(low: number, high: number): number {
  const rounded = Number(((low + high) / 2).toPrecision(3));
  return rounded >= low && rounded <= high ? rounded : (low + high) / 2;
}

/** What the form holds; values that are no numbers or lie outside their range are marked. */
function typed({ fields, columns }: Inputs): Cells {
  if (fields.length > MOST_FIELDS) throw new AskError(`paste a table: one sample per line, ${columns.count} values each`);
  const row = fields.map(({ range }, i) => {
    const input = $<HTMLInputElement>(`value-${i}`);
    const value = input.value.trim() === "" ? Number.NaN : Number(input.value);
    if (range !== null) input.setAttribute("aria-invalid", String(!(value >= range[0] && value <= range[1])));
    return input.value;
  });
  return { rows: [row], name: (_, i) => `sample 1: ${fields[i]!.label}` };
}

async function ask(): Promise<void> {
  const text = $<HTMLTextAreaElement>("csv").value;
  const cells = text.trim() === "" ? typed(inputs!) : readCells(text, inputs!.columns);
  const { featurePart } = server!.plan;
  const rows = checked(await inputs!.features(cells), server!.plan) as Float64Array[];
  if (server!.wantsOther(rows.length)) await open(rows.length);
  const { plan } = server!;
  if (plan.featurePart !== featurePart) throw new AskError("the server's plans name different feature parts; nothing was sent");
  const clip = $<HTMLInputElement>("clip").checked;
  if (server!.pinned && !clip) refuseOutside(rows, server!);
  // Asking again, now with clipping, would tell the server that a sample lies outside the box it chose.
  const before = clip && unread !== undefined && same(unread.rows, rows) ? unread.exchange : undefined;
  const exchange = before ?? (await sendAll(rows, plan));
  unread = clip ? undefined : { rows, exchange };
  if (!clip) refuseOutside(rows, server!, `${CLIPPED_IS_HERE}. The server learns that it lay outside if you correct the value and ask again`);
  unread = undefined;
  const answers: Answer[] = [];
  for (const { id, reply } of exchange.replies) answers.push(...(await keeper.decide(reply, id)));
  showAnswers($("answer"), asPromised(answers, rows, plan, clip), plan);
  traffic(cells, plan, exchange);
}

function same(a: readonly Float64Array[], b: readonly Float64Array[]): boolean {
  return a.length === b.length && a.every((row, n) => row.every((value, i) => value === b[n]![i]));
}

async function sendAll(rows: readonly Float64Array[], plan: Plan): Promise<Exchange> {
  const started = performance.now();
  const replies: { id: string; reply: ArrayBuffer }[] = [];
  let [up, down, glimpse] = [0, 0, new Uint8Array()];
  progress(0, rows.length);
  await keeper.forget(); // a question before this one may not have been read
  // Everything is sent before anything is judged: an error must not tell the server what a reply decrypted to.
  for (let first = 0; first < rows.length; first += plan.perRequest) {
    const request = await keeper.encrypt(rows.slice(first, first + plan.perRequest));
    up += request.body.length;
    if (glimpse.length === 0) glimpse = request.body.slice(CIPHERTEXT, CIPHERTEXT + 48);
    const reply = await server!.send(request, replyBytes);
    down += reply.byteLength;
    replies.push({ id: request.id, reply });
    progress(Math.min(first + plan.perRequest, rows.length), rows.length);
  }
  return { replies, up, down, glimpse, seconds: (performance.now() - started) / 1000 };
}

function traffic({ rows }: Cells, plan: Plan, sent: Exchange): void {
  const values = rows[0]!.slice(0, 12).join(", ");
  const more = rows.length * rows[0]!.length > 12 ? ", …" : "";
  const computed = plan.featurePart === null ? "" : " the features computed from them,";
  show($("stayed"), element("p", {}, element("code", {}, values + more)), element("p", {}, `The values,${computed} the keys, and what was decrypted.`));
  const hex = Array.from(sent.glimpse, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  show(
    $("left"),
    element("p", {}, element("code", {}, `${hex} …`)),
    element("p", {}, `${bytes(sent.up)} of ciphertext sent, ${bytes(sent.down)} received, in ${sent.seconds.toFixed(2)} s.`),
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

const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
if (prefersDark) $("theme").textContent = "Light"; // the button names what it changes to
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset["theme"] ?? (prefersDark ? "dark" : "light");
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
