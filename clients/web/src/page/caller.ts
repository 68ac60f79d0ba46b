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

  /** Give the worker a task; it is ended if it needs more seconds than `limit`. */
  ask(task: Task, moved: Transferable[] = [], limit = Infinity): Promise<unknown> {
    const number = ++this.#number;
    const answer = new Promise((resolve, reject) => {
      if (this.#ended) throw new AskError("the worker of this page was ended; load the page again");
      this.#waiting.set(number, { resolve, reject });
      this.#worker.postMessage({ number, task }, moved);
    });
    if (limit === Infinity) return answer;
    const late = setTimeout(() => this.#end(`needed more than ${limit} seconds`), 1000 * limit);
    return answer.finally(() => clearTimeout(late));
  }

  #end(reason = "failed"): void {
    this.#worker.terminate();
    this.#ended = true;
    for (const { reject } of this.#waiting.values()) {
      reject(new AskError(`a worker of this page ${reason} and was ended; load the page again`));
    }
    this.#waiting.clear();
  }
}
