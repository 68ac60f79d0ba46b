/** The side that holds the key: encrypts samples, decrypts logits, and shows nothing of a reply that does not fit. */
import type { MainModule } from "node-seal";

import { HEADER_BYTES, type Identity, KEYS, payloadBytes, readReply, REQUEST, toHex, write } from "./container.ts";
import { AskError } from "./errors.ts";
import { type Layout, layoutOf } from "./layouts.ts";
import type { Plan, Reliable } from "./plan.ts";
import { checked, encodable } from "./samples.ts";
import { SecretKey } from "./seal.ts";

export interface Request {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly id: string;
  readonly samples: number;
}

/** Keys for the server, and the name it keeps them under. */
export interface Keys {
  readonly body: Uint8Array<ArrayBuffer>;
  readonly id: string;
  /** Whether an earlier client may have sent keys of this name: the server may have them. */
  readonly maybeSent: boolean;
}

/** A secret key in the open, and its public name. */
export interface SavedKey {
  readonly id: Uint8Array<ArrayBuffer>;
  readonly secret: Uint8Array<ArrayBuffer>;
}

export interface Answer {
  /** The class that was decided, or 0 and 1 where the model has one output. */
  readonly decision: number;
  /** The scores; null where the plan's replies tell decisions only. */
  readonly scores: Scores | null;
}

/** What a reply tells beside the decision. */
export interface Scores {
  readonly logits: Float64Array;
  /** The gap between the two largest logits, or the size of the only one. */
  readonly margin: number;
  /** Whether the margin exceeds what encryption can change. */
  readonly certain: boolean;
  /** Whether the decision is reliable by the fit's threshold; null where it has none. */
  readonly reliable: boolean | null;
}

export class Client {
  readonly plan: Plan;
  readonly #layout: Layout;
  readonly #key: SecretKey;
  readonly #keyId: Uint8Array<ArrayBuffer>;
  readonly #restored: boolean;
  #keys: Promise<Keys | null> | undefined;
  readonly #open = new Map<string, { identity: Identity; samples: number }>();

  /** With a fresh key, or with the one that `save` returned earlier for the same plan. */
  constructor(seal: MainModule, plan: Plan, saved?: SavedKey) {
    this.plan = plan;
    this.#layout = layoutOf(plan);
    this.#key = new SecretKey(seal, plan.chain, saved?.secret);
    this.#restored = saved !== undefined;
    this.#keyId = saved === undefined ? crypto.getRandomValues(new Uint8Array(16)) : saved.id.slice();
  }

  /** The key for a later client of this plan. Whoever has it can decrypt everything that was asked with it. */
  save(): SavedKey {
    return { id: this.#keyId.slice(), secret: this.#key.save() };
  }

  /** The most bytes a reply can have. */
  get replyBytes(): number {
    return HEADER_BYTES + payloadBytes(this.#layout.reply(this.plan)) + 32;
  }

  /** What the server must be given before the first request, or null; the same bytes every time. */
  keys(): Promise<Keys | null> {
    this.#keys ??= this.#makeKeys(); // once: two forms of one public key give the secret away
    return this.#keys;
  }

  async #makeKeys(): Promise<Keys | null> {
    const form = this.#layout.keys(this.plan);
    if (form === null) return null;
    const identity = { plan: this.plan.sha256, model: this.plan.modelId, key: this.#keyId, nonce: new Uint8Array(16) };
    const body = await write(KEYS, identity, form, await this.#layout.makeKeys!(this.#key, this.plan));
    return { body, id: toHex(this.#keyId), maybeSent: this.#restored };
  }

  /** One request for at most `plan.perRequest` samples; values outside the plan's box are moved to its edge. */
  async encrypt(rows: readonly ArrayLike<number>[]): Promise<Request> {
    const { plan } = this;
    if (rows.length > plan.perRequest) throw new AskError(`a request holds ${plan.perRequest} samples, not ${rows.length}`);
    const samples = checked(rows, plan).map((row) => encodable(row, plan));
    const nonce = crypto.getRandomValues(new Uint8Array(16));
    const identity = { plan: plan.sha256, model: plan.modelId, key: this.#keyId, nonce };
    const payload = await this.#layout.encrypt(this.#key, samples, plan);
    const body = await write(REQUEST, identity, this.#layout.request(plan), payload);
    const id = nonce.join();
    this.#open.set(id, { identity, samples: rows.length });
    return { body, id, samples: rows.length };
  }

  /** The answers in a reply to the request of this id; each reply is read once. */
  async decide(reply: ArrayBuffer, id: string): Promise<Answer[]> {
    const { plan } = this;
    const open = this.#open.get(id);
    if (open === undefined) throw new AskError("the reply answers no open request of this page; each reply is read once");
    const payload = await readReply(reply, open.identity, this.#layout.reply(plan));
    const { plausible, logits } = this.#layout.decrypt(this.#key, payload, plan, open.samples);
    if (!plausible) {
      throw new AskError("the reply does not decrypt to values this plan can produce: wrong key, or damaged on the way");
    }
    this.#open.delete(id);
    return logits.map((each) => answerOf(each, plan, this.#layout.tellsScores(plan)));
  }

  /** Free the key. */
  forget(): void {
    this.#key.forget();
  }
}

function answerOf(logits: Float64Array, plan: Plan, scored: boolean): Answer {
  const sorted = Array.from(logits).sort((a, b) => b - a);
  const binary = logits.length === 1;
  const margin = binary ? Math.abs(logits[0]!) : sorted[0]! - sorted[1]!;
  const decision = binary ? Number(logits[0]! > 0) : logits.indexOf(sorted[0]!);
  const scores = { logits, margin, certain: margin > plan.error, reliable: reliability(logits, margin, plan.reliable) };
  return { decision, scores: scored ? scores : null };
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
