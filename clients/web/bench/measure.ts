/**
 * Measures the page in a real Chromium; `benchmarks/web.py` starts the servers and describes them in the file that is the
 * only argument. Prints JSON.
 *
 * CPU seconds are those of the renderer process, which runs the page and its worker, by Chromium's own account. Wall times
 * say little on a busy machine.
 */
import { readFileSync } from "node:fs";
import { get } from "node:http";

import { type Browser, type CDPSession, chromium, type Page } from "playwright-core";

import { memory } from "./memory.ts";

interface Spec {
  chromium: string;
  /** The model whose page is timed. */
  timed: string;
  starts: number;
  questions: number;
  models: Record<string, { url: string; rows: number[][]; decisions: Record<string, number[]> }>;
}

const spec: Spec = JSON.parse(readFileSync(process.argv[2]!, "utf8"));
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--js-flags=--expose-gc"];
const FILES = ["", "page.css", "page.js", "worker.js", "seal.wasm"];
const WARM = 10; // questions before the first is counted

const median = (values: readonly number[]) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
const least = (values: readonly number[]) => Math.min(...values);
const rounded = (value: number, digits = 4) => Number(value.toPrecision(digits));

/** The bytes of the page's files as they travel. */
async function sizes(url: string): Promise<Record<string, number>> {
  const out: Record<string, number> = {};
  for (const name of FILES) {
    out[name || "index.html"] = await new Promise<number>((resolve, reject) => {
      get(`${url}/page/${name}`, { headers: { "accept-encoding": "gzip" } }, (answer) => {
        let bytes = 0;
        answer.on("data", (part: Buffer) => (bytes += part.length)).on("end", () => resolve(bytes));
      }).on("error", reject);
    });
  }
  return out;
}

class Tab {
  readonly page: Page;
  readonly #devtools: CDPSession;

  constructor(page: Page, devtools: CDPSession) {
    this.page = page;
    this.#devtools = devtools;
  }

  static async open(browser: Browser): Promise<Tab> {
    const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
    await page.addInitScript(() => {
      new MutationObserver(() => ((globalThis as { readyAt?: number }).readyAt ??= performance.now())).observe(document, { attributes: true, attributeFilter: ["data-ready"], subtree: true });
    });
    return new Tab(page, await browser.newBrowserCDPSession());
  }

  async visit(address: string): Promise<void> {
    await this.page.goto(address);
    await this.page.waitForSelector("html[data-ready=yes]", { timeout: 120_000 });
  }

