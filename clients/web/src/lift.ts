/**
 * Layout lift: the client encrypts the monomials (1, u_i, u_i u_j, ...) of a sample, the server applies one linear map.
 *
 * As `quad4fhe.layouts.lift`: requests are a public seed and packed residues, replies are packed numbers modulo 2^bits.
 */
import { pack, packedBytes, unpack } from "./bits.ts";
import { cryptographic } from "./embedding.ts";
import type { Form, Layout } from "./layouts.ts";
import { type Plan, planNumber, planWhole, reachOf } from "./plan.ts";
import { bitLength, joined, LEAST_SECURITY, SEED_BYTES } from "./seeds.ts";

const MOST_MONOMIALS = 2 ** 20;
const MOST_INPUTS = 255; // ciphertexts of a request
interface Setting {
  readonly group: number;
  readonly lift: number;
  readonly grain: number;
  readonly weights: number;
  readonly bits: number;
  readonly private: boolean;
  readonly offset: number;
  readonly tolerance: number;
  /** The degree of the model, and the number of its monomials. */
  readonly degree: number;
  readonly size: number;
  readonly rows: number;
  readonly block: number;
  readonly inputs: number;
  readonly replies: number;
  readonly used: number;
  /** Coefficients before the first answer that reach it, and whether only a window of coefficients is sent. */
  readonly lead: number;
  readonly windowed: boolean;
}

/** The plan's settings, and where monomials and answers lie. */
function settingOf(plan: Plan): Setting {
  const s = plan.settings;
  const degree = planWhole(s["degree"] ?? 2, 2, 8, "degree");
  const size = countMonomials(plan.features, degree);
  const rows = plan.outputs;
  const group = planWhole(s["group"], 1, rows, "group");
  const { ring } = plan.chain;
  const block = group * size <= ring ? size : Math.floor(ring / group);
  const inputs = Math.ceil(size / block);
  const lead = (group - 1) * block;
  const windowed = group > 1 && inputs === 1 && lead + plan.perRequest * group * block <= ring;
  const several = windowed ? lead + plan.perRequest * group * block : inputs * ring;
  const used = group > 1 ? several : inputs === 1 ? plan.perRequest * size : size;
  return {
    group,
    lift: planWhole(s["lift"], 1, 128, "scales"),
    grain: planWhole(s["grain"], 1, 128, "scales"),
    weights: planNumber(s["weights"], "scales"),
    bits: planWhole(s["bits"], 8, 60, "bits of a reply"),
    private: s["replies"] !== "plain",
    offset: planNumber(s["offset"], "offset"),
    tolerance: planNumber(s["tolerance"], "tolerance"),
    degree, size, rows, block, inputs, used, lead, windowed,
    replies: Math.ceil(rows / group),
  };
}

export const lift: Layout = {
  name: "lift",
  scaleOut: (plan) => Math.log2(settingOf(plan).weights) + settingOf(plan).lift,
  request(plan) {
    const s = settingOf(plan);
    const sent = s.used + (s.private ? plan.chain.ring : 0); // the public key of private replies comes last
    return bytesForm(SEED_BYTES + plan.chain.primes.reduce((sum, q) => sum + packedBytes(sent, bitLength(q)), 0));
  },
  reply(plan) {
    const { replies, rows, bits } = settingOf(plan);
    return bytesForm(packedBytes(plan.perRequest * rows + replies * plan.chain.ring, bits));
  },

  refusal(plan) {
    const s = settingOf(plan);
    if (s.size > MOST_MONOMIALS) return "it has too many monomials";
    if (plan.perRequest > Math.max(1, Math.floor(plan.chain.ring / (s.group * s.size)))) return "its samples do not fit its ring";
    if (s.inputs > MOST_INPUTS) return "its requests have too many ciphertexts";
    const largest = Math.max(1, ...rootsOf(plan).map((root, i) => (reachOf(plan, i) / root) ** s.degree));
    if (s.grain > s.lift || s.grain + Math.log2(largest) > 62) return "its scales can't be right";
    if (!(s.weights > 2 ** -200 && s.weights < 2 ** 200 && s.tolerance >= 0 && s.offset >= 0)) return "its scales can't be right";
    if (s.tolerance > 0 !== s.rows > 1) return "the sum of its scores is known only where there are several";
    if (s.private && !(planNumber(plan.settings["security"], "security") >= LEAST_SECURITY)) return "its private replies are not private";
    return null;
  },

  async encrypt(key, samples, plan) {
    const s = settingOf(plan);
    const { primes } = plan.chain;
    const message = spread(samples, plan, s);
    const { ring } = plan.chain;
    const first: BigUint64Array[] = [];
    for (let j = 0; j < s.inputs; j++) first.push(await key.zero());
    const open = s.private ? await key.zero() : null;
    key.keepCoefficients();
    const parts: Uint8Array[] = [key.seed];
    for (const [place, q] of primes.entries()) {
      const sent = new BigUint64Array(s.used + (open === null ? 0 : ring));
      for (let i = 0; i < s.used; i++) {
        const [j, at] = whereUsed(i, plan, s);
        const sum = first[j]![place * ring + at]! + modulo(message[j]![at]!, q);
        sent[i] = sum >= q ? sum - q : sum;
      }
      if (open !== null) sent.set(open.subarray(place * ring, (place + 1) * ring), s.used);
      parts.push(pack(sent, bitLength(q)));
    }
    return joined(parts);
  },

  decrypt(key, payload, plan, count) {
    const s = settingOf(plan);
    const { ring, primes } = plan.chain;
    const reads = plan.perRequest * s.rows;
    const { low, high } = unpack(payload, s.bits, reads + s.replies * ring);
    const secret = key.coefficients();
    const scale = Number(primes.reduce((product, q) => product * q, 1n)) / 2 ** s.bits / 2 ** s.lift / s.weights;
    const logits: Float64Array[] = [];
    let plausible = true;
    for (let n = 0; n < plan.perRequest; n++) {
      const answers = new Float64Array(s.rows);
      for (let row = 0; row < s.rows; row++) {
        const [reply, c] = [Math.floor(row / s.group), row % s.group];
        const position = (n * s.group + c) * s.block;
        const start = reads + reply * ring;
        let [sumLow, sumHigh] = [low[n * s.rows + row]!, high[n * s.rows + row]!];
        for (let i = 0; i < ring; i++) {
          const at = position - i;
          const sign = at < 0 ? -secret[at + ring]! : secret[at]!;
          if (sign !== 0) {
            sumLow += sign * low[start + i]!;
            sumHigh += sign * high[start + i]!;
          }
        }
        answers[row] = Number(BigInt.asIntN(s.bits, (BigInt(sumHigh) << 30n) + BigInt(sumLow))) * scale;
      }
      if (!answers.every((answer) => Math.abs(answer) <= plan.bound * (1 + 1e-6))) plausible = false;
      const shifted = answers.map((answer) => answer - s.offset);
      // The sum of a sample's answers is known beforehand; a single answer has none.
      if (s.rows > 1 && !(Math.abs(shifted.reduce((sum, each) => sum + each, 0)) <= s.tolerance)) plausible = false;
      if (n < count) logits.push(shifted);
    }
    return { plausible, logits };
  },
};

