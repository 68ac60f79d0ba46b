/** Raised for everything that goes wrong on purpose; the message is one sentence for the person who asks. */
export class AskError extends Error {
  override name = "AskError";
}

/** The server asks for a token, or does not know the one it got. */
export class TokenError extends AskError {}

/** The text of anything that was thrown. SEAL's WebAssembly exceptions carry an array [type, text]. */
export function messageOf(error: unknown): string {
  const message: unknown = (error as { message?: unknown } | null)?.message;
  if (Array.isArray(message)) return message.join(": ");
  return typeof message === "string" ? message : String(error);
}
