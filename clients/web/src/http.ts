/** Messages to a server over HTTP: the token, deadlines, limits, and asking again where that gives the same answer. */
import { AskError, TokenError } from "./errors.ts";
import { readJson } from "./plan.ts";

export interface Service {
  readonly url: string;
  readonly token?: string | undefined;
  readonly fetch?: typeof fetch | undefined;
  readonly signal?: AbortSignal | undefined;
}

const AGAIN = new Set([408, 429, 503]);
const ATTEMPTS = 6;
const LONGEST_WAIT = 30; // seconds a server may ask for
const DEADLINE = 120_000; // milliseconds for one message
const LARGE_BODY = 2 ** 22; // bytes
const PLAN_BYTES = 2 ** 24;
const ERROR_BYTES = 2 ** 16;

/** GET JSON. */
export async function getJson(service: Service, path: string): Promise<{ json: unknown; headers: Headers }> {
  const { data, headers } = await send(service, path, { method: "GET" }, PLAN_BYTES);
  try {
    return { json: readJson(new TextDecoder().decode(data)), headers };
  } catch {
    throw new AskError(`${service.url} answers with something that is not a quad4fhe server's; check the address`);
  }
}

/** GET at most `most` bytes. */
export async function getBytes(service: Service, path: string, most: number): Promise<ArrayBuffer> {
  return (await send(service, path, { method: "GET" }, most)).data;
}

/** POST one message and read the reply's bytes, at most `most` of them. */
export async function post(service: Service, path: string, body: Uint8Array<ArrayBuffer>, most: number): Promise<ArrayBuffer> {
  const headers = { "Content-Type": "application/octet-stream" };
  // Chromium reads an array on the page's own thread, 0.3 s of CPU for 21 MB, in which no frame is drawn; a Blob beside it.
  const given = body.length > LARGE_BODY ? new Blob([body]) : body;
  return (await send(service, path, { method: "POST", body: given, headers }, most)).data;
}

async function send(service: Service, path: string, init: RequestInit, most: number): Promise<{ data: ArrayBuffer; headers: Headers }> {
  const target = new URL(path, base(service.url));
  const headers = new Headers(init.headers);
  if (service.token) {
    if (target.protocol !== "https:" && !local(target.hostname)) {
      throw new AskError(`a token would travel to ${target.hostname} in the clear; use https`);
    }
    headers.set("Authorization", `Bearer ${service.token}`);
  }
  for (let attempt = 1; ; attempt++) {
    const signal = AbortSignal.any([AbortSignal.timeout(DEADLINE), ...(service.signal ? [service.signal] : [])]);
    const options: RequestInit = {
      ...init, headers, signal, credentials: "omit", redirect: "error", cache: "no-store", referrerPolicy: "no-referrer",
    };
    let [answer, data]: [Response | undefined, ArrayBuffer | undefined] = [undefined, undefined];
    try {
      answer = await (service.fetch ?? fetch)(target, options);
      data = await bounded(answer, answer.ok ? most : ERROR_BYTES);
    } catch (error) {
      if (error instanceof AskError) throw error;
      if (service.signal?.aborted) throw new AskError("stopped; what was sent already stays encrypted");
      throw new AskError(`the server at ${target.origin} can't be reached; is it running, and is the address right?`);
    }
    if (answer.ok) return { data, headers: answer.headers };
    if (!AGAIN.has(answer.status) || attempt === ATTEMPTS) throw refusal(answer.status, data, service);
    const asked = Number(answer.headers.get("retry-after") ?? 1);
    const seconds = Number.isFinite(asked) ? Math.min(Math.max(asked, 0), LONGEST_WAIT) : 1;
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

/** The bytes of an answer. It is read piece by piece, because its length, or what it unpacks to, is the server's choice. */
async function bounded(answer: Response, most: number): Promise<ArrayBuffer> {
  const reader = answer.body?.getReader();
  const parts: Uint8Array[] = [];
  let length = 0;
  for (let part = await reader?.read(); part?.value !== undefined; part = await reader!.read()) {
    length += part.value.length;
    if (length > most) {
      void reader!.cancel().catch(() => undefined);
      throw new AskError(`the server sent more than the ${most} bytes it may; nothing of it is used`);
    }
    parts.push(part.value);
  }
  const out = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out.buffer;
}

function refusal(status: number, data: ArrayBuffer, service: Service): AskError {
  if (status === 401) {
    return new TokenError(
      service.token ? "the server does not know this token; ask its operator for another" : "the server asks for a token; enter the one its operator gave you",
    );
  }
  let said = "";
  try {
    const { error } = JSON.parse(new TextDecoder().decode(data)) as { error?: unknown };
    if (typeof error === "string") said = `: ${error.slice(0, 300)}`;
  } catch {
    // An answer without a reason is reported by its status alone.
  }
  return new AskError(`the server answered ${status}${said}`);
}

function base(url: string): string {
  return url === "" ? location.origin : url.endsWith("/") ? url : `${url}/`;
}

function local(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
}
