/**
 * Ask a quad4fhe server about encrypted samples.
 *
 *     const seal = await startSeal(await (await fetch("seal_throws.wasm")).arrayBuffer());
 *     const server = await connect({ url: "https://example.org", token });
 *     const client = new Client(seal, server.plan);
 *     const request = await client.encrypt([[5.1, 3.5, 1.4, 0.2]]);
 *     const [answer] = await client.decide(await server.send(request, client.replyBytes), request.id);
 *
 * `ask` does the last two lines for any number of samples: it sends everything before it judges anything, so that the
 * server can't learn from an error what a reply decrypted to.
 */
import { type Answer, Client, type Request } from "./client.ts";
import { sha256, toHex } from "./message.ts";
import { AskError } from "./errors.ts";
import { checkGraph } from "./graph.ts";
import { getBytes, getJson, post, type Service } from "./http.ts";
import { layoutNames, preferred } from "./layouts.ts";
import { type Plan, readPlan } from "./plan.ts";
import { checked, outside } from "./samples.ts";

export type { Chain } from "./chain.ts";
export { type Answer, Client, type Request } from "./client.ts";
export { AskError, messageOf, TokenError } from "./errors.ts";
export { layoutNames } from "./layouts.ts";
export { type Plan, readPlan } from "./plan.ts";
export { featureName, outside } from "./samples.ts";
export { startSeal } from "./seal.ts";

export interface ConnectOptions extends Service {
  /** The model's id or the beginning of it; needed where a server has several. */
  readonly model?: string | undefined;
  /** A layout by name; by default the best that both sides speak for so many `questions`. */
  readonly layout?: string | undefined;
  readonly questions?: number | undefined;
  /** A plan from another source than the server, with its hash: from then on no other is used. */
  readonly pinned?: { readonly plan: unknown; readonly sha256: string } | undefined;
}

/** A server, one of its models, and the plan that every message keeps to. */
export interface Connection {
  readonly plan: Plan;
  /** Whether the plan came from the caller, not from the server. */
  readonly pinned: boolean;
  /** The model's feature part, an ONNX graph with the hash that the plan names, checked; for plans that have one. */
  featurePart(): Promise<Uint8Array<ArrayBuffer>>;
  /** Whether another layout would suit so many questions better. */
  wantsOther(questions: number): boolean;
  /** Send a request and return the bytes of its reply. */
  send(request: Request, most: number): Promise<ArrayBuffer>;
}

/** Fetch the plan of a model, or take the pinned one. */
export async function connect(options: ConnectOptions): Promise<Connection> {
  if (options.pinned !== undefined) {
    const plan = readPlan(options.pinned.plan, options.pinned.sha256);
    return connection(options, plan, true, []);
  }
  const models = modelsOf((await getJson(options, "models")).json);
  const fitting = models.filter((model) => model.id.startsWith(options.model ?? ""));
  if (fitting.length !== 1) {
    const had = models.map((model) => model.id.slice(0, 12)).join(", ");
    throw new AskError(`name one of the server's models (${had || "it has none"})`);
  }
  const { id, layouts } = fitting[0]!;
  const layout = options.layout ?? preferred(layouts, options.questions ?? 1);
  if (layout === undefined) throw new AskError(`the server offers ${layouts.join(", ")}; this client speaks ${layoutNames.join(", ")}`);
  const found = await getJson(options, `models/${id}/plan?layout=${encodeURIComponent(layout)}`);
  const plan = readPlan(found.json, found.headers.get("quad4fhe-plan") ?? "");
  if (plan.modelId !== id || plan.layout !== layout) {
    throw new AskError(`the server's plan is for model ${plan.modelId.slice(0, 12)} in layout ${plan.layout}, not for what was asked; nothing was sent`);
  }
  return connection(options, plan, false, options.layout === undefined ? layouts : []);
}

const LARGEST_PART = 2 ** 28; // bytes

interface Model {
  readonly id: string;
  readonly layouts: readonly string[];
}

