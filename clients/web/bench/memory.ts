/**
 * The memory of the page over many questions, by Chromium's protocol itself: Playwright has Chromium keep the body of every
 * reply for it, in the process that is measured.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const STEP = 50; // questions between two looks

class Devtools {
  readonly #socket: WebSocket;
  readonly #waiting = new Map<number, (result: any) => void>();
  #number = 0;

  constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => {
      const { id, result } = JSON.parse(data) as { id?: number; result?: unknown };
      if (id === undefined) return;
      this.#waiting.get(id)?.(result);
      this.#waiting.delete(id);
    };
  }

  static async connect(port: number): Promise<Devtools> {
    for (let attempt = 0; ; attempt++) {
      try {
        const { webSocketDebuggerUrl } = (await (await fetch(`http://127.0.0.1:${port}/json/version`)).json()) as { webSocketDebuggerUrl: string };
        const socket = new WebSocket(webSocketDebuggerUrl);
        await new Promise((resolve) => (socket.onopen = resolve));
        return new Devtools(socket);
      } catch (error) {
        if (attempt === 200) throw error;
        await new Promise((resolve) => setTimeout(resolve, 300));
      }
    }
  }

  send(method: string, params: object = {}, sessionId?: string): Promise<any> {
    const id = ++this.#number;
    return new Promise((resolve) => {
      this.#waiting.set(id, resolve);
      this.#socket.send(JSON.stringify({ id, method, params, sessionId }));
    });
  }

  /** The resident bytes of the busiest renderer, which is the page's. */
  async resident(): Promise<number> {
    const { processInfo } = (await this.send("SystemInfo.getProcessInfo")) as { processInfo: { type: string; id: number; cpuTime: number }[] };
    const [page] = processInfo.filter(({ type }) => type === "renderer").sort((a, b) => b.cpuTime - a.cpuTime);
    return 4096 * Number(readFileSync(`/proc/${page!.id}/statm`, "utf8").split(" ")[1]);
  }
}

/** Resident bytes of the page's process after each fifty questions, garbage collected in the page. */
export async function memory(executable: string, flags: readonly string[], url: string, questions: number): Promise<object[]> {
  const folder = mkdtempSync(join(tmpdir(), "quad4fhe-memory-"));
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const browser = spawn(executable, ["--headless=new", ...flags, `--remote-debugging-port=${port}`, `--user-data-dir=${folder}`, "about:blank"], { stdio: "ignore" });
  const ended = new Promise((resolve) => browser.on("exit", resolve));
  try {
    const devtools = await Devtools.connect(port);
    const { targetId } = await devtools.send("Target.createTarget", { url });
    const { sessionId } = await devtools.send("Target.attachToTarget", { targetId, flatten: true });
    const run = async (expression: string) => (await devtools.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true }, sessionId)).result?.value;
    while ((await run("document.documentElement.dataset.ready")) !== "yes") await new Promise((resolve) => setTimeout(resolve, 300));
    const out: object[] = [];
    for (let asked = 0; asked < questions; asked += STEP) {
      const problem = await run(`(async () => {
        const shown = (id) => !document.querySelector(id).hidden;
        for (let i = 0; i < ${STEP}; i++) {
          document.querySelector("#ask").click();
          while (!(shown("#answer") || shown("#problem"))) await new Promise(requestAnimationFrame);
          if (shown("#problem")) return document.querySelector("#problem").textContent;
        }
        gc();
        return "";
      })()`);
      if (problem !== "") throw new Error(problem);
      out.push({ questions: asked + STEP, renderer_resident: await devtools.resident() });
    }
    await devtools.send("Browser.close");
    return out;
  } finally {
    browser.kill();
    await ended;
    rmSync(folder, { recursive: true, force: true });
  }
}
