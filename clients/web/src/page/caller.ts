/** A worker that answers each message once. */
import { AskError } from "../errors.ts";
import type { Result } from "../worker.ts";

export class Caller<Task> {
  readonly #worker: Worker;
  #number = 0;
  #ended = false;
  readonly #waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();

  constructor(worker: Worker) {
    this.#worker = worker;
    worker.onmessage = ({ data }: MessageEvent<Result>) => {
      const waiting = this.#waiting.get(data.number);
      this.#waiting.delete(data.number);
      if (data.error === undefined) waiting?.resolve(data.value);
      else waiting?.reject(new AskError(data.error));
      if (data.fatal) this.#end();
    };
    worker.onerror = () => this.#end();
  }

  /** Whether the worker was ended, because its memory can't be trusted any more. */
  get ended(): boolean {
    return this.#ended;
  }

  ask(task: Task, moved: Transferable[] = []): Promise<unknown> {
    const number = ++this.#number;
    return new Promise((resolve, reject) => {
      if (this.#ended) throw new AskError("the worker of this page was ended; load the page again");
      this.#waiting.set(number, { resolve, reject });
      this.#worker.postMessage({ number, task }, moved);
    });
  }

  #end(): void {
    this.#worker.terminate();
    this.#ended = true;
    for (const { reject } of this.#waiting.values()) {
      reject(new AskError("a worker of this page failed and was ended; load the page again"));
    }
    this.#waiting.clear();
  }
}
