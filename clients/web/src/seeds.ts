/**
 * Second halves of ciphertexts from a public seed, which need not travel, and the public key of private replies.
 *
 * As `quad4fhe.layouts.masks`. A seed is drawn for each request, and a mask used once: by its number.
 */
import { pack, packedBytes } from "./bits.ts";
import type { Form } from "./layouts.ts";
import type { Plan } from "./plan.ts";
import type { SecretKey } from "./seal.ts";
import { shake128 } from "./shake.ts";

export const SEED_BYTES = 32;
export const LEAST_SECURITY = 40; // of private replies, in bits

type Purpose = "request" | "key";

/** Residues (primes, N) in NTT form, even over each prime: `quad4fhe.layouts.masks.expand` for one ciphertext. */
export function maskOf(seed: Uint8Array, purpose: Purpose, number: number, primes: readonly bigint[], ring: number): BigUint64Array<ArrayBuffer> {
  const out = new BigUint64Array(primes.length * ring);
  for (const [place, q] of primes.entries()) {
    const width = Math.ceil(bitLength(q) / 8);
    const mask = (1n << BigInt(bitLength(q))) - 1n;
    even(seed, purpose, number, place, q, ring, (stream, i) => {
      let word = 0n;
      for (let byte = width - 1; byte >= 0; byte--) word = (word << 8n) | BigInt(stream.getUint8(i * width + byte));
      return word & mask;
    }, (word) => word < q, (word, i) => (out[place * ring + i] = word));
  }
  return out;
}

/** The same for primes below 2^32, without big integers. */
export function narrowMaskOf(seed: Uint8Array, number: number, primes: readonly bigint[], ring: number): Uint32Array<ArrayBuffer> {
  const out = new Uint32Array(primes.length * ring);
  for (const [place, q] of primes.entries()) {
    const bits = bitLength(q);
    const [width, prime, mask] = [Math.ceil(bits / 8), Number(q), bits === 32 ? 0xffffffff : 2 ** bits - 1];
    const word =
      width === 4
        ? (stream: DataView, i: number) => (stream.getUint32(4 * i, true) & mask) >>> 0
        : (stream: DataView, i: number) => {
            let found = 0;
            for (let byte = width - 1; byte >= 0; byte--) found = (found << 8) | stream.getUint8(i * width + byte);
            return found & mask;
          };
    even(seed, "request", number, place, q, ring, word, (each) => each < prime, (each, i) => (out[place * ring + i] = each));
  }
  return out;
}

/** Read words from the stream of one ciphertext and prime until N of them were below the prime. */
function even<T>(
  seed: Uint8Array,
  purpose: Purpose,
  number: number,
  place: number,
  q: bigint,
  ring: number,
  word: (stream: DataView, i: number) => T,
  below: (word: T) => boolean,
  put: (word: T, i: number) => void,
): void {
  const bits = bitLength(q);
  const name = joined([new TextEncoder().encode(`quad4fhe-mask-1 ${purpose} ${number} ${place} ${q} `), seed]);
  for (let wanted = ring + Math.ceil(ring * (Number(1n << BigInt(bits)) / Number(q) - 1)) + 16, found = 0; found < ring; wanted *= 2) {
    const stream = new DataView(shake128(name, Math.ceil(bits / 8) * wanted).buffer);
    found = 0;
    for (let i = 0; i < wanted && found < ring; i++) {
      const each = word(stream, i);
      if (below(each)) put(each, found++);
    }
  }
}

/** The form of a public key. */
export function publicKeyForm(plan: Plan): Form {
  return bytesForm(SEED_BYTES + every(plan).reduce((sum, q) => sum + packedBytes(plan.chain.ring, bitLength(q)), 0));
}

/** A fresh public key, its second half as a seed. */
export function publicKey(key: SecretKey, plan: Plan): Uint8Array<ArrayBuffer> {
  const seed = crypto.getRandomValues(new Uint8Array(SEED_BYTES));
  const moduli = every(plan);
  const { ring } = plan.chain;
  const first = key.rebased(key.publicKey(), maskOf(seed, "key", 0, moduli, ring), moduli);
  return joined([seed, ...moduli.map((q, place) => pack(first.subarray(place * ring, (place + 1) * ring), bitLength(q)))]);
}

export function bitLength(q: bigint): number {
  return q.toString(2).length;
}

function every(plan: Plan): readonly bigint[] {
  return plan.chain.special === null ? plan.chain.primes : [...plan.chain.primes, plan.chain.special];
}

export function bytesForm(count: number): Form {
  return { shape: [count, 1, 1, 1], width: 1 };
}

export function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
