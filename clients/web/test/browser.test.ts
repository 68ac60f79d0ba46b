/**
 * The page in a real Chromium against a real server. `tests/web` in the Python tests starts the server and describes
 * what to expect in the file that QUAD4FHE_WEB_SPEC names.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";

import { answered, close, launch, ready, table, typeTable, visit } from "./browsing.ts";

interface Spec {
  url: string;
  /** What to add to the page's address: the layout. */
  query: string;
  chromium: string;
  /** A second server, which asks for a token. */
  guarded: string;
  token: string;
  /** The page as one file. */
  file: string;
  /** The same, for the server that asks for a token. */
  guardedFile: string;
  model: string;
  rows: number[][];
  decisions: number[];
  outside: number[];
  screenshots: string;
}

const path = process.env["QUAD4FHE_WEB_SPEC"];
const spec: Spec = path === undefined ? undefined! : JSON.parse(readFileSync(path, "utf8"));
const options = { skip: path === undefined ? "run by the Python tests (tests/web)" : false };

before(async () => {
  if (path !== undefined) await launch(spec.chromium);
});
after(close);

test("decisions of a table are those of the Python client, and the page asks nobody else", options, async () => {
  const { context, page, complaints, asked } = await visit(`${spec.url}/page/${spec.query}`);
  await ready(page);
  await typeTable(page, spec.rows);
  const { problem } = await answered(page);
  assert.equal(problem, "");
  assert.deepEqual(await table(page), spec.decisions);
  assert.deepEqual(complaints, []);
  assert.deepEqual(asked.filter((url) => !url.startsWith(spec.url) && !url.startsWith("blob:")), []);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Download all as CSV")]);
  const lines = readFileSync(await download.path(), "utf8").trim().split("\n");
  assert.equal(lines.length, spec.rows.length + 1);
  await context.close();
});

test("one sample is answered, and what left the computer does not show it", options, async () => {
  let body: Buffer | null = null;
  const { context, page } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    page.on("request", (request) => (body = request.postDataBuffer() ?? body));
  });
  await ready(page);
  const row = spec.rows[0]!;
  for (const [i, value] of row.entries()) await page.fill(`#value-${i}`, String(value));
  const { verdict } = await answered(page);
  assert.equal(verdict, `The answer is class ${spec.decisions[0]}.`);
  assert.ok((await page.textContent("#left"))!.includes("ciphertext sent"));
  const values = Buffer.from(Float64Array.from(row).buffer);
  assert.equal(body!.includes(values.subarray(0, 16)), false);
  await context.close();
});

test("the policy headers are as stated, and the worker has no network", options, async () => {
  const head = async (name: string) => (await fetch(`${spec.url}/page/${name}`)).headers;
  const page = (await head(""))!.get("content-security-policy")!;
  for (const part of ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "require-trusted-types-for 'script'", "frame-ancestors 'none'"]) {
    assert.ok(page.includes(part), part);
  }
  assert.equal((await head("worker.js")).get("content-security-policy"), "default-src 'none'; script-src 'wasm-unsafe-eval'");
  // Code that runs in a worker of this address can't reach even its own server, by fetch or by loading a script.
  const reached: string[] = [];
  const { context, page: tab } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/worker.js", async (route) => {
      const real = await route.fetch();
      const probe = `
        try { importScripts('/page/page.js?by=importScripts'); } catch {}
        try { new Worker('/page/worker.js?by=worker'); } catch {}
        const tries = [fetch('/health?by=fetch'), import('/page/page.js?by=import')];
        Promise.allSettled(tries).then((all) => setTimeout(() => postMessage(all.every(({ status }) => status === 'rejected') ? 'blocked' : 'reached'), 300));`;
      await route.fulfill({ response: real, body: probe });
    });
    await page.context().route(/by=/, (route) => {
      reached.push(route.request().url());
      return route.abort();
    });
    await page.addInitScript(() => {
      const Real = Worker;
      (globalThis as { Worker: unknown }).Worker = class extends Real {
        constructor(url: URL, options?: WorkerOptions) {
          super(url, options);
          this.addEventListener("message", ({ data }) => (document.title = String(data)));
        }
      };
    });
  });
  await tab.waitForFunction(() => ["reached", "blocked"].includes(document.title));
  assert.equal(await tab.title(), "blocked");
  assert.deepEqual(reached, []);
  await context.close();
});

test("a token is asked for and sent", options, async () => {
  const tokens = new Set<string | undefined>();
  const { context, page } = await visit(`${spec.guarded}/page/${spec.query}`, async (page) => {
    page.on("request", (request) => request.url().includes("/models") && tokens.add(request.headers()["authorization"]));
  });
  await page.waitForSelector("#token:visible");
  await page.fill("#token", "wrong");
  await page.click("text=Connect");
  await page.waitForSelector("#problem:visible");
  assert.match((await page.textContent("#problem"))!, /does not know this token/);
  await page.fill("#token", spec.token);
  await page.click("text=Connect");
  await ready(page);
  assert.ok(tokens.has(`Bearer ${spec.token}`));
  await context.close();
});