function bytesForm(count: number): Form {
  return { shape: [count, 1, 1, 1], width: 1 };
}

/** The rounded monomials of all samples as coefficients of the request's polynomials, (J, N). */
function spread(samples: readonly Float64Array[], plan: Plan, s: Setting): bigint[][] {
  const { ring } = plan.chain;
  const out = Array.from({ length: s.inputs }, () => new Array<bigint>(ring).fill(0n));
  const roots = rootsOf(plan);
  const factor = 1n << BigInt(s.lift - s.grain);
  for (let n = 0; n < plan.perRequest; n++) {
    // An empty place holds the sample 0.
    const values = monomials(samples[n] ?? new Float64Array(plan.features), roots, s.degree);
    const dither = cryptographic(s.size);
    for (let i = 0; i < s.size; i++) {
      const whole = BigInt(Math.floor(values[i]! * 2 ** s.grain + dither[i]!)) * factor;
      if (s.inputs === 1) out[0]![n * s.group * s.block + i] = whole;
      else out[Math.floor(i / s.block)]![i % s.block] = whole;
    }
  }
  return out;
}

/** How many monomials of this degree or less there are: a binomial coefficient. */
function countMonomials(features: number, degree: number): number {
  let count = 1;
  for (let k = 1; k <= degree; k++) count = (count * (features + k)) / k; // a whole number after each step
  return count;
}

/** z = (1, u_i, u_i u_j for i <= j, ...) of a shifted sample, by degree: each monomial times every feature from its last on. */
export function monomials(sample: Float64Array, roots: readonly number[], degree = 2): Float64Array {
  const d = sample.length;
  const u = sample.map((value, i) => value / roots[i]!);
  const out = new Float64Array(countMonomials(d, degree));
  const last = new Uint32Array(out.length); // the last feature of each monomial
  out[0] = 1;
  for (let k = 1, first = 0, at = 1; k <= degree; k++) {
    const end = at;
    for (let parent = first; parent < end; parent++) {
      for (let i = last[parent]!; i < d; i++) {
        out[at] = out[parent]! * u[i]!;
        last[at++] = i;
      }
    }
    first = end;
  }
  return out;
}

/** The ciphertext and the coefficient of the i-th number of a request. */
function whereUsed(i: number, plan: Plan, s: Setting): [number, number] {
  const { ring } = plan.chain;
  if (s.windowed) return [0, (i - s.lead + ring) % ring];
  if (s.group > 1) return [Math.floor(i / ring), i % ring];
  return s.inputs === 1 ? [0, i] : [Math.floor(i / s.block), i % s.block];
}

/** What each feature is divided by: the power of two nearest to the root of its reach. */
export function rootsOf(plan: Plan): number[] {
  return Array.from({ length: plan.features }, (_, i) => {
    const reach = reachOf(plan, i);
    return reach > 0 ? 2 ** Math.min(Math.max(toEven(Math.log2(reach) / 2), -500), 500) : 1;
  });
}

/** Rounding as numpy's rint: halves to the even neighbour. */
function toEven(value: number): number {
  const floor = Math.floor(value);
  if (value - floor !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

function modulo(value: bigint, q: bigint): bigint {
  const rest = value % q;
  return rest < 0n ? rest + q : rest;
}
