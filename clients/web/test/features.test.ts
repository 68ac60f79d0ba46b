/**
 * Models with a feature part in a real Chromium: raw inputs are turned into features in a worker without network.
 * `tests/web` in the Python tests starts the server and describes what to expect in the file QUAD4FHE_FEATURES_SPEC names.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import type { Page } from "playwright-core";

import { answered, close, launch, ready, table, visit } from "./browsing.ts";

interface Case {
  model: string;
  /** Raw inputs as a person would paste them. */
  table: string;
  /** Some of their cells, which must not leave the browser. */
  secrets: string[];
  columns: number;
  decisions: number[];
}

interface Spec {
  url: string;
  chromium: string;
  cases: Record<string, Case>;
}

const path = process.env["QUAD4FHE_FEATURES_SPEC"];
const spec: Spec = path === undefined ? undefined! : JSON.parse(readFileSync(path, "utf8"));
const options = { skip: path === undefined ? "run by the Python tests (tests/web)" : false };

before(async () => {
  if (path !== undefined) await launch(spec.chromium);
});
after(close);

const address = (name: string) => `${spec.url}/page/?model=${spec.cases[name]!.model}`;

for (const name of ["images", "table", "text"]) {
  test(`the page turns raw ${name} into features, and decides as the Python client does`, options, async () => {
    const { model, table: raw, secrets, columns, decisions } = spec.cases[name]!;
    const sent: Buffer[] = [];
    const { context, page, complaints, asked } = await visit(address(name), async (page) => {
      page.on("request", (request) => sent.push(Buffer.from(request.url()), request.postDataBuffer() ?? Buffer.of()));
    });
    await ready(page);
    assert.equal(await page.locator("#fields input").count(), columns);
    await page.click("#table > summary");
    await page.fill("#csv", raw);
    const { problem } = await answered(page);
    assert.equal(problem, "");
    assert.deepEqual(await table(page), decisions);
    assert.deepEqual(complaints, []);
    assert.deepEqual(asked.filter((url) => !url.startsWith(spec.url) && !url.startsWith("blob:")), []);
    assert.ok(asked.some((url) => url.endsWith(`/models/${model}/features`)));
    for (const secret of secrets) assert.equal(sent.some((bytes) => bytes.includes(secret)), false, secret);
    await context.close();
  });
}

/** What the page says when a file of the server was changed on the way. */
async function changed(pattern: string, change: (body: Buffer) => Buffer): Promise<string> {
  const { context, page, asked } = await visit(address("table"), async (page) => {
    await page.route(pattern, async (route) => {
      const real = await route.fetch();
      await route.fulfill({ response: real, body: change(await real.body()) });
    });
  });
  await page.waitForSelector("#problem:visible");
  const problem = (await page.textContent("#problem"))!;
  assert.equal(asked.some((url) => url.includes("evaluate")), false);
  await context.close();
  return problem;
}

const turned = (body: Buffer) => {
  body[body.length - 1]! ^= 1;
  return body;
};

test("another feature part and another onnxruntime are refused before anything is sent", options, async () => {
  assert.match(await changed("**/features", turned), /feature part is not the one that the plan names; nothing was sent\.$/);
  assert.match(await changed("**/onnxruntime-*.wasm", turned), /onnxruntime-web is not the one this page was built with; nothing was sent\.$/);
});

test("a value that is no number is named, and a missing one is passed on", options, async () => {
  const { context, page } = await visit(address("table"));
  await ready(page);
  const fill = async (values: string[]) => {
    for (const [i, value] of values.entries()) await page.fill(`#value-${i}`, value);
    return answered(page);
  };
  assert.match((await fill(["old", "30000", "Turku"])).problem, /^Sample 1: "old" is not a value of age\.$/);
  assert.match((await fill(["", "30000", "Turku"])).verdict, /^The answer is class \d\.$/);
  assert.match((await page.textContent("#stayed"))!, /30000, Turku.*the features computed from them/);
  await context.close();
});

test("the worker that sees raw inputs has no network, and the page's policy allows no WebAssembly", options, async () => {
  const policy = async (name: string) => (await fetch(`${spec.url}/page/${name}`)).headers.get("content-security-policy")!;
  assert.equal(await policy("features.js"), "default-src 'none'; script-src 'wasm-unsafe-eval'");
  assert.doesNotMatch(await policy(""), /unsafe/);
  const reached: string[] = [];
  const { context, page } = await visit(address("table"), async (page) => {
    await probed(page);
    await page.context().route(/by=/, (route) => {
      reached.push(route.request().url());
      return route.abort();
    });
  });
  await page.waitForSelector("#problem:visible");
  assert.match((await page.textContent("#problem"))!, /^Blocked\.$/);
  assert.deepEqual(reached, []);
  await context.close();
});

/** Put code into features.js that tries to reach its own server, and answers with what came of it. */
async function probed(page: Page): Promise<void> {
  await page.route("**/features.js", async (route) => {
    const real = await route.fetch();
    const body = `
      try { new Worker('/page/worker.js?by=worker'); } catch {}
      onmessage = async ({ data }) => {
        const all = await Promise.allSettled([fetch('/health?by=fetch'), import('/page/page.js?by=import')]);
        setTimeout(() => postMessage({ number: data.number, error: all.every(({ status }) => status === 'rejected') ? 'blocked' : 'reached' }), 300);
      };`;
    await route.fulfill({ response: real, body });
  });
}