test("every request has a key of its own, and nothing is stored", options, async () => {
  const { context, page, complaints } = await visit(`${spec.url}/page/${spec.query}`);
  await ready(page);
  const seeds = new Set<string>();
  for (const _ of [1, 2]) {
    const [request] = await Promise.all([page.waitForRequest("**/evaluate"), answered(page)]);
    seeds.add(request.postDataBuffer()!.subarray(76, 108).toString("hex"));
  }
  assert.equal(seeds.size, 2);
  const stored = await page.evaluate(async () => [(await indexedDB.databases()).length, localStorage.length, sessionStorage.length, document.cookie.length]);
  assert.deepEqual(stored, [0, 0, 0, 0]);
  assert.deepEqual(complaints, []);
  await context.close();
});

test("a busy server is asked again", options, async () => {
  let refused = 0;
  const { context, page } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/evaluate", async (route) => {
      if (refused++ === 0) await route.fulfill({ status: 429, headers: { "retry-after": "1" }, body: '{"error":"full"}' });
      else await route.continue();
    });
  });
  await ready(page);
  const { verdict, problem } = await answered(page);
  assert.equal(problem, "");
  assert.match(verdict, /The answer is/);
  assert.equal(refused, 2);
  await context.close();
});

/** Answer the question with a changed reply, and return what the page says. */
async function tampered(change: (reply: Buffer, earlier: Buffer[]) => Buffer): Promise<string> {
  const earlier: Buffer[] = [];
  const { context, page } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/evaluate", async (route) => {
      const real = await route.fetch();
      const body = await real.body();
      earlier.push(body);
      await route.fulfill({ response: real, body: change(Buffer.from(body), earlier) });
    });
  });
  await ready(page);
  await answered(page);
  const { problem } = await answered(page);
  await context.close();
  return problem;
}

const sealed = async (reply: Buffer): Promise<Buffer> => {
  const digest = await crypto.subtle.digest("SHA-256", new Uint8Array(reply.subarray(0, reply.length - 32)));
  return Buffer.concat([reply.subarray(0, reply.length - 32), Buffer.from(digest)]);
};

test("a flipped bit, a reply to another request and a short reply are one clear sentence each", options, async () => {
  const flipped = await tampered((reply) => {
    reply[5_000] = reply[5_000]! ^ 1;
    return reply;
  });
  assert.match(flipped, /damaged on the way; nothing of it is shown\.$/);
  assert.match(await tampered((reply, earlier) => (earlier.length > 1 ? earlier[0]! : reply)), /answers another request/);
  assert.match(await tampered((reply) => reply.subarray(0, 1000)), /it has 1000 bytes/);
});

test("a reply that was made under another key is refused by its values", options, async () => {
  // Another key's reply, in an envelope that fits: the residues of one request, the identity of the other.
  const bodies: Buffer[] = [];
  const { context, page } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/evaluate", async (route) => {
      const real = await route.fetch();
      bodies.push(await real.body());
      await route.fulfill({ response: real, body: bodies.at(-1)! });
    });
  });
  await ready(page);
  await answered(page);
  await context.close();
  const stranger = bodies[0]!;
  const second = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/evaluate", async (route) => {
      const real = await route.fetch();
      const own = await real.body();
      await route.fulfill({ response: real, body: await sealed(Buffer.concat([own.subarray(0, 76), stranger.subarray(76)])) });
    });
  });
  await ready(second.page);
  const { problem } = await answered(second.page);
  assert.match(problem, /does not decrypt to values this plan can produce: wrong key, or damaged on the way\.$/);
  await second.context.close();
});

test("a hostile plan is refused before anything is sent", options, async () => {
  const changes: [(plan: any) => void, RegExp][] = [
    [(plan) => (plan.chain.ring /= 2), /bits of modulus are not secure/],
    [(plan) => plan.chain.primes.push(plan.chain.primes[0]), /not distinct/],
    [(plan) => (plan.chain.primes[0] += 2), /is not a prime of its ring/],
    [(plan) => (plan.domain.bound *= 1e30), /could overflow/],
    [(plan) => (plan.per_request *= 4096), /refused: .*; nothing was sent/],
    [(plan) => (plan.domain.low[0] = null), /box is not a number/],
    [(plan) => (plan.settings = null), /settings is missing/],
    [(plan) => (plan.model_id = "0".repeat(64)), /not for what was asked/],
  ];
  for (const [change, wanted] of changes) await refused(change, wanted);
});

/** The page says what is wrong with a changed plan, and sends nothing. */
async function refused(change: (plan: any) => void, wanted: RegExp): Promise<void> {
  const { context, page, asked } = await visit(`${spec.url}/page/${spec.query}`, async (page) => {
    await page.route("**/plan?*", async (route) => {
      const real = await route.fetch();
      const plan = await real.json();
      change(plan);
      await route.fulfill({ response: real, json: plan });
    });
  });
  await page.waitForSelector("#problem:visible");
  assert.match((await page.textContent("#problem"))!, wanted);
  assert.equal(asked.some((url) => url.includes("evaluate")), false);
  await context.close();
}

