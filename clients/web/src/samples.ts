/** Samples before they are encrypted: finite, inside the plan's box, shifted. */
import { AskError } from "./errors.ts";
import { type Plan, shiftOf } from "./plan.ts";

/** The name of feature i, for messages. */
export function featureName(plan: Plan, i: number): string {
  return plan.featureNames?.[i] ?? `feature ${i + 1}`;
}

/** Whole rows of finite numbers; an infinity corrupts SEAL 4.1 for good, so none passes. */
export function checked(rows: readonly ArrayLike<number>[], plan: Plan): readonly ArrayLike<number>[] {
  if (rows.length === 0) throw new AskError("there is no sample to ask about");
  for (const [n, row] of rows.entries()) {
    if (row.length !== plan.features) {
      throw new AskError(`sample ${n + 1} has ${row.length} values, the model has ${plan.features} features`);
    }
    for (let i = 0; i < plan.features; i++) {
      if (!Number.isFinite(row[i])) throw new AskError(`sample ${n + 1}: ${featureName(plan, i)} is not a number`);
    }
  }
  return rows;
}

const short = (value: number) => String(Number(value.toPrecision(6)));

/** Why some samples lie outside the plan's box, or null. Outside it, a value can overflow without a sign. */
export function outside(rows: readonly ArrayLike<number>[], plan: Plan): string | null {
  const found = rows.flatMap((row, n) => {
    const i = Array.from(row).findIndex((value, i) => value < plan.low[i]! || value > plan.high[i]!);
    return i < 0 ? [] : [{ n, i, value: row[i]! }];
  });
  const first = found[0];
  if (first === undefined) return null;
  const { n, i, value } = first;
  const many = found.length === 1 ? "one sample lies" : `${found.length} of ${rows.length} samples lie`;
  return (
    `${many} outside the range the model was fitted for: in sample ${n + 1}, ${featureName(plan, i)} is ${value}, ` +
    `wanted ${short(plan.low[i]!)} to ${short(plan.high[i]!)}`
  );
}

/** A sample as it is encoded: moved to the box's edge where it lies outside, and shifted. */
export function encodable(row: ArrayLike<number>, plan: Plan): Float64Array {
  return Float64Array.from({ length: plan.features }, (_, i) => {
    const shifted = Math.min(Math.max(row[i]!, plan.low[i]!), plan.high[i]!) - shiftOf(plan, i);
    // Denormal numbers take longer, which a server could measure; what is lost is far below the noise.
    return Math.abs(shifted) < 2 ** (-40 - plan.scaleIn) ? 0 : shifted;
  });
}