  /** Seconds of the processor that the page's renderer took so far, and its process: the busiest, others are the browser's own. */
  async cpu(): Promise<{ seconds: number; process: number }> {
    const { processInfo } = (await this.#devtools.send("SystemInfo.getProcessInfo")) as { processInfo: { type: string; id: number; cpuTime: number }[] };
    const renderers = processInfo.filter(({ type }) => type === "renderer").sort((a, b) => b.cpuTime - a.cpuTime);
    return { seconds: renderers[0]?.cpuTime ?? 0, process: renderers[0]?.id ?? 0 };
  }

  async table(rows: readonly number[][]): Promise<number[]> {
    await this.page.evaluate((text) => {
      document.querySelector<HTMLDetailsElement>("#table")!.open = true;
      document.querySelector<HTMLTextAreaElement>("#csv")!.value = text;
    }, rows.map((row) => row.join(",")).join("\n"));
    await this.ask();
    const cells = await this.page.$$eval("#answer tbody tr td:nth-child(2)", (found) => found.map((cell) => cell.textContent ?? ""));
    return cells.map((cell) => Number(cell.replace("class ", "")));
  }

  /** Press the button, and wait for the answer. */
  async ask(): Promise<void> {
    const problem = await this.page.evaluate(async () => {
      const shown = (id: string) => !document.querySelector<HTMLElement>(id)!.hidden;
      document.querySelector<HTMLButtonElement>("#ask")!.click();
      while (!(shown("#answer") || shown("#problem"))) await new Promise(requestAnimationFrame);
      return shown("#problem") ? document.querySelector("#problem")!.textContent : null;
    });
    if (problem !== null) throw new Error(problem);
  }
}

/** The start of the page in fresh browsers. */
async function starting(url: string): Promise<object> {
  const [wall, cpu]: [number[], number[]] = [[], []];
  for (let i = 0; i < spec.starts; i++) {
    const browser = await chromium.launch({ executablePath: spec.chromium, args: FLAGS });
    const tab = await Tab.open(browser);
    await tab.visit(url);
    wall.push(await tab.page.evaluate(() => (globalThis as unknown as { readyAt: number }).readyAt));
    cpu.push((await tab.cpu()).seconds); // the renderer's own start included
    await browser.close();
  }
  return {
    starts: spec.starts,
    wall_ms: { least: rounded(least(wall)), median: rounded(median(wall)) },
    renderer_cpu_ms: { least: rounded(1000 * least(cpu)), median: rounded(1000 * median(cpu)) },
  };
}

/** One question after another: CPU of one, and what memory is left after each fifty. */
async function asking(browser: Browser, url: string, row: readonly number[]): Promise<object> {
  const tab = await Tab.open(browser);
  // The memory of SEAL's module is not visible from outside, so the worker gets two more lines.
  await tab.page.route("**/worker.js", async (route) => {
    const real = await route.fetch();
    const seen = `{const made = WebAssembly.instantiate; WebAssembly.instantiate = async (...all) => { const out = await made(...all);
      self.memory = Object.values((out.instance ?? out).exports).find((each) => each instanceof WebAssembly.Memory); return out; };}\n`;
    await route.fulfill({ response: real, body: seen + (await real.text()) });
  });
  await tab.visit(url);
  for (const [i, value] of row.entries()) await tab.page.fill(`#value-${i}`, String(value));
  for (let i = 0; i < WARM; i++) await tab.ask();
  const heaps: object[] = [];
  const costs: number[] = [];
  const wall: number[] = [];
  for (let asked = 0; asked < spec.questions; asked += 50) {
    const before = (await tab.cpu()).seconds;
    for (let i = 0; i < 50; i++) {
      const start = performance.now();
      await tab.ask();
      wall.push(performance.now() - start);
    }
    costs.push(((await tab.cpu()).seconds - before) / 50);
    heaps.push({ questions: asked + 50, ...(await memoryOf(tab)) });
  }
  await tab.page.context().close();
  return {
    questions: spec.questions,
    renderer_cpu_ms_each: { least: rounded(1000 * least(costs)), median: rounded(1000 * median(costs)) },
    wall_ms: { least: rounded(least(wall)), median: rounded(median(wall)) },
    heaps,
  };
}

async function memoryOf(tab: Tab): Promise<object> {
  const worker = tab.page.workers()[0]!;
  const collected = () => {
    (globalThis as unknown as { gc(): void }).gc();
    return 0;
  };
  for (const place of [tab.page, worker]) await place.evaluate(collected);
  const heap = await tab.page.evaluate(() => (performance as unknown as { memory: { usedJSHeapSize: number } }).memory.usedJSHeapSize);
  const seal = await worker.evaluate(() => (globalThis as unknown as { memory: WebAssembly.Memory }).memory.buffer.byteLength);
  return { page_heap: heap, seal_heap: seal };
}

interface TraceEvent {
  name: string;
  ph: string;
  pid: number;
  tid: number;
  tdur?: number;
  args?: { name?: string };
}

/** Of a trace: the longest task of the page's main thread in milliseconds of CPU, which other work on the machine does not change. */
function longestTask(trace: Buffer, process: number): number {
  const { traceEvents } = JSON.parse(trace.toString()) as { traceEvents: TraceEvent[] };
  const main = traceEvents.find(({ name, pid, args }) => name === "thread_name" && pid === process && args?.name === "CrRendererMain");
  const tasks = traceEvents.filter(({ ph, pid, tid, tdur }) => ph === "X" && pid === process && tid === main?.tid && tdur !== undefined);
  if (tasks.length === 0) throw new Error("the trace has no tasks of the page");
  return Math.max(...tasks.map(({ tdur }) => tdur! / 1000));
}

/** A table of rows: the longest time between two frames, and the longest task that could be the page's own reason for it. */
async function frames(browser: Browser, url: string, rows: readonly number[][]): Promise<object> {
  const tab = await Tab.open(browser);
  await tab.visit(url);
  await tab.table(rows); // compiled code and a first key
  await tab.page.evaluate(() => {
    const gaps: number[] = ((globalThis as { gaps?: number[] }).gaps = []);
    let last = performance.now();
    const frame = (now: number) => {
      gaps.push(now - last);
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  const { process } = await tab.cpu();
  await browser.startTracing(tab.page, { categories: ["toplevel"] });
  const start = performance.now();
  await tab.table(rows);
  const seconds = (performance.now() - start) / 1000;
  const longest = longestTask(await browser.stopTracing(), process);
  const gaps = await tab.page.evaluate(() => (globalThis as unknown as { gaps: number[] }).gaps);
  await tab.page.context().close();
  return { rows: rows.length, seconds: rounded(seconds), frames: gaps.length, longest_gap_ms: rounded(Math.max(...gaps)), gaps_over_100_ms: gaps.filter((gap) => gap > 100).length, longest_task_cpu_ms: rounded(longest) };
}

async function main(): Promise<void> {
  const { url, rows } = spec.models[spec.timed]!;
  const files = await sizes(url);
  const start = await starting(`${url}/page/?layout=lift`);
  const browser = await chromium.launch({ executablePath: spec.chromium, args: FLAGS });
  const trips: object[] = [];
  for (const [name, { url, rows, decisions }] of Object.entries(spec.models)) {
    for (const [layout, wanted] of Object.entries(decisions)) {
      const tab = await Tab.open(browser);
      await tab.visit(`${url}/page/?layout=${layout}`);
      const found = await tab.table(rows);
      await tab.page.context().close();
      trips.push({ model: name, layout, rows: rows.length, answered: found.length, other_decisions: wanted.filter((each, i) => each !== found[i]).length });
    }
  }
  const question = await asking(browser, `${url}/page/?layout=lift`, rows[0]!);
  const resident = await memory(spec.chromium, FLAGS, `${url}/page/?layout=lift`, spec.questions);
  const gaps: Record<string, object> = {};
  for (const layout of ["lift", "batch"]) gaps[layout] = await frames(browser, `${url}/page/?layout=${layout}`, rows);
  const version = browser.version();
  await browser.close();
  const bytes = Object.values(files).reduce((sum, each) => sum + each, 0);
  console.log(JSON.stringify({ chromium: version, size: { gzip_bytes: bytes, files }, start, question, resident, frames: gaps, round_trips: trips }));
}

await main();
