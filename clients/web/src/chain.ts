/** Rings and chains: which primes exist, and how many bits are secure. The rules are those of `quad4fhe.planning.chains`. */

/**
 * A ring of degree N and the primes of its ciphertexts. SEAL asks for one more prime as soon as there are two (`everyPrime`);
 * nothing here is ever a sample modulo it.
 */
export interface Chain {
  readonly ring: number;
  readonly primes: readonly bigint[];
}

/** The most bits of a modulus that are 128-bit secure, by ring, for keys with ternary coefficients (ePrint 2024/463). */
const SECURE_BITS: Readonly<Record<number, number>> = { 1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868 };
/** SEAL's own table counts every prime, used or not. */
const SEAL_BITS: Readonly<Record<number, number>> = { 1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881 };
const MOST_PRIMES = 55;

/** All primes in SEAL's order: its own, the smallest of the ring, comes last. */
export function everyPrime({ ring, primes }: Chain): readonly bigint[] {
  return primes.length === 1 ? primes : [...primes, smallestPrime(ring)];
}

/** Why a chain can't be used, or null. */
export function chainRefusal(chain: Chain): string | null {
  const { ring, primes } = chain;
  const [secure, most] = [SECURE_BITS[ring], SEAL_BITS[ring]];
  if (secure === undefined || most === undefined) return `a ring of ${ring} is not one of this library's`;
  if (primes.length === 0 || primes.length > MOST_PRIMES) return `a chain has 1 to ${MOST_PRIMES} primes, not ${primes.length}`;
  const every = everyPrime(chain);
  if (new Set(every).size < every.length) return "the primes of its chain are not distinct";
  const odd = primes.find((q) => q % BigInt(2 * ring) !== 1n || !isPrime(q));
  if (odd !== undefined) return `${odd} is not a prime of its ring`;
  // SEAL's own prime has no sample: it does not count for security, only for SEAL.
  const bits = modulusBits(primes);
  if (bits > secure) return `${bits} bits of modulus are not secure in a ring of ${ring}`;
  if (modulusBits(every) > most) return `SEAL refuses ${modulusBits(every)} bits in a ring of ${ring}`;
  return null;
}

/** The product of some primes. */
export function product(primes: readonly bigint[]): bigint {
  return primes.reduce((sofar, q) => sofar * q, 1n);
}

/** How many bits the product has. */
export function modulusBits(primes: readonly bigint[]): number {
  return product(primes).toString(2).length;
}

function smallestPrime(ring: number): bigint {
  const step = BigInt(2 * ring);
  let candidate = step + 1n;
  while (!isPrime(candidate)) candidate += step;
  return candidate;
}

/** Miller-Rabin with the bases that decide every number below 2^64. */
function isPrime(n: bigint): boolean {
  if (n < 2n) return false;
  const bases = [2n, 3n, 5n, 7n, 11n, 13n, 17n, 19n, 23n, 29n, 31n, 37n];
  const divisor = bases.find((p) => n % p === 0n);
  if (divisor !== undefined) return n === divisor;
  let [odd, twos] = [n - 1n, 0];
  for (; odd % 2n === 0n; odd /= 2n) twos++;
  return bases.every((base) => {
    let x = power(base, odd, n);
    for (let i = 0; i < twos; i++, x = (x * x) % n) if (x === n - 1n || (i === 0 && x === 1n)) return true;
    return false;
  });
}

function power(base: bigint, exponent: bigint, n: bigint): bigint {
  let [out, square] = [1n, base % n];
  for (let left = exponent; left > 0n; left /= 2n, square = (square * square) % n) if (left % 2n === 1n) out = (out * square) % n;
  return out;
}
