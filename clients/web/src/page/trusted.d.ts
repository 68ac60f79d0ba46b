/** Trusted types, which TypeScript's library does not have yet. */
interface TrustedTypePolicy {
  createScriptURL(url: string): object;
}
declare var trustedTypes:
  | { createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): TrustedTypePolicy }
  | undefined;
