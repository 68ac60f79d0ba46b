/**
 * The worker that holds the key. Its policy header gives it no network: what leaves it are messages to the page, and a
 * message is a ciphertext or an answer, never the key.
 */
import type { MainModule } from "node-seal";

import { Client, type Keys } from "./client.ts";
import { messageOf } from "./errors.ts";
import { discard, forgetAll, keep, kept } from "./kept.ts";
import type { Plan } from "./plan.ts";
import { startSeal } from "./seal.ts";

export type Task =
  | { readonly kind: "start"; readonly wasm: ArrayBuffer | null; readonly plan: Plan; readonly storage: boolean }
  | { readonly kind: "keep" }
  | { readonly kind: "forget" }
  | { readonly kind: "encrypt"; readonly rows: Float64Array[] }
  | { readonly kind: "decide"; readonly reply: ArrayBuffer; readonly id: string };

/** Whether the key was made now, was kept from an earlier visit, or replaces a kept one that can't be read. */
export type KeyOrigin = "made" | "kept" | "replaced";

/** The most bytes of a reply, keys for the server where the layout has some, and where the key comes from. */
export interface Started {
  readonly replyBytes: number;
  readonly keys: Keys | null;
  readonly origin: KeyOrigin;
}

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
    const [opened, origin] = await open(task.plan, task.storage);
    client = opened;
    return [{ replyBytes: client.replyBytes, keys: await client.keys(), origin } satisfies Started, []];
  }
  if (task.kind === "keep") return [await keep(client!.plan, client!.save()), []];
  if (task.kind === "forget") return [await forgetAll(), []];
  if (task.kind === "encrypt") {
    const request = await client!.encrypt(task.rows);
    return [request, [request.body.buffer]];
  }
  return [await client!.decide(task.reply, task.id), []];
}

async function open(plan: Plan, storage: boolean): Promise<[Client, KeyOrigin]> {
  try {
    const found = storage ? await kept(plan) : null;
    return [new Client(seal!, plan, found ?? undefined), found === null ? "made" : "kept"];
  } catch (error) {
    if (!storage || error instanceof WebAssembly.RuntimeError) throw error;
    const made = new Client(seal!, plan); // raises where the plan was the reason, and not the key
    await discard(plan);
    return [made, "replaced"];
  }
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

// One task after the other: a start frees the key, which an encryption that waits for its masks still needs.
let last = Promise.resolve();
self.onmessage = ({ data }: MessageEvent<{ number: number; task: Task }>) => {
  last = last.then(() => answer(data));
};
