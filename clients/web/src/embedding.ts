/**
 * Slots to polynomial coefficients and back to whole numbers: the canonical embedding, in SEAL's order of slots.
 *
 * SEAL's own encoder is never called: version 4.1 is corrupted for good by an infinity, and it rounds to the nearest
 * integer, which is not noise. Here a coefficient c becomes floor(c) or floor(c) + 1, the latter with probability
 * c - floor(c), as in the Python client, so the plan's error bound holds.
 */

/** The whole coefficients (N) of a polynomial whose first slots are `values` times `scale`; the other slots are 0. */
export function encode(values: Float64Array, ring: number, scale: number, random: Random): Float64Array {
  const out = embed(values, ring);
  const thresholds = random(ring);
  for (let i = 0; i < ring; i++) {
    const exact = out[i]! * scale;
    const whole = Math.floor(exact);
    // 1 where the threshold is below the fraction, else 0. A branch would take longer for values other than zero.
    out[i] = whole + Math.ceil(exact - whole - thresholds[i]!);
  }
  return out;
}

/** `count` independent numbers, uniform in [0, 1) on a grid of 2^-53. */
export type Random = (count: number) => Float64Array;

/** Uniform numbers from the browser's cryptographic generator. */
export function cryptographic(count: number): Float64Array<ArrayBuffer> {
  const words = new Uint32Array(2 * count);
  for (let start = 0; start < words.length; start += MOST) crypto.getRandomValues(words.subarray(start, start + MOST));
  const out = new Float64Array(count);
  for (let i = 0; i < count; i++) out[i] = ((words[2 * i]! >>> 5) * 2 ** 26 + (words[2 * i + 1]! >>> 6)) * 2 ** -53;
  return out;
}

const MOST = 2 ** 14; // words that getRandomValues gives in one call

/** The real coefficients (N) of the polynomial with these real slots. */
export function embed(values: Float64Array, ring: number): Float64Array {
  const { place, cosine, sine, steps } = tables(ring);
  const real = new Float64Array(ring);
  const imaginary = new Float64Array(ring);
  for (let j = 0; j < values.length; j++) {
    real[place[j]!] = values[j]!;
    real[ring - 1 - place[j]!] = values[j]!;
  }
  fourier(real, imaginary, steps);
  const out = new Float64Array(ring);
  for (let k = 0; k < ring / 2; k++) {
    const value = real[k]! * cosine[k]! + imaginary[k]! * sine[k]!;
    out[k] = value;
    if (k > 0) out[ring - k] = -value;
  }
  return out;
}

interface Tables {
  /** Where slot j lies among the odd powers of zeta. */
  place: Uint32Array;
  cosine: Float64Array;
  sine: Float64Array;
  steps: Float64Array;
}

const known = new Map<number, Tables>();

function tables(ring: number): Tables {
  const found = known.get(ring);
  if (found !== undefined) return found;
  const place = new Uint32Array(ring / 2);
  for (let j = 0, power = 1; j < ring / 2; j++, power = (power * 3) % (2 * ring)) place[j] = (power - 1) / 2;
  const cosine = new Float64Array(ring / 2);
  const sine = new Float64Array(ring / 2);
  for (let k = 0; k < ring / 2; k++) {
    cosine[k] = Math.cos((Math.PI * k) / ring) / ring;
    sine[k] = Math.sin((Math.PI * k) / ring) / ring;
  }
  const steps = new Float64Array(ring);
  for (let k = 0; k < ring / 2; k++) {
    steps[2 * k] = Math.cos((2 * Math.PI * k) / ring);
    steps[2 * k + 1] = -Math.sin((2 * Math.PI * k) / ring);
  }
  const made = { place, cosine, sine, steps };
  known.set(ring, made);
  return made;
}

/** The discrete Fourier transform in place, radix 2; `steps` are the powers of exp(-2 pi i / N). */
function fourier(real: Float64Array, imaginary: Float64Array, steps: Float64Array): void {
  const n = real.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [real[i], real[j]] = [real[j]!, real[i]!];
      [imaginary[i], imaginary[j]] = [imaginary[j]!, imaginary[i]!];
    }
  }
  for (let half = 1; half < n; half *= 2) {
    const stride = n / (2 * half);
    for (let start = 0; start < n; start += 2 * half) {
      for (let k = 0; k < half; k++) {
        const [a, b] = [start + k, start + k + half];
        const [c, s] = [steps[2 * k * stride]!, steps[2 * k * stride + 1]!];
        const [x, y] = [real[b]! * c - imaginary[b]! * s, real[b]! * s + imaginary[b]! * c];
        real[b] = real[a]! - x;
        imaginary[b] = imaginary[a]! - y;
        real[a] = real[a]! + x;
        imaginary[a] = imaginary[a]! + y;
      }
    }
  }
}
