/** The page's side of the worker that holds the key: one message, one result. */
import type { Answer, Keys, Request } from "../client.ts";
import { AskError } from "../errors.ts";
import type { Plan } from "../plan.ts";
import type { Result, Task } from "../worker.ts";

/** The most bytes of a reply, and keys for the server where the layout has some. */
export interface Started {
  readonly replyBytes: number;
  readonly keys: Keys | null;
}

export class Keeper {
  readonly #make: () => Worker;
  readonly #wasm: () => Promise<ArrayBuffer>;
  #worker: Worker | undefined;
  #number = 0;
  readonly #waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();

  constructor(make: () => Worker, wasm: () => Promise<ArrayBuffer>) {
    this.#make = make;
    this.#wasm = wasm;
  }

  /** Make a new key for this plan; the old one ends. */
  async start(plan: Plan): Promise<Started> {
    const fresh = this.#worker === undefined;
    const wasm = fresh ? await this.#wasm() : null;
    if (fresh) this.#worker = this.#listen(this.#make());
    return (await this.#ask({ kind: "start", wasm, plan }, wasm === null ? [] : [wasm])) as Started;
  }

  async encrypt(rows: readonly Float64Array[]): Promise<Request> {
    return (await this.#ask({ kind: "encrypt", rows: [...rows] })) as Request;
  }

  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    return (await this.#ask({ kind: "decide", reply, id }, [reply])) as Answer[];
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
