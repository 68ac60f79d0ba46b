/** The page's side of the worker that holds the key. */
import type { Answer, Request } from "../client.ts";
import type { Plan } from "../plan.ts";
import type { Started, Task } from "../worker.ts";
import { Caller } from "./caller.ts";

export class Keeper {
  readonly #make: () => Worker;
  readonly #wasm: () => Promise<ArrayBuffer>;
  readonly #storage: boolean;
  #caller: Caller<Task> | undefined;

  /** `storage` says whether a kept key is looked for. */
  constructor(make: () => Worker, wasm: () => Promise<ArrayBuffer>, storage: boolean) {
    this.#make = make;
    this.#wasm = wasm;
    this.#storage = storage;
  }

  /** Take the key that was kept for this plan, or make a new one; the one before ends. */
  async start(plan: Plan): Promise<Started> {
    const fresh = this.#caller === undefined || this.#caller.ended;
    const wasm = fresh ? await this.#wasm() : null;
    if (fresh) this.#caller = new Caller(this.#make());
    const task: Task = { kind: "start", wasm, plan, storage: this.#storage };
    return (await this.#caller!.ask(task, wasm === null ? [] : [wasm])) as Started;
  }

  async encrypt(rows: readonly Float64Array[]): Promise<Request> {
    return (await this.#caller!.ask({ kind: "encrypt", rows: [...rows] })) as Request;
  }

  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    return (await this.#caller!.ask({ kind: "decide", reply, id }, [reply])) as Answer[];
  }

  /** Keep the key in this browser. */
  async keep(): Promise<void> {
    await this.#caller!.ask({ kind: "keep" });
  }

  /** Remove every kept key; the one in use ends with the tab. */
  async forget(): Promise<void> {
    await this.#caller!.ask({ kind: "forget" });
  }
}
