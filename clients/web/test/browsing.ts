/** A real Chromium that opens the page, for the tests that the Python tests start. */
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Milliseconds; a busy machine may take long, and what never happens ends the test all the same. */
export const PATIENCE = 120_000;

let browser: Browser | undefined;

export async function launch(executablePath: string): Promise<void> {
  browser = await chromium.launch({ executablePath, args: FLAGS, timeout: PATIENCE });
}

export async function close(): Promise<void> {
  await browser?.close();
}

export interface Visit {
  context: BrowserContext;
  page: Page;
  complaints: string[];
  asked: string[];
}

/** Open the page; everything it complains of and every request it makes is recorded. */
export async function visit(address: string, prepare: (page: Page) => Promise<void> = async () => {}, more = {}): Promise<Visit> {
  const context = await browser!.newContext({ viewport: { width: 1280, height: 900 }, ...more });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const [complaints, asked]: [string[], string[]] = [[], []];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("request", (request) => asked.push(request.url()));
  await prepare(page);
  await page.goto(address);
  return { context, page, complaints, asked };
}

export const ready = (page: Page) => page.waitForSelector("html[data-ready=yes]", { timeout: PATIENCE });

export async function answered(page: Page): Promise<{ verdict: string; problem: string }> {
  await page.click("#ask");
  await page.waitForFunction(() => !document.querySelector<HTMLElement>("#answer")!.hidden || !document.querySelector<HTMLElement>("#problem")!.hidden, null, { timeout: PATIENCE });
  const text = async (id: string) => ((await page.isVisible(id)) ? ((await page.textContent(id)) ?? "") : "");
  return { verdict: await text("#verdict"), problem: await text("#problem") };
}

export async function typeTable(page: Page, rows: readonly number[][]): Promise<void> {
  if (!(await page.isVisible("#csv"))) await page.click("#table > summary");
  await page.fill("#csv", rows.map((row) => row.join(",")).join("\n"));
}

export async function table(page: Page): Promise<number[]> {
  const cells = await page.$$eval("#answer tbody tr td:nth-child(2)", (found) => found.map((cell) => cell.textContent ?? ""));
  return cells.map((cell) => Number(cell.replace("class ", "")));
}
