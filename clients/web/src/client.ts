/** The side that holds the samples: encrypts them, decrypts logits, and shows nothing of a reply that does not fit. */
import type { MainModule } from "node-seal";

import { AskError } from "./errors.ts";
import { type Layout, layoutOf } from "./layouts.ts";
import { DIGEST_BYTES, digestOf, HEADER_BYTES, payloadBytes, readReply, writeRequest } from "./message.ts";
import type { Plan, Reliable } from "./plan.ts";
import { checked, encodable } from "./samples.ts";
import { Context, SecretKey } from "./seal.ts";

export interface Request {
  readonly body: Uint8Array<ArrayBuffer>;
  /** The SHA-256 of the request, by which its reply names it. */
  readonly id: string;
  readonly samples: number;
}

export interface Answer {
  /** The class that was decided, or 0 and 1 where the model has one output. */
  readonly decision: number;
  readonly logits: Float64Array;
  /** The gap between the two largest logits, or the size of the only one. */
  readonly margin: number;
  /** Whether the margin exceeds what encryption can change. */
  readonly certain: boolean;
  /** Whether the decision is reliable by the fit's threshold; null where it has none. */
  readonly reliable: boolean | null;
}

/** Every request has a fresh secret key, which is forgotten with its reply. */
export class Client {
  readonly plan: Plan;
  readonly #layout: Layout;
  readonly #context: Context;
  readonly #open = new Map<string, { key: SecretKey; samples: number }>();

  constructor(seal: MainModule, plan: Plan) {
    this.plan = plan;
    this.#layout = layoutOf(plan);
    this.#context = new Context(seal, plan.chain);
  }

  /** The bytes of a reply. */
  get replyBytes(): number {
    return HEADER_BYTES + payloadBytes(this.#layout.reply(this.plan)) + DIGEST_BYTES;
  }

  /** One request for at most `plan.perRequest` samples; values outside the plan's box are moved to its edge. */
  async encrypt(rows: readonly ArrayLike<number>[]): Promise<Request> {
    const { plan } = this;
    if (rows.length > plan.perRequest) throw new AskError(`a request holds ${plan.perRequest} samples, not ${rows.length}`);
    const samples = checked(rows, plan).map((row) => encodable(row, plan));
    const key = await SecretKey.fresh(this.#context);
    try {
      const payload = await this.#layout.encrypt(key, samples, plan);
      const body = await writeRequest(plan.sha256, this.#layout.request(plan), payload);
      const id = digestOf(body);
      this.#open.set(id, { key, samples: rows.length });
      return { body, id, samples: rows.length };
    } catch (error) {
      key.forget();
      throw error;
    }
  }

  /** The answers in a reply to the request of this id; each reply is read once. */
  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    const { plan } = this;
    const open = this.#open.get(id);
    if (open === undefined) throw new AskError("the reply answers no open request of this page; each reply is read once");
    const payload = await readReply(reply, plan.sha256, id, this.#layout.reply(plan));
    const { plausible, logits } = this.#layout.decrypt(open.key, payload, plan, open.samples);
    if (!plausible) {
      throw new AskError("the reply does not decrypt to values this plan can produce: wrong key, or damaged on the way");
    }
    this.#open.delete(id);
    open.key.forget();
    return logits.map((each) => answerOf(each, plan));
  }

  /** Forget the keys of all open requests: their replies can't be read any more. */
  forget(): void {
    for (const { key } of this.#open.values()) key.forget();
    this.#open.clear();
  }

  /** Free everything; the client can't be used any more. */
  end(): void {
    this.forget();
    this.#context.free();
  }
}

function answerOf(logits: Float64Array, plan: Plan): Answer {
  const sorted = Array.from(logits).sort((a, b) => b - a);
  const binary = logits.length === 1;
  const margin = binary ? Math.abs(logits[0]!) : sorted[0]! - sorted[1]!;
  const decision = binary ? Number(logits[0]! > 0) : logits.indexOf(sorted[0]!);
  return { decision, logits, margin, certain: margin > plan.error, reliable: reliability(logits, margin, plan.reliable) };
}

function reliability(logits: Float64Array, margin: number, rule: Reliable | null): boolean | null {
  if (rule === null) return null;
  if (rule.threshold === null) return false;
  return relativeMargin(logits, margin, rule.power) >= rule.threshold;
}

/** As `quad4fhe.proof.guarantee.relative`: 0 where the norm is 0 or beyond what a double holds. */
function relativeMargin(logits: Float64Array, margin: number, power: number): number {
  if (power === 0) return margin;
  if (logits.length < 3) return 0;
  const mean = logits.reduce((sum, each) => sum + each, 0) / logits.length;
  const norm = Math.sqrt(logits.reduce((sum, each) => sum + (each - mean) ** 2, 0));
  return norm > 0 && Number.isFinite(norm) ? margin / norm ** power : 0;
}
