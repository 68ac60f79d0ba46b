/** The page's side of the worker that holds the key: one message, one result. */
import type { Answer, Request } from "../client.ts";
import { AskError } from "../errors.ts";
import type { Plan } from "../plan.ts";
import type { Result, Started, Task } from "../worker.ts";

export class Keeper {
  readonly #make: () => Worker;
  readonly #wasm: () => Promise<ArrayBuffer>;
  readonly #storage: boolean;
  #worker: Worker | undefined;
  #number = 0;
  readonly #waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();

  /** `storage` says whether a kept key is looked for. */
  constructor(make: () => Worker, wasm: () => Promise<ArrayBuffer>, storage: boolean) {
    this.#make = make;
    this.#wasm = wasm;
    this.#storage = storage;
  }

  /** Take the key that was kept for this plan, or make a new one; the one before ends. */
  async start(plan: Plan): Promise<Started> {
    const fresh = this.#worker === undefined;
    const wasm = fresh ? await this.#wasm() : null;
    if (fresh) this.#worker = this.#listen(this.#make());
    return (await this.#ask({ kind: "start", wasm, plan, storage: this.#storage }, wasm === null ? [] : [wasm])) as Started;
  }

  async encrypt(rows: readonly Float64Array[]): Promise<Request> {
    return (await this.#ask({ kind: "encrypt", rows: [...rows] })) as Request;
  }

  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    return (await this.#ask({ kind: "decide", reply, id }, [reply])) as Answer[];
  }

  /** Keep the key in this browser. */
  async keep(): Promise<void> {
    await this.#ask({ kind: "keep" });
  }

  /** Remove every kept key; the one in use ends with the tab. */
  async forget(): Promise<void> {
    await this.#ask({ kind: "forget" });
  }

  #ask(task: Task, moved: Transferable[] = []): Promise<unknown> {
    const number = ++this.#number;
    return new Promise((resolve, reject) => {
      if (this.#worker === undefined) throw new AskError("the encryption was ended; load the page again");
      this.#waiting.set(number, { resolve, reject });
      this.#worker.postMessage({ number, task }, moved);
    });
  }

  #listen(worker: Worker): Worker {
    worker.onmessage = ({ data }: MessageEvent<Result>) => {
      const waiting = this.#waiting.get(data.number);
      this.#waiting.delete(data.number);
      if (data.error === undefined) waiting?.resolve(data.value);
      else waiting?.reject(new AskError(data.error));
      if (data.fatal) this.#end();
    };
    worker.onerror = () => this.#end();
    return worker;
  }

  /** SEAL's memory can't be trusted any more: the worker ends, and its key with it. */
  #end(): void {
    this.#worker?.terminate();
    this.#worker = undefined;
    for (const { reject } of this.#waiting.values()) {
      reject(new AskError("the encryption failed and was ended; load the page again"));
    }
    this.#waiting.clear();
  }
}