function modelsOf(json: unknown): readonly Model[] {
  const found: unknown = (json as { models?: unknown } | null)?.models;
  const isModel = (each: Partial<Model> | null) => /^[0-9a-f]{64}$/.test(String(each?.id)) && Array.isArray(each?.layouts);
  if (!Array.isArray(found) || !found.every(isModel)) throw new AskError("this is not a quad4fhe server: it names its models in another way");
  return found;
}

function connection(service: Service, plan: Plan, pinned: boolean, offered: readonly string[]): Connection {
  const send = (request: Request, most: number) => post(service, `models/${plan.modelId}/evaluate`, request.body, most);
  const wantsOther = (questions: number) => offered.length > 0 && preferred(offered, questions) !== plan.layout;
  const featurePart = async () => {
    if (plan.featurePart === null) throw new AskError("the model has no feature part: its samples are encrypted as they are");
    const graph = new Uint8Array(await getBytes(service, `models/${plan.modelId}/features`, LARGEST_PART));
    if (toHex(await sha256(graph)) !== plan.featurePart) {
      throw new AskError("the server's feature part is not the one that the plan names; nothing was sent");
    }
    checkGraph(graph);
    return graph;
  };
  return { plan, pinned, featurePart, wantsOther, send };
}

const AGAIN_TELLS = "The server learns that it lay outside if you correct the value and ask again";

/**
 * Throw for samples outside the plan's box. Where the plan is the server's, call this after everything was sent; `then`
 * says what to do in that case.
 */
export function refuseOutside(rows: readonly ArrayLike<number>[], server: Connection, then = AGAIN_TELLS): void {
  const why = outside(rows, server.plan);
  if (why === null) return;
  if (server.pinned) throw new AskError(`${why}; correct the value, or clip it to the range`);
  throw new AskError(`${why}. The server chose this range, so everything was sent before this check: otherwise the server would learn its result. ${then}`);
}

/**
 * Answers for any number of samples, in order.
 *
 * For a plan with a feature part, rows are its output, and `part` is its SHA-256, `plan.featurePart`: run the graph that
 * `server.featurePart()` returns on the raw inputs, with onnxruntime-web for example.
 *
 * Samples outside the plan's box are refused, unless `clip` moves them to its edge; the plan has the default. Where the
 * plan came from the server they are refused only after everything was sent: a server that chose the box must not learn which side a sample is on.
 */
export async function ask(
  client: Client,
  server: Connection,
  rows: readonly ArrayLike<number>[],
  options: { clip?: boolean; part?: string; progress?: (done: number, total: number) => void } = {},
): Promise<Answer[]> {
  if ((options.part ?? null) !== client.plan.featurePart) {
    const [wanted, given] = [client.plan.featurePart, options.part].map((hash) => hash?.slice(0, 12) ?? "none");
    throw new AskError(`this plan encrypts the output of feature part ${wanted}, and the rows are marked as that of ${given}; see server.featurePart`);
  }
  checked(rows, client.plan);
  const clip = options.clip ?? server.plan.clip;
  if (server.pinned && !clip) refuseOutside(rows, server);
  const size = client.plan.perRequest;
  const replies: { id: string; data: ArrayBuffer }[] = [];
  for (let start = 0; start < rows.length; start += size) {
    const request = await client.encrypt(rows.slice(start, start + size));
    replies.push({ id: request.id, data: await server.send(request, client.replyBytes) });
    options.progress?.(Math.min(start + size, rows.length), rows.length);
  }
  if (!clip) refuseOutside(rows, server);
  const out: Answer[] = [];
  for (const { id, data } of replies) out.push(...(await client.decide(data, id)));
  return asPromised(out, rows, server.plan, clip);
}

/**
 * The answers, of which only those stay reliable whose samples were treated as the plan says: its threshold was found on
 * samples of which those outside the box were moved to its edge, or refused.
 */
export function asPromised(answers: readonly Answer[], rows: readonly ArrayLike<number>[], plan: Plan, clip: boolean): Answer[] {
  if (clip === plan.clip) return [...answers];
  return answers.map((answer, n) => {
    const inside = plan.low.every((low, i) => low <= rows[n]![i]! && rows[n]![i]! <= plan.high[i]!);
    return answer.reliable !== true || (clip && inside) ? answer : { ...answer, reliable: false };
  });
}
