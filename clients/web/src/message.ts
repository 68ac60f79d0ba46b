/**
 * Requests and replies as bytes: the messages of `quad4fhe.he.message`.
 *
 *     magic 8 | version u16 | kind u8 | 0 u8 | plan hash 32 | SHA-256 of the request 32, zeros in a request | payload
 *     SHA-256 of all before it 32
 */
import { AskError } from "./errors.ts";
import type { Form } from "./layouts.ts";

const MAGIC = [0x51, 0x34, 0x46, 0x48, 0x45, 0x0d, 0x0a, 0x1a];
const VERSION = 2;
const [REQUEST, REPLY] = [1, 2];
const [PLAN, ANSWERS] = [12, 44]; // where they begin
export const HEADER_BYTES = 76;
export const DIGEST_BYTES = 32;

export type Shape = readonly [rows: number, polynomials: number, primes: number, ring: number];

/** The bytes of a request. */
export async function writeRequest(plan: string, form: Form, data: Uint8Array): Promise<Uint8Array<ArrayBuffer>> {
  const payload = payloadBytes(form);
  if (data.byteLength !== payload) throw new AskError("the message does not have the shape of this plan");
  const out = new Uint8Array(HEADER_BYTES + payload + DIGEST_BYTES);
  out.set(MAGIC);
  out.set([VERSION, 0, REQUEST!, 0], MAGIC.length);
  out.set(fromHex(plan), PLAN!);
  out.set(data, HEADER_BYTES);
  out.set(await sha256(out.subarray(0, HEADER_BYTES + payload)), HEADER_BYTES + payload);
  return out;
}

/** The SHA-256 at the end of a request, by which its reply names it. */
export function digestOf(request: Uint8Array): string {
  return toHex(request.subarray(-DIGEST_BYTES));
}

/** The payload of the reply to the request with this SHA-256; refuses every byte that is not as it must be. */
export async function readReply(data: ArrayBuffer, plan: string, request: string, form: Form): Promise<Uint8Array<ArrayBuffer>> {
  const length = HEADER_BYTES + payloadBytes(form) + DIGEST_BYTES;
  if (data.byteLength !== length) refuse(`it has ${data.byteLength} bytes, not ${length}`);
  const bytes = new Uint8Array(data);
  if (MAGIC.some((byte, i) => bytes[i] !== byte)) refuse("it is not a quad4fhe message");
  if (bytes[8] !== VERSION || bytes[9] !== 0) refuse(`it is a message of another version, not ${VERSION}`);
  if (bytes[10] !== REPLY || bytes[11] !== 0) refuse("it is not a reply");
  if (!same(bytes.subarray(PLAN, ANSWERS), fromHex(plan))) refuse("it is of another plan");
  if (!same(bytes.subarray(ANSWERS, HEADER_BYTES), fromHex(request))) refuse("it answers another request");
  const digest = await sha256(bytes.subarray(0, length - DIGEST_BYTES));
  if (!same(digest, bytes.subarray(length - DIGEST_BYTES))) refuse("it was damaged on the way");
  return new Uint8Array(data.slice(HEADER_BYTES, length - DIGEST_BYTES));
}

export function payloadBytes(form: Form): number {
  return (form.lead ?? 0) + form.shape.reduce((product, size) => product * size, form.width);
}

function fromHex(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
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
