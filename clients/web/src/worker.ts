/**
 * The worker that holds the key. Its policy header gives it no network: what leaves it are messages to the page, and a
 * message is a ciphertext or an answer, never the key.
 */
import type { MainModule } from "node-seal";

import { Client } from "./client.ts";
import { messageOf } from "./errors.ts";
import type { Plan } from "./plan.ts";
import { startSeal } from "./seal.ts";

export type Task =
  | { readonly kind: "start"; readonly wasm: ArrayBuffer | null; readonly plan: Plan }
  | { readonly kind: "encrypt"; readonly rows: Float64Array[] }
  | { readonly kind: "decide"; readonly reply: ArrayBuffer; readonly id: string };

export interface Result {
  readonly number: number;
  readonly value?: unknown;
  readonly error?: string;
  /** SEAL's memory is corrupted: this worker must be ended. */
  readonly fatal?: boolean;
}

let seal: MainModule | undefined;
let client: Client | undefined;

async function run(task: Task): Promise<[value: unknown, moved: Transferable[]]> {
  if (task.kind === "start") {
    if (task.wasm !== null) seal = await startSeal(task.wasm);
    client?.forget();
    client = new Client(seal!, task.plan);
    return [{ replyBytes: client.replyBytes, keys: await client.keys() }, []];
  }
  if (task.kind === "encrypt") {
    const request = await client!.encrypt(task.rows);
    return [request, [request.body.buffer]];
  }
  return [await client!.decide(task.reply, task.id), []];
}

self.onmessage = async ({ data }: MessageEvent<{ number: number; task: Task }>) => {
  const { number, task } = data;
  try {
    const [value, moved] = await run(task);
    self.postMessage({ number, value } satisfies Result, { transfer: moved });
  } catch (error) {
    const fatal = error instanceof WebAssembly.RuntimeError;
    self.postMessage({ number, error: messageOf(error), fatal } satisfies Result);
  }
};
