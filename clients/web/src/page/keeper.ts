/** The page's side of the worker that holds the keys. */
import type { Answer, Request } from "../client.ts";
import type { Plan } from "../plan.ts";
import type { Task } from "../worker.ts";
import { Caller } from "./caller.ts";

export class Keeper {
  readonly #make: () => Worker;
  readonly #wasm: () => Promise<ArrayBuffer>;
  #caller: Caller<Task> | undefined;

  constructor(make: () => Worker, wasm: () => Promise<ArrayBuffer>) {
    this.#make = make;
    this.#wasm = wasm;
  }

  /** Prepare for a plan; keys of open requests end. Returns the bytes of a reply. */
  async start(plan: Plan): Promise<number> {
    const fresh = this.#caller === undefined || this.#caller.ended;
    const wasm = fresh ? await this.#wasm() : null;
    if (fresh) this.#caller = new Caller(this.#make());
    return (await this.#caller!.ask({ kind: "start", wasm, plan }, wasm === null ? [] : [wasm])) as number;
  }

  async encrypt(rows: readonly Float64Array[]): Promise<Request> {
    return (await this.#caller!.ask({ kind: "encrypt", rows: [...rows] })) as Request;
  }

  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    return (await this.#caller!.ask({ kind: "decide", reply, id }, [reply])) as Answer[];
  }

  /** Forget the keys of all requests whose replies were not read. */
  async forget(): Promise<void> {
    await this.#caller!.ask({ kind: "forget" });
  }
}
