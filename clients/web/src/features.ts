/**
 * The worker that computes features from raw inputs, with onnxruntime-web. Its policy header gives it no network: raw
 * inputs come in by messages, features go out by messages to the page, which has them encrypted.
 */
import { env, InferenceSession, Tensor, type TypedTensor } from "onnxruntime-web/wasm";

import { toHex } from "./message.ts";
import { AskError, messageOf } from "./errors.ts";
import type { Result } from "./worker.ts";

/** The SHA-256 of onnxruntime-web's WebAssembly module; the build fills it in. */
declare const ONNXRUNTIME_SHA256: string;

/** One input of a feature part: its type, and its shape for one sample. */
export interface RawInput {
  readonly name: string;
  readonly type: string;
  readonly sides: readonly number[];
}

export type FeatureTask =
  | { readonly kind: "start"; readonly wasm: ArrayBuffer; readonly graph: Uint8Array<ArrayBuffer> }
  | { readonly kind: "run"; readonly rows: readonly (readonly string[])[] };

let session: InferenceSession;
let inputs: readonly RawInput[];

async function run(task: FeatureTask): Promise<unknown> {
  if (task.kind === "start") return start(task.wasm, task.graph);
  const out: Float64Array[] = [];
  for (const [n, row] of task.rows.entries()) out.push(await features(row, n));
  return out;
}

async function start(wasm: ArrayBuffer, graph: Uint8Array): Promise<readonly RawInput[]> {
  if (toHex(new Uint8Array(await crypto.subtle.digest("SHA-256", wasm))) !== ONNXRUNTIME_SHA256) {
    throw new AskError("the server's onnxruntime-web is not the one this page was built with; nothing was sent");
  }
  env.logLevel = "fatal";
  env.wasm.numThreads = 1;
  env.wasm.wasmBinary = wasm;
  try {
    session = await InferenceSession.create(graph, { executionProviders: ["wasm"] });
  } catch (error) {
    throw new AskError(`this browser can't run the model's feature part (${messageOf(error)}); nothing was sent`);
  }
  inputs = session.inputMetadata.map((each): RawInput => {
    const sides = each.isTensor ? each.shape.slice(1) : ["?"];
    const open = sides.some((side) => typeof side !== "number");
    if (!each.isTensor || open || !(each.type in READ)) {
      throw new AskError(`this page can't ask for the input ${each.name} of the feature part, its shape or type is open; nothing was sent`);
    }
    return { name: each.name, type: each.type, sides: sides as number[] };
  });
  return inputs;
}

/** The features of one sample, whose cells are those of the inputs in order. */
async function features(row: readonly string[], n: number): Promise<Float64Array> {
  const feeds: Record<string, Tensor> = {};
  let at = 0;
  for (const { name, type, sides } of inputs) {
    const width = sides.reduce((product, side) => product * side, 1);
    const cells = row.slice(at, (at += width));
    const bad = cells.find((cell) => !isOf(type, cell));
    if (bad !== undefined) throw new AskError(`sample ${n + 1}: "${bad}" is not a value of ${name}`);
    feeds[name] = READ[type]!(cells, [1, ...sides]);
  }
  let found: Tensor;
  try {
    found = Object.values(await session.run(feeds))[0]!;
  } catch (error) {
    throw new AskError(`the feature part does not take sample ${n + 1} (${messageOf(error)})`);
  }
  const values = Float64Array.from(found.data as ArrayLike<number>, Number);
  if (!values.every(Number.isFinite)) throw new AskError(`the feature part gives no finite features for sample ${n + 1}`);
  return values;
}

/** A number that may be missing is an empty cell. */
function isOf(type: string, cell: string): boolean {
  if (type === "string") return true;
  if (type === "float32" || type === "float64") return cell === "" || Number.isFinite(Number(cell));
  if (type === "bool") return cell === "0" || cell === "1";
  return /^-?\d{1,15}$/.test(cell);
}

type Make = (cells: string[], shape: number[]) => Tensor;
const double = (cell: string) => (cell === "" ? Number.NaN : Number(cell));
const READ: Readonly<Record<string, Make>> = {
  string: (cells, shape) => new Tensor("string", cells, shape) as TypedTensor<"string">,
  float32: (cells, shape) => new Tensor("float32", Float32Array.from(cells, double), shape),
  float64: (cells, shape) => new Tensor("float64", Float64Array.from(cells, double), shape),
  int64: (cells, shape) => new Tensor("int64", BigInt64Array.from(cells, BigInt), shape),
  int32: (cells, shape) => new Tensor("int32", Int32Array.from(cells, Number), shape),
  uint8: (cells, shape) => new Tensor("uint8", Uint8Array.from(cells, Number), shape),
  bool: (cells, shape) => new Tensor("bool", Uint8Array.from(cells, Number), shape),
};

self.onmessage = async ({ data }: MessageEvent<{ number: number; task: FeatureTask }>) => {
  const { number, task } = data;
  try {
    self.postMessage({ number, value: await run(task) } satisfies Result);
  } catch (error) {
    self.postMessage({ number, error: messageOf(error), fatal: error instanceof WebAssembly.RuntimeError } satisfies Result);
  }
};