test("a value outside the range is explained, and can be clipped without a second request", options, async () => {
  const { context, page, asked } = await visit(`${spec.url}/page/${spec.query}`);
  const requests = () => asked.filter((url) => url.endsWith("/evaluate")).length;
  await ready(page);
  await typeTable(page, [spec.outside, spec.rows[0]!]);
  const { problem } = await answered(page);
  assert.match(problem, /^One sample lies outside the range the model was fitted for: in sample 1, feature \d+ is .* wanted .* to /);
  const sent = requests();
  assert.ok(sent > 0); // sent all the same: the server chose the range
  await page.check("#clip");
  assert.match((await answered(page)).verdict, /^2 answers\./);
  assert.equal(requests(), sent); // the server does not see that the answer was read only now
  await typeTable(page, [spec.rows[0]!, spec.outside]);
  assert.match((await answered(page)).verdict, /^2 answers\./);
  assert.equal(requests(), 2 * sent);
  await context.close();
});

for (const value of ["Infinity", "-Infinity", "NaN", "", "1e999", "abc"]) {
  test(`the value "${value}" never reaches the encryption`, options, async () => {
    const { context, page } = await visit(`${spec.url}/page/${spec.query}`);
    await ready(page);
    await page.fill("#value-0", value);
    assert.match((await answered(page)).problem, /feature 1 is not a number\.$/);
    await page.fill("#value-0", String(spec.rows[0]![0]));
    assert.match((await answered(page)).verdict, /The answer is/); // SEAL is still well
    await context.close();
  });
}

test("the page as one file works from disk, with its pinned plan", options, async () => {
  const { context, page, complaints, asked } = await visit(`file://${spec.file}`);
  await ready(page);
  await typeTable(page, spec.rows.slice(0, 20));
  await answered(page);
  assert.deepEqual(await table(page), spec.decisions.slice(0, 20));
  assert.deepEqual(complaints, []);
  assert.equal(asked.some((url) => url.endsWith("/models") || url.includes("/plan")), false);
  await context.close();
});

test("the page as one file refuses a value outside its range before anything is sent", options, async () => {
  const { context, page, asked } = await visit(`file://${spec.file}`);
  await ready(page);
  await typeTable(page, [spec.outside]);
  assert.match((await answered(page)).problem, /; correct the value, or clip it to the range\.$/);
  assert.equal(asked.some((url) => url.endsWith("/evaluate")), false);
  await context.close();
});

test("the page as one file asks for the token of its server, and keeps what was typed", options, async () => {
  const { context, page } = await visit(`file://${spec.guardedFile}`);
  const fill = async () => {
    for (const [i, value] of spec.rows[0]!.entries()) await page.fill(`#value-${i}`, String(value));
  };
  await ready(page);
  await fill();
  assert.match((await answered(page)).problem, /the server asks for a token/i);
  await page.fill("#token", spec.token);
  await page.click("text=Connect");
  await page.waitForSelector("#access", { state: "hidden" });
  assert.equal((await answered(page)).verdict, `The answer is class ${spec.decisions[0]}.`);
  await context.close();
});

test("there is no serious accessibility problem, in both themes and at phone width", options, async () => {
  const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
  for (const [name, more] of [
    ["light", { colorScheme: "light" }],
    ["dark", { colorScheme: "dark" }],
    ["phone", { colorScheme: "light", viewport: { width: 390, height: 844 } }],
  ] as const) {
    const { context, page } = await visit(`${spec.url}/page/${spec.query}`, async () => {}, { ...more, bypassCSP: true });
    await ready(page);
    await answered(page);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.equal(overflow, 0);
    await page.evaluate(axe);
    const { violations } = (await page.evaluate("axe.run()")) as { violations: { id: string; impact: string; nodes: { html: string }[] }[] };
    const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes[0]?.html]), []);
    await page.screenshot({ path: `${spec.screenshots}/${name}.png`, fullPage: true });
    await context.close();
  }
});

test("200 rows leave no gap between frames that a person would call a standstill", options, async () => {
  const { context, page } = await visit(`${spec.url}/page/${spec.query}`);
  await ready(page);
  await page.evaluate(() => {
    const gaps = ((globalThis as { gaps?: number[] }).gaps = []) as number[];
    let last = performance.now();
    const frame = (now: number) => {
      gaps.push(now - last);
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  await typeTable(page, spec.rows);
  const started = performance.now();
  await answered(page);
  const spent = performance.now() - started;
  const longest = await page.evaluate(() => Math.max(...(globalThis as unknown as { gaps: number[] }).gaps));
  // On a busy machine everything takes longer; a page that computes where it draws
  // stands still for most of the time.
  assert.ok(longest < Math.max(1000, spent / 4), `longest gap between frames: ${longest} ms of ${spent} ms`);
  await context.close();
});
