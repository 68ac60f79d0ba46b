/**
 * Second halves of ciphertexts from a public seed, which need not travel.
 *
 * As `quad4fhe.layouts.masks`. A seed is drawn for each request, and a mask used once: by its number.
 */
export const SEED_BYTES = 32;
export const LEAST_SECURITY = 40; // of private replies, in bits

/** The masks of one seed, which is an AES-256 key: counter mode from the block (0, number, place of the prime, 0). */
export class Masks {
  readonly #key: CryptoKey;

  private constructor(key: CryptoKey) {
    this.#key = key;
  }

  static async of(seed: Uint8Array<ArrayBuffer>): Promise<Masks> {
    return new Masks(await crypto.subtle.importKey("raw", seed, "AES-CTR", false, ["encrypt"]));
  }

  /** Residues (primes, N) in NTT form, even over each prime: `quad4fhe.layouts.masks.expand` for one ciphertext. */
  async wide(number: number, primes: readonly bigint[], ring: number): Promise<BigUint64Array<ArrayBuffer>> {
    const out = new BigUint64Array(primes.length * ring);
    await this.#each(number, primes, ring, (stream, q, place) => {
      const width = Math.ceil(bitLength(q) / 8);
      const mask = (1n << BigInt(bitLength(q))) - 1n;
      const word = (i: number) => {
        let found = 0n;
        for (let byte = width - 1; byte >= 0; byte--) found = (found << 8n) | BigInt(stream.getUint8(i * width + byte));
        return found & mask;
      };
      return firstBelow(word, q, Math.floor(stream.byteLength / width), out.subarray(place * ring, (place + 1) * ring));
    });
    return out;
  }

  /** The same for primes below 2^32, without big integers. */
  async narrow(number: number, primes: readonly bigint[], ring: number): Promise<Uint32Array<ArrayBuffer>> {
    const out = new Uint32Array(primes.length * ring);
    await this.#each(number, primes, ring, (stream, q, place) => {
      const bits = bitLength(q);
      const [width, mask] = [Math.ceil(bits / 8), bits === 32 ? 0xffffffff : 2 ** bits - 1];
      const word =
        width === 4
          ? (i: number) => (stream.getUint32(4 * i, true) & mask) >>> 0
          : (i: number) => {
              let found = 0;
              for (let byte = width - 1; byte >= 0; byte--) found = (found << 8) | stream.getUint8(i * width + byte);
              return found & mask;
            };
      return firstBelow(word, Number(q), Math.floor(stream.byteLength / width), out.subarray(place * ring, (place + 1) * ring));
    });
    return out;
  }

  /** Give the stream of every prime to `take`, and a longer one until it found enough. */
  async #each(
    number: number,
    primes: readonly bigint[],
    ring: number,
    take: (stream: DataView, q: bigint, place: number) => boolean,
  ): Promise<void> {
    await Promise.all(
      primes.map(async (q, place) => {
        const bits = bitLength(q);
        const counter = new DataView(new ArrayBuffer(16));
        [0, number, place, 0].forEach((each, i) => counter.setUint32(4 * i, each));
        for (let words = ring + Math.ceil(ring * (Number(1n << BigInt(bits)) / Number(q) - 1)) + 16; ; words *= 2) {
          const zeros = new Uint8Array(Math.ceil(bits / 8) * words);
          const stream = await crypto.subtle.encrypt({ name: "AES-CTR", counter, length: 32 }, this.#key, zeros);
          if (take(new DataView(stream), q, place)) return;
        }
      }),
    );
  }
}

/** The first words that are below q; whether they fill `out`. */
function firstBelow<T extends number | bigint>(word: (i: number) => T, q: T, count: number, out: { [i: number]: T; length: number }): boolean {
  let found = 0;
  for (let i = 0; i < count && found < out.length; i++) {
    const each = word(i);
    if (each < q) out[found++] = each;
  }
  return found === out.length;
}

export function bitLength(q: bigint): number {
  return q.toString(2).length;
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
