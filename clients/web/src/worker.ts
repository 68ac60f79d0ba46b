/**
 * The worker that holds the keys. Its policy header gives it no network: what leaves it are messages to the page, and a
 * message is a ciphertext or an answer, never a key.
 */
import type { MainModule } from "node-seal";

import { Client } from "./client.ts";
import { messageOf } from "./errors.ts";
import type { Plan } from "./plan.ts";
import { startSeal } from "./seal.ts";

export type Task =
  | { readonly kind: "start"; readonly wasm: ArrayBuffer | null; readonly plan: Plan }
  | { readonly kind: "forget" }
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
    client?.end();
    client = undefined;
    client = new Client(seal!, task.plan);
    return [client.replyBytes, []];
  }
  if (task.kind === "forget") return [client!.forget(), []];
  if (task.kind === "encrypt") {
    const request = await client!.encrypt(task.rows);
    return [request, [request.body.buffer]];
  }
  return [await client!.decide(task.reply, task.id), []];
}

async function answer({ number, task }: { number: number; task: Task }): Promise<void> {
  try {
    const [value, moved] = await run(task);
    self.postMessage({ number, value } satisfies Result, { transfer: moved });
  } catch (error) {
    const fatal = error instanceof WebAssembly.RuntimeError;
    self.postMessage({ number, error: messageOf(error), fatal } satisfies Result);
  }
}

// One task after the other: a start frees what an encryption that waits for its masks still needs.
let last = Promise.resolve();
self.onmessage = ({ data }: MessageEvent<{ number: number; task: Task }>) => {
  last = last.then(() => answer(data));
};
