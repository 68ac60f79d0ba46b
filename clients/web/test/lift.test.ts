/** The pieces of layout lift agree with their definitions; whole questions are asked by the browser tests. */
import assert from "node:assert/strict";
import { createCipheriv } from "node:crypto";
import { test } from "node:test";

import { pack, packedBytes, unpack } from "../src/bits.ts";
import { monomials } from "../src/lift.ts";
import { Masks } from "../src/seeds.ts";
import { readJson } from "../src/plan.ts";

test("packed numbers come back", () => {
  for (const bits of [1, 7, 17, 30, 31, 45, 59, 60]) {
    const values = Array.from({ length: 101 }, (_, i) => (BigInt(i) * 0x9e3779b97f4a7c15n) & ((1n << BigInt(bits)) - 1n));
    const data = pack(values, bits);
    assert.equal(data.length, packedBytes(values.length, bits));
    const { low, high } = unpack(data, bits, values.length);
    assert.deepEqual(Array.from(low, (each, i) => (BigInt(high[i]!) << 30n) + BigInt(each)), values);
    // The first value lies in the lowest bits.
    const whole = values.reduce((sum, value, i) => sum + (value << BigInt(i * bits)), 0n);
    assert.equal(BigInt("0x" + Buffer.from(data).reverse().toString("hex")), whole);
  }
});

test("masks are below their primes and depend on every part of their name", async () => {
  const seed = new Uint8Array(32).fill(9);
  const masks = await Masks.of(seed);
  const primes = [249857n, 35184371884033n];
  const mask = await masks.wide(0, primes, 2048);
  assert.ok(mask.every((word, i) => word < primes[Math.floor(i / 2048)]!));
  const narrow = [12289n, 249857n, 268369921n, 4294955009n]; // 2, 3, 4 and 4 full bytes
  assert.deepEqual(Array.from(await masks.narrow(5, narrow, 1024)), Array.from(await masks.wide(5, narrow, 1024), Number));
  const stranger = await Masks.of(new Uint8Array(32));
  const others = [masks.wide(1, primes, 2048), stranger.wide(0, primes, 2048)];
  for (const other of await Promise.all(others)) assert.notDeepEqual(other, mask);
});

test("a mask is what another AES-256 in counter mode gives", async () => {
  const seed = Uint8Array.from({ length: 32 }, (_, i) => i);
  const counter = Buffer.from([0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]); // number 7, second prime, block 0
  const stream = createCipheriv("aes-256-ctr", seed, counter).update(Buffer.alloc(4 * 4096));
  const q = 2n ** 31n - 2n ** 17n + 1n; // the masks ask for no prime
  const wanted = Array.from({ length: 4096 }, (_, i) => BigInt(stream.readUInt32LE(4 * i) & 0x7fffffff)).filter((word) => word < q);
  const found = await (await Masks.of(seed)).wide(7, [3n, q], 2048);
  assert.deepEqual(Array.from(found.subarray(2048)), wanted.slice(0, 2048));
});

test("monomials are one, the features, and their products row by row", () => {
  assert.deepEqual([...monomials(Float64Array.of(2, 6), [1, 2])], [1, 2, 3, 4, 6, 9]);
  assert.deepEqual([...monomials(Float64Array.of(2, 6), [1, 2], 3)], [1, 2, 3, 4, 6, 9, 8, 12, 18, 27]);
  // Every product of at most four of three features, each once: as numbers of primes they tell themselves apart.
  const found = [...monomials(Float64Array.of(2, 3, 5), [1, 1, 1], 4)];
  const wanted = new Set<number>();
  for (let a = 0; a <= 4; a++) for (let b = 0; a + b <= 4; b++) for (let c = 0; a + b + c <= 4; c++) wanted.add(2 ** a * 3 ** b * 5 ** c);
  assert.equal(found.length, 35);
  assert.deepEqual(new Set(found), wanted);
});

test("whole numbers beyond 2^53 keep every digit", () => {
  assert.deepEqual(readJson('{"primes": [288230376150876161, 17], "x": 1.2345678901234567890, "s": 1e300}'), {
    primes: ["288230376150876161", 17],
    x: 1.234567890123456789,
    s: 1e300,
  });
});
