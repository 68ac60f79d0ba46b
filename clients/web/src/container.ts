/**
 * Requests and replies as bytes: the container of `quad4fhe.he.container`.
 *
 *     magic 8 | version u16 | kind u8 | bytes per residue u8 | plan hash 32 | model hash 32 | key id 16 | nonce 16
 *     shape 4 x u32 | payload length u64 | payload: residues, little-endian, C order | SHA-256 of all before it
 */
import { AskError } from "./errors.ts";
import type { Form } from "./layouts.ts";

const MAGIC = [0x51, 0x34, 0x46, 0x48, 0x45, 0x0d, 0x0a, 0x1a];
const VERSION = 1;
export const [REQUEST, REPLY, KEYS] = [1, 2, 3] as const;
const IDENTITY = [12, 108] as const; // plan hash, model hash, key id, nonce
export const HEADER_BYTES = 132;
const DIGEST_BYTES = 32;

export type Shape = readonly [rows: number, polynomials: number, primes: number, ring: number];

/** What a request and its reply share. */
export interface Identity {
  readonly plan: string;
  readonly model: string;
  readonly key: Uint8Array;
  readonly nonce: Uint8Array;
}

/** The bytes of a request or of keys. */
export async function write(
  kind: typeof REQUEST | typeof KEYS,
  identity: Identity,
  form: Form,
  data: Uint8Array,
): Promise<Uint8Array<ArrayBuffer>> {
  const payload = payloadBytes(form);
  if (data.byteLength !== payload) throw new AskError("the message does not have the shape of this plan");
  const out = new Uint8Array(HEADER_BYTES + payload + DIGEST_BYTES);
  const view = new DataView(out.buffer);
  out.set(MAGIC);
  view.setUint16(8, VERSION, true);
  view.setUint8(10, kind);
  view.setUint8(11, form.width);
  out.set(bytesOf(identity), IDENTITY[0]);
  form.shape.forEach((size, i) => view.setUint32(108 + 4 * i, size, true));
  view.setBigUint64(124, BigInt(payload), true);
  out.set(data, HEADER_BYTES);
  out.set(await sha256(out.subarray(0, HEADER_BYTES + payload)), HEADER_BYTES + payload);
  return out;
}

/** The payload of a reply to the request with this identity; refuses every byte that is not as it must be. */
export async function readReply(data: ArrayBuffer, identity: Identity, form: Form): Promise<Uint8Array<ArrayBuffer>> {
  const payload = payloadBytes(form);
  const length = HEADER_BYTES + payload + DIGEST_BYTES;
  if (data.byteLength !== length) refuse(`it has ${data.byteLength} bytes, not ${length}`);
  const bytes = new Uint8Array(data);
  const view = new DataView(data);
  if (MAGIC.some((byte, i) => bytes[i] !== byte) || view.getUint16(8, true) !== VERSION) refuse("it is not a container");
  if (bytes[10] !== REPLY || bytes[11] !== form.width) refuse("it is not a reply");
  if (!same(bytes.subarray(...IDENTITY), bytesOf(identity))) refuse("it answers another request");
  if (form.shape.some((size, i) => view.getUint32(108 + 4 * i, true) !== size)) refuse("its shape is not the plan's");
  const digest = await sha256(bytes.subarray(0, length - DIGEST_BYTES));
  if (!same(digest, bytes.subarray(length - DIGEST_BYTES))) refuse("it was damaged on the way");
  return new Uint8Array(data.slice(HEADER_BYTES, HEADER_BYTES + payload));
}

export function payloadBytes(form: Form): number {
  return (form.lead ?? 0) + form.shape.reduce((product, size) => product * size, form.width);
}

export function fromHex(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function bytesOf(identity: Identity): Uint8Array {
  const out = new Uint8Array(IDENTITY[1] - IDENTITY[0]);
  out.set(fromHex(identity.plan), 0);
  out.set(fromHex(identity.model), 32);
  out.set(identity.key, 64);
  out.set(identity.nonce, 80);
  return out;
}

function same(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

export async function sha256(data: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", data));
}

function refuse(why: string): never {
  throw new AskError(`the reply is not trusted: ${why}; nothing of it is shown`);
}
