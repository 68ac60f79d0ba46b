/** Whole numbers packed to their bit length, the first number in the lowest bits; at most 60 bits each. */

const HALF = 30; // bits of a number that are moved at once

export function packedBytes(count: number, bits: number): number {
  return Math.ceil((count * bits) / 8);
}

export function pack(values: ArrayLike<bigint>, bits: number): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(packedBytes(values.length, bits) + 8);
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    put(out, i * bits, Number(value & 0x3fffffffn), Math.min(bits, HALF));
    if (bits > HALF) put(out, i * bits + HALF, Number(value >> 30n), bits - HALF);
  }
  return out.slice(0, out.length - 8);
}

/** The lower 30 bits and the rest of each number. */
export function unpack(data: Uint8Array, bits: number, count: number): { low: Float64Array; high: Float64Array } {
  const low = new Float64Array(count);
  const high = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    low[i] = take(data, i * bits, Math.min(bits, HALF));
    if (bits > HALF) high[i] = take(data, i * bits + HALF, bits - HALF);
  }
  return { low, high };
}

function put(out: Uint8Array, at: number, value: number, bits: number): void {
  const shift = at % 8;
  let left = value * 2 ** shift; // below 2^37
  for (let byte = (at - shift) / 8, done = 0; done < bits + shift; byte++, done += 8) {
    out[byte]! |= left % 256;
    left = Math.floor(left / 256);
  }
}

function take(data: Uint8Array, at: number, bits: number): number {
  const shift = at % 8;
  const byte = (at - shift) / 8;
  let found = 0;
  for (let i = 4; i >= 0; i--) found = found * 256 + (data[byte + i] ?? 0);
  return Math.floor(found / 2 ** shift) % 2 ** bits;
}
