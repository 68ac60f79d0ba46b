/** Encodings are the same numbers in both languages: the vectors are those of the Python tests. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { cryptographic, embed, encode } from "../src/embedding.ts";
import { Context, SecretKey, startSeal } from "../src/seal.ts";
import { Masks } from "../src/seeds.ts";

const vectors = JSON.parse(readFileSync(new URL("../../../tests/vectors/ntt.json", import.meta.url), "utf8"));
const wasm = readFileSync(new URL("../node_modules/node-seal/dist/seal_throws.wasm", import.meta.url));
const seal = await startSeal(wasm.buffer.slice(wasm.byteOffset, wasm.byteOffset + wasm.length) as ArrayBuffer);

test("residues in NTT form are those of the shared vectors", () => {
  const primes = Object.keys(vectors.residues).map(BigInt);
  const context = new Context(seal, { ring: vectors.ring, primes });
  const coefficients = new Float64Array(vectors.ring);
  for (const [place, value] of vectors.terms) coefficients[place] = value;
  const residues = context.residues(coefficients);
  for (const [place, q] of primes.entries()) {
    const part = residues.slice(place * vectors.ring, (place + 1) * vectors.ring);
    const wanted = vectors.residues[String(q)];
    assert.deepEqual([...part.slice(0, 8)], wanted.first);
    assert.deepEqual([...part.slice(-8)], wanted.last);
  }
  context.free();
});

test("the slots of embedded values are the values", async () => {
  const [ring, scale] = [2048, 2 ** 20];
  const primes = [249857n, 188417n];
  const context = new Context(seal, { ring, primes });
  const key = await SecretKey.fresh(context);
  const values = Float64Array.from({ length: 200 }, (_, i) => Math.sin(i));
  const first = await key.encrypt(context.residues(encode(values, ring, scale, cryptographic)));
  const mask = await (await Masks.of(key.seed)).narrow(0, primes, ring);
  const slots = key.decrypt(Uint32Array.from([...first, ...mask]), 2, scale);
  for (let i = 0; i < ring / 2; i++) assert.ok(Math.abs(slots[i]! - (values[i] ?? 0)) < 1e-2);
  key.forget();
  context.free();
});

test("rounding has mean zero: a coefficient of a quarter becomes one in a quarter of all cases", () => {
  const ring = 1024;
  const values = new Float64Array(ring / 2).fill(0.25); // the constant polynomial
  assert.ok(Math.abs(embed(values, ring)[0]! - 0.25) < 1e-12);
  let ones = 0;
  for (let n = 0; n < 8000; n++) ones += encode(values, ring, 1, cryptographic)[0]!;
  assert.ok(Math.abs(ones / 8000 - 0.25) < 0.035); // seven deviations
});

test("residues are exact up to the largest coefficients that a plan allows", () => {
  const ring = 2048;
  const sizes = [0, 1, 12288, 12289, 2 ** 50, 2 ** 50 - 1, 12289 * 91_000_000_000 - 1, 2 ** 53 - 1, 2 ** 62, 2 ** 62 - 2 ** 9, 4294955009 * 2 ** 29 - 2 ** 10];
  // The second prime is the largest of this ring below 2^32.
  for (const q of [12289n, 4294955009n]) {
    const context = new Context(seal, { ring, primes: [q] });
    for (const c of sizes.flatMap((size) => [size, -size])) {
      const coefficients = new Float64Array(ring);
      coefficients[0] = c; // a constant: every residue in NTT form is the constant
      const wanted = Number(((BigInt(c) % q) + q) % q);
      assert.deepEqual(new Set(context.residues(coefficients)), new Set([wanted]), `${c} modulo ${q}`);
    }
    context.free();
  }
});

test("coefficients stay within the largest value, so that a plan's reach bounds them", () => {
  const ring = 1024;
  const signs = Float64Array.from({ length: ring / 2 }, () => (Math.random() < 0.5 ? -1 : 1));
  for (const values of [signs, new Float64Array(ring / 2).fill(1), new Float64Array([1])]) {
    assert.ok(embed(values, ring).every((c) => Math.abs(c) <= 1 + 1e-12));
  }
});
