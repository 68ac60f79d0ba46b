/** The layouts this client speaks, by name: what messages hold, and where the logits of a reply lie. */
import { batch } from "./batch.ts";
import { chainRefusal, modulusBits, product } from "./chain.ts";
import type { Shape } from "./message.ts";
import { AskError } from "./errors.ts";
import { lift } from "./lift.ts";
import type { Plan } from "./plan.ts";
import type { SecretKey } from "./seal.ts";

/** The array that a message consists of, words of `width` bytes, and how many bytes come before it. */
export interface Form {
  readonly shape: Shape;
  readonly width: number;
  readonly lead?: number;
}

export interface Layout {
  readonly name: string;
  request(plan: Plan): Form;
  reply(plan: Plan): Form;
  /** log2 of the scale of a reply. */
  scaleOut(plan: Plan): number;
  /** Why a plan can't be of this layout, or null. */
  refusal(plan: Plan): string | null;
  /** The payload of a request for shifted samples, at most `plan.perRequest` of them; the key is fresh. */
  encrypt(key: SecretKey, samples: readonly Float64Array[], plan: Plan): Promise<Uint8Array<ArrayBuffer>>;
  /** The logits of the first `count` samples of a reply, and whether it is plausible: no wrong key, nothing damaged. */
  decrypt(key: SecretKey, payload: Uint8Array<ArrayBuffer>, plan: Plan, count: number): { plausible: boolean; logits: Float64Array[] };
}

const LAYOUTS: readonly Layout[] = [lift, batch];

/** The names of the layouts, from few questions to many. */
export const layoutNames: readonly string[] = LAYOUTS.map((layout) => layout.name);

const FEW = 16; // questions for which small messages matter more than many answers in one

/** The best of the offered layouts for so many questions, or undefined where none is spoken here. */
export function preferred(offered: readonly string[], questions: number): string | undefined {
  const spoken = layoutNames.filter((name) => offered.includes(name));
  return questions <= FEW ? spoken[0] : spoken.at(-1);
}

/** The layout of a plan; raises AskError for a plan that it can't carry out safely. */
export function layoutOf(plan: Plan): Layout {
  const found = LAYOUTS.find((layout) => layout.name === plan.layout);
  if (found === undefined) throw new AskError(`this page does not speak layout ${plan.layout}; it speaks ${layoutNames.join(", ")}`);
  const why = unsafe(plan, found) ?? found.refusal(plan);
  if (why !== null) throw new AskError(`the server's plan is refused: ${why}; nothing was sent`);
  return found;
}

const LARGEST_MESSAGE = 2 ** 31;

/** Why a plan is insecure or could overflow, or null. */
function unsafe(plan: Plan, layout: Layout): string | null {
  const { primes } = plan.chain;
  const why = chainRefusal(plan.chain);
  if (why !== null) return why;
  // Overflow is silent, so a plan that could overflow must not be used.
  const scale = layout.scaleOut(plan);
  if (!(Number(product(primes)) >= 2 * plan.bound * 2 ** scale) || scale >= modulusBits(primes)) return "it could overflow";
  const sizes = [layout.request(plan), layout.reply(plan)].map((form) => form.shape.reduce((a, b) => a * b, form.width));
  return Math.max(...sizes) > LARGEST_MESSAGE ? "its messages are too large" : null;
}
