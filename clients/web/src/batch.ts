/** Layout batch: one ciphertext per feature, one sample per slot. */
import { modulusBits } from "./chain.ts";
import { cryptographic, encode, type Random } from "./embedding.ts";
import { AskError } from "./errors.ts";
import type { Layout } from "./layouts.ts";
import { type Plan, planNumber, planWhole, reachOf } from "./plan.ts";
import type { Context } from "./seal.ts";
import { joined, LEAST_SECURITY, SEED_BYTES } from "./seeds.ts";

const LARGEST_PRIME = 2n ** 32n;
const ENCODED_BITS = 62; // of an encoded input, as in the Python client: `SecretKey.residues` is exact up to there

/** The degree of the polynomial model, which a reply has one polynomial more than. */
function degreeOf(plan: Plan): number {
  return plan.settings["degree"] === undefined ? 2 : planWhole(plan.settings["degree"], 2, 8, "degree");
}

function isPrivate(plan: Plan): boolean {
  return plan.settings["replies"] === "private";
}

export const batch: Layout = {
  name: "batch",
  // The public key of private replies is one more row.
  request: (plan) => ({ shape: [plan.features + Number(isPrivate(plan)), 1, plan.chain.primes.length, plan.chain.ring], width: 4, lead: SEED_BYTES }),
  reply: (plan) => ({ shape: [plan.outputs, degreeOf(plan) + 1, plan.chain.primes.length, plan.chain.ring], width: 4 }),
  scaleOut(plan) {
    // Above degree 2 the scales of the powers are aligned, and the plan names the result.
    if (degreeOf(plan) > 2) return planWhole(plan.settings["reply"], 1, 900, "scale of a reply");
    const [x, w, v] = ["x", "w", "v"].map((name) => planWhole(plan.scales[name], 0, 100, "scales")) as [number, number, number];
    return 2 * (x + w) + v;
  },

  refusal(plan) {
    // Fewer samples a request would let a plan's author choose how many requests a question consists of.
    if (plan.perRequest !== plan.chain.ring / 2) return "layout batch has one sample a slot";
    if (plan.chain.primes.some((q) => q >= LARGEST_PRIME)) return "layout batch has primes of at most 32 bits";
    if (isPrivate(plan) && !(planNumber(plan.settings["security"], "security") >= LEAST_SECURITY)) return "its private replies are not private";
    const reach = plan.low.reduce((most, _, i) => Math.max(most, reachOf(plan, i)), 1);
    const most = Math.min(ENCODED_BITS, modulusBits(plan.chain.primes) - 3);
    return plan.scaleIn + Math.log2(reach) > most ? "its inputs are too large for its scale" : null;
  },

  async encrypt(key, samples, plan) {
    const { primes, ring } = plan.chain;
    const one = primes.length * ring;
    const rows = plan.features + Number(isPrivate(plan));
    const out = new Uint32Array(rows * one);
    for (let i = 0; i < rows; i++) {
      const message = i < plan.features ? featureResidues(key.context, samples, i, plan.scaleIn) : new Uint32Array(one);
      out.set(await key.encrypt(message), i * one);
    }
    return joined([key.seed, new Uint8Array(out.buffer)]);
  },

  decrypt(key, payload, plan, count) {
    const residues = new Uint32Array(payload.buffer, payload.byteOffset, payload.byteLength / 4);
    checkResidues(residues, plan);
    const one = residues.length / plan.outputs;
    const logits = Array.from({ length: count }, () => new Float64Array(plan.outputs));
    let largest = 0;
    for (let k = 0; k < plan.outputs; k++) {
      const slots = key.decrypt(residues.subarray(k * one, (k + 1) * one), degreeOf(plan) + 1, 2 ** batch.scaleOut(plan));
      for (const value of slots) largest = Math.max(largest, Math.abs(value)); // Math.max keeps a NaN
      for (let n = 0; n < count; n++) logits[n]![k] = slots[n]!;
    }
    const plausible = largest <= plan.bound * (1 + 1e-6);
    if (plausible) checkTrusted(largest, plan);
    return { plausible, logits };
  },
};

/** Decoding loses a share of the largest slot: beyond `trusted` the error bound of the plan would not hold. */
function checkTrusted(largest: number, plan: Plan): void {
  const most = plan.settings["trusted"];
  if (most === undefined || most === null || largest <= planNumber(most, "trusted")) return;
  throw new AskError(
    `a score reaches ${largest.toPrecision(4)}, and the error bound of this plan holds only up to ${planNumber(most, "trusted").toPrecision(4)}; ` +
      "leave out samples far from what the model was fitted for",
  );
}

function checkResidues(residues: Uint32Array, plan: Plan): void {
  const { ring, primes } = plan.chain;
  for (let at = 0, place = 0; at < residues.length; at += ring, place = (place + 1) % primes.length) {
    const q = Number(primes[place]);
    for (let i = at; i < at + ring; i++) {
      if (residues[i]! >= q) throw new AskError("the reply is not trusted: a residue is not below its prime; nothing of it is shown");
    }
  }
}

/** Feature i of all samples as a plaintext: residues (primes, N) before encryption. */
export function featureResidues(
  context: Context,
  samples: readonly Float64Array[],
  i: number,
  log2Scale: number,
  random: Random = cryptographic,
): Uint32Array {
  const values = Float64Array.from(samples, (sample) => sample[i]!);
  return context.residues(encode(values, context.chain.ring, 2 ** log2Scale, random));
}
