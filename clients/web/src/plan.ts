/**
 * The plan of a model: everything client and server share. Read from the server's JSON and checked like Python does.
 *
 * The hash of a plan can't be computed here (JSON writes numbers differently in Python and JavaScript), so the server
 * sends it; every request and reply carries it.
 */
import type { Chain } from "./chain.ts";
import { AskError } from "./errors.ts";

export interface Plan {
  readonly layout: string;
  readonly sha256: string;
  readonly modelId: string;
  readonly chain: Chain;
  readonly features: number;
  readonly outputs: number;
  readonly perRequest: number;
  readonly scaleIn: number;
  /** log2 of the scales, and what is particular to the layout, which checks both. */
  readonly scales: Readonly<Record<string, unknown>>;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly low: readonly number[];
  readonly high: readonly number[];
  /** No logit exceeds this anywhere in the box; every slot of a reply is held to it. */
  readonly bound: number;
  /** What encryption can change in the difference of two logits. */
  readonly error: number;
  /** Which decisions are reliable, where the fit says so. */
  readonly reliable: Reliable | null;
  readonly featureNames: readonly string[] | null;
  readonly classNames: readonly string[] | null;
  /** The SHA-256 of the model's feature part, which computes the features from raw inputs; null where it has none. */
  readonly featurePart: string | null;
  /** Whether samples outside the box are moved to its edge unless the user says otherwise. */
  readonly clip: boolean;
}

/**
 * A decision is reliable if its relative margin, the margin divided by the norm of the centred logits to the `power`, is
 * at least `threshold`; without a threshold none is.
 */
export interface Reliable {
  readonly level: number;
  readonly threshold: number | null;
  readonly power: number;
}

const LARGEST_NUMBER = 2 ** 200; // no number in the plan of a real model comes near

/** JSON in which whole numbers beyond 2^53 are text, because JavaScript's numbers would round them. */
export function readJson(text: string): unknown {
  return JSON.parse(text.replace(/(?<=[[:,\s])(\d{16,})(?=[,\]}\s])/g, '"$1"'));
}

/** Read the answer of `GET /models/ID/plan`; refuses a plan that is insecure, could overflow, or can't be right. */
export function readPlan(answer: unknown, sha256: string): Plan {
  const json = record(answer, "the plan");
  const shape = record(json["shape"], "the shape");
  const chain = record(json["chain"], "the chain");
  const scales = record(json["scales"], "the scales");
  const domain = record(json["domain"], "the domain");
  const error = record(json["error"], "the error");
  if (!/^[0-9a-f]{64}$/.test(sha256)) refuse("its hash is not one");
  if (json["version"] !== 2) refuse(`it is of version ${String(json["version"])}, and this page reads version 2`);
  const plan: Plan = {
    layout: text(json["layout"], "layout"),
    sha256,
    modelId: text(json["model_id"], "model id"),
    chain: {
      ring: planWhole(chain["ring"], 1, 32768, "ring"),
      primes: list(chain["primes"], "primes").map(prime),
    },
    features: planWhole(shape["features"], 1, 2 ** 16, "features"),
    outputs: planWhole(shape["outputs"], 1, 2 ** 12, "outputs"),
    perRequest: planWhole(json["per_request"], 1, 2 ** 16, "samples of a request"),
    scaleIn: planWhole(scales["x"], 0, 100, "scales"),
    scales,
    settings: record(json["settings"], "the settings"),
    low: numbers(domain["low"], "box"),
    high: numbers(domain["high"], "box"),
    bound: planNumber(domain["bound"], "bound"),
    error: planNumber(error["bound"], "error"),
    reliable: reliability(json["promise"]),
    featureNames: names(json["feature_names"]),
    classNames: names(json["class_names"]),
    featurePart: json["feature_part"] === undefined || json["feature_part"] === null ? null : text(json["feature_part"], "feature part"),
    clip: json["clip"] === true,
  };
  check(plan);
  return plan;
}

function check(plan: Plan): void {
  if (!/^[0-9a-f]{64}$/.test(plan.modelId)) refuse("its model id is not one");
  if (plan.featurePart !== null && !/^[0-9a-f]{64}$/.test(plan.featurePart)) refuse("its feature part's hash is not one");
  if (plan.low.length !== plan.features || plan.high.length !== plan.features) refuse("its box has another number of features");
  if (plan.low.some((low, i) => low > plan.high[i]!)) refuse("its box is empty");
  if (!(plan.bound > 0) || !(plan.error >= 0)) refuse("its bound or error is not positive");
  for (const [found, wanted] of [[plan.featureNames, plan.features], [plan.classNames, Math.max(plan.outputs, 2)]] as const) {
    if (found !== null && found.length !== wanted) refuse(`it has ${found.length} names for ${wanted} features or classes`);
  }
}

/** The largest size of a shifted feature anywhere in the box. */
export function reachOf(plan: Plan, i: number): number {
  const shift = shiftOf(plan, i);
  return Math.max(plan.high[i]! - shift, shift - plan.low[i]!);
}

/** What the client takes off feature i before it encodes it: the point of the box nearest to zero. */
export function shiftOf(plan: Plan, i: number): number {
  const [low, high] = [plan.low[i]!, plan.high[i]!];
  return low > 0 ? low : high < 0 ? high : 0;
}

function reliability(value: unknown): Plan["reliable"] {
  if (value === null || value === undefined) return null;
  const promise = record(value, "the promise about new inputs");
  if (promise["reliable"] === null) return null;
  const found = record(promise["reliable"], "the margin of reliable decisions");
  const [level, power] = ["level", "power"].map((name) => planNumber(found[name], name));
  const threshold = found["threshold"] === null ? null : planNumber(found["threshold"], "threshold");
  if ((threshold ?? 0) < 0 || power! < 0 || power! > 2) refuse("its margin of reliable decisions can't be right");
  return { level: level!, threshold, power: power! };
}

function names(value: unknown): readonly string[] | null {
  return value === null || value === undefined ? null : list(value, "names").map((name) => text(name, "names"));
}

function refuse(why: string): never {
  throw new AskError(`the server's plan is refused: ${why}; nothing was sent`);
}

function record(value: unknown, name: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) refuse(`${name} is missing`);
  return value as Record<string, unknown>;
}

function list(value: unknown, name: string): unknown[] {
  if (!Array.isArray(value)) refuse(`${name} is not a list`);
  return value;
}

function text(value: unknown, name: string): string {
  if (typeof value !== "string") refuse(`${name} is not text`);
  return value;
}

export function planNumber(value: unknown, name: string): number {
  if (typeof value !== "number" || !(Math.abs(value) < LARGEST_NUMBER)) refuse(`${name} is not a number`);
  return value;
}

function numbers(value: unknown, name: string): readonly number[] {
  return list(value, name).map((each) => planNumber(each, name));
}

/** A prime; the largest are beyond what a number holds, so they come as text (`readJson`). */
function prime(value: unknown): bigint {
  const found = typeof value === "string" && /^\d{1,20}$/.test(value) ? BigInt(value) : BigInt(planWhole(value, 2, 2 ** 53, "primes"));
  if (found >= 2n ** 60n) refuse("primes can't be so large");
  return found;
}

export function planWhole(value: unknown, least: number, most: number, name: string): number {
  const found = planNumber(value, name);
  if (!Number.isInteger(found) || found < least || found > most) refuse(`${name} can't be ${found}`);
  return found;
}
