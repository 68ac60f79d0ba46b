/**
 * The only file that uses node-seal: keys, encryption and decryption, on arrays of residues.
 *
 * All cryptography is SEAL's. Ciphertexts and plaintexts cross as bytes in SEAL's own framing, which is copied from what
 * this very build of SEAL saved, with the few fields changed that differ.
 */
import type { Ciphertext, Decryptor, Encryptor, MainModule, Plaintext, PublicKey, SecretKey as Secret } from "node-seal";
import initialize from "node-seal";

import { type Chain, everyPrime } from "./chain.ts";
import { AskError, messageOf } from "./errors.ts";
import { Masks, SEED_BYTES } from "./seeds.ts";

const CIPHER_HEADER = 113;
const PLAIN_HEADER = 88;

/** Start SEAL from the bytes of its WebAssembly module. */
export async function startSeal(wasmBinary: ArrayBuffer): Promise<MainModule> {
  // Checked here, because its absence would otherwise show after the key was made, as an error nobody understands.
  if (globalThis.crypto?.subtle === undefined) {
    throw new AskError("this browser gives cryptography only to pages that come by https, from this computer, or from its disk");
  }
  try {
    return await initialize({ wasmBinary, locateFile: (name: string) => name });
  } catch (error) {
    throw new AskError(
      `this browser can't run the encryption (${messageOf(error)}); it needs Chrome or Edge 137, Firefox 131, ` +
        "Safari 18.4, or newer",
    );
  }
}

/** A SEAL context for one chain: what needs no secret. Making one takes longer than a question. */
export class Context {
  readonly chain: Chain;
  readonly seal: MainModule;
  readonly context: ReturnType<MainModule["SEALContext"]["prototype"]["copy"]>;
  /** node-seal's encryptor asks for a public key, and uses none: this is of a secret that nothing was encrypted with. */
  readonly #unused: PublicKey;
  readonly #encoder: InstanceType<MainModule["CKKSEncoder"]>;
  readonly #evaluator: InstanceType<MainModule["Evaluator"]>;
  readonly #plain: Plaintext;
  readonly #cipher: Ciphertext;
  readonly #cipherHeader: Uint8Array;
  readonly #plainHeader: Uint8Array;

  constructor(seal: MainModule, chain: Chain) {
    this.chain = chain;
    this.seal = seal;
    const every = everyPrime(chain);
    const moduli = seal.vecFromArrayModulus(every.map((q) => new seal.Modulus(q)));
    const parameters = new seal.EncryptionParameters(seal.SchemeType.ckks);
    parameters.setPolyModulusDegree(chain.ring);
    parameters.setCoeffModulus(moduli);
    this.context = new seal.SEALContext(parameters, every.length > 1, seal.SecLevelType.tc128);
    moduli.delete();
    parameters.delete();
    if (!this.context.parametersSet()) throw new AskError("SEAL refuses this plan's parameters; nothing was sent");
    this.#encoder = new seal.CKKSEncoder(this.context);
    this.#evaluator = new seal.Evaluator(this.context);
    const generator = new seal.KeyGenerator(this.context);
    this.#unused = generator.createPublicKey();
    this.#plain = new seal.Plaintext();
    this.#cipher = new seal.Ciphertext();
    this.#encoder.encode(new Float64Array([1]), 2 ** 10, this.#plain);
    const secret = generator.secretKey();
    const encryptor = this.encryptor(secret);
    encryptor.encryptSymmetric(this.#plain, this.#cipher);
    this.#cipherHeader = this.#saved(this.#cipher).slice(0, CIPHER_HEADER);
    this.#plainHeader = this.#saved(this.#plain).slice(0, PLAIN_HEADER);
    for (const done of [encryptor, secret, generator]) done.delete();
  }

  /** What encrypts under a secret. */
  encryptor(secret: Secret): Encryptor {
    return new this.seal.Encryptor(this.context, this.#unused, secret);
  }

  /**
   * Whole coefficients (N) as doubles to residues in NTT form, (primes, N); SEAL transforms them.
   *
   * The rest c - q floor(c / q) is exact for |c| < 2^52: a quotient that is not whole differs from every whole number by
   * at least |1 / c| of itself, which is more than rounding changes. Coefficients up to 2^62 are reduced in two steps, the
   * part above 2^20 first; then what is left is below 2^52, because primes are below 2^32. The operator % takes more than
   * twice as long for a zero, which would tell a server with a box of its choice whether a feature lies at the edge.
   */
  residues(coefficients: Float64Array): Uint32Array<ArrayBuffer> {
    const { ring, primes } = this.chain;
    const count = primes.length * ring;
    const words = new Uint32Array(4 * count); // two polynomials, because SEAL takes no fewer; 64 bits a residue
    for (const [place, q] of primes.map(Number).entries()) {
      for (let i = 0, at = 2 * place * ring; i < ring; i++, at += 2) {
        const high = Math.floor(coefficients[i]! / 2 ** 20);
        const c = (high - q * Math.floor(high / q)) * 2 ** 20 + (coefficients[i]! - high * 2 ** 20);
        words[at] = c - q * Math.floor(c / q);
      }
      words[2 * (count + place * ring)] = 1; // the second polynomial is the constant 1: SEAL refuses a zero
    }
    this.#load(words, 2, 1, false);
    this.#evaluator.cipherTransformToNttInplace(this.#cipher);
    return lowWords(wide(this.#saved(this.#cipher).subarray(CIPHER_HEADER, CIPHER_HEADER + 8 * count)));
  }

  /** SEAL's own encryption of a plaintext given by its residues (primes, N): words (2, primes, N). It must not be sent. */
  encrypt(encryptor: Encryptor, residues: Uint32Array): BigUint64Array<ArrayBuffer> {
    const bytes = new Uint8Array(PLAIN_HEADER + 8 * residues.length);
    bytes.set(this.#plainHeader);
    const view = new DataView(bytes.buffer);
    for (let i = 0; i < residues.length; i++) view.setUint32(PLAIN_HEADER + 8 * i, residues[i]!, true);
    this.#plain.loadFromArray(this.context, bytes);
    encryptor.encryptSymmetric(this.#plain, this.#cipher);
    return wide(this.#saved(this.#cipher).subarray(CIPHER_HEADER));
  }

  /** The slots (N/2) of a ciphertext given by its residues (size, primes, N), each below its prime. */
  decrypt(decryptor: Decryptor, residues: Uint32Array, size: number, scale: number): Float64Array {
    const words = new Uint32Array(2 * residues.length);
    for (let i = 0; i < residues.length; i++) words[2 * i] = residues[i]!;
    this.#load(words, size, scale, true);
    decryptor.decrypt(this.#cipher, this.#plain);
    return this.#encoder.decodeFloat64(this.#plain) as Float64Array;
  }

  /** Residues (primes, N) from NTT form to coefficients; SEAL transforms them. */
  fromNtt(words: BigUint64Array): BigUint64Array<ArrayBuffer> {
    const twice = new BigUint64Array(2 * words.length); // SEAL takes no fewer than two polynomials
    twice.set(words);
    twice.set(words, words.length);
    this.#load(new Uint32Array(twice.buffer), 2, 1, true);
    this.#evaluator.cipherTransformFromNttInplace(this.#cipher);
    return wide(this.#saved(this.#cipher).subarray(CIPHER_HEADER)).slice(0, words.length);
  }

  /** Free what SEAL holds. */
  free(): void {
    for (const held of [this.#plain, this.#cipher, this.#unused, this.#encoder, this.#evaluator]) held.delete();
    this.context.delete();
  }

  #load(words: Uint32Array<ArrayBuffer>, size: number, scale: number, ntt: boolean): void {
    const bytes = new Uint8Array(CIPHER_HEADER + 4 * words.length);
    bytes.set(this.#cipherHeader);
    const view = new DataView(bytes.buffer);
    const count = BigInt(words.length / 2);
    view.setBigUint64(8, BigInt(bytes.length), true);
    view.setUint8(48, ntt ? 1 : 0);
    view.setBigUint64(49, BigInt(size), true);
    view.setFloat64(73, scale, true);
    view.setBigUint64(97, 24n + 8n * count, true);
    view.setBigUint64(105, count, true);
    bytes.set(new Uint8Array(words.buffer), CIPHER_HEADER);
    this.#cipher.loadFromArray(this.context, bytes);
  }

  #saved(held: Plaintext | Ciphertext): Uint8Array {
    return held.saveToArray(this.seal.ComprModeType.none) as Uint8Array;
  }
}

/**
 * The secret key of one request and its public seed. No seed can be passed in, and each encryption takes the next mask.
 *
 * SEAL's own second half is moved to the mask: both forms of one encryption together give away the key, so SEAL's never
 * leaves this class.
 */
export class SecretKey {
  readonly context: Context;
  readonly seed: Uint8Array<ArrayBuffer>;
  readonly #masks: Masks;
  readonly #secret: Secret;
  readonly #encryptor: Encryptor;
  /** The secret modulo the primes, in NTT form. */
  readonly #values: BigUint64Array<ArrayBuffer>;
  #narrow: Uint32Array<ArrayBuffer> | undefined;
  #next = 0;
  #coefficients: Int8Array | undefined;
  #freed = false;

  private constructor(context: Context, seed: Uint8Array<ArrayBuffer>, masks: Masks) {
    const { seal, chain } = context;
    [this.context, this.seed, this.#masks] = [context, seed, masks];
    const generator = new seal.KeyGenerator(context.context);
    this.#secret = generator.secretKey();
    generator.delete();
    const bytes = this.#secret.saveToArray(seal.ComprModeType.none) as Uint8Array;
    this.#values = wide(bytes.subarray(PLAIN_HEADER, PLAIN_HEADER + 8 * chain.primes.length * chain.ring));
    bytes.fill(0);
    this.#encryptor = context.encryptor(this.#secret);
  }

  static async fresh(context: Context): Promise<SecretKey> {
    const seed = crypto.getRandomValues(new Uint8Array(SEED_BYTES));
    return new SecretKey(context, seed, await Masks.of(seed));
  }

  /**
   * The first half (primes, N) of an encryption under the next mask of a plaintext given by its residues, in NTT form;
   * for primes below 2^32.
   */
  async encrypt(residues: Uint32Array): Promise<Uint32Array<ArrayBuffer>> {
    const { ring, primes } = this.context.chain;
    const mask = await this.#masks.narrow(this.#next++, primes, ring);
    const made = lowWords(this.context.encrypt(this.#encryptor, residues));
    const values = (this.#narrow ??= lowWords(this.#values));
    const out = new Uint32Array(mask.length);
    for (const [place, q] of primes.map(Number).entries()) {
      for (let i = place * ring; i < (place + 1) * ring; i++) {
        const turn = made[mask.length + i]! + q - mask[i]!;
        const secret = values[i]!;
        // Below 2^49 and 2^50, so exact in doubles, as in `residues`.
        const high = turn * (secret >>> 16);
        const sum = (high - q * Math.floor(high / q)) * 65536 + turn * (secret & 65535) + made[i]!;
        out[i] = sum - q * Math.floor(sum / q);
      }
    }
    return out;
  }

  /** The first half of an encryption of zero under the next mask, as coefficients (primes, N). */
  async zero(): Promise<BigUint64Array<ArrayBuffer>> {
    const { ring, primes } = this.context.chain;
    const mask = await this.#masks.wide(this.#next++, primes, ring);
    const made = this.context.encrypt(this.#encryptor, new Uint32Array(mask.length));
    const out = new BigUint64Array(mask.length);
    for (const [place, q] of primes.entries()) {
      for (let i = place * ring; i < (place + 1) * ring; i++) {
        out[i] = (made[i]! + (made[mask.length + i]! + q - mask[i]!) * this.#values[i]!) % q;
      }
    }
    return this.context.fromNtt(out);
  }

  /** The slots (N/2) of a ciphertext given by its residues (size, primes, N), each below its prime. */
  decrypt(residues: Uint32Array, size: number, scale: number): Float64Array {
    const decryptor = new this.context.seal.Decryptor(this.context.context, this.#secret);
    try {
      return this.context.decrypt(decryptor, residues, size, scale);
    } finally {
      decryptor.delete();
    }
  }

  /** The secret's coefficients (N), each -1, 0 or 1. */
  coefficients(): Int8Array {
    this.#coefficients ??= Int8Array.from(this.context.fromNtt(this.#values).subarray(0, this.context.chain.ring), (each) =>
      each === 0n ? 0 : each === 1n ? 1 : -1,
    );
    return this.#coefficients;
  }

  /** Keep nothing but the coefficients, where they read the reply: many requests may be open at once. */
  keepCoefficients(): void {
    this.coefficients();
    this.#free();
  }

  /** Free what SEAL holds, and overwrite the rest. */
  forget(): void {
    this.#free();
    this.#coefficients?.fill(0);
  }

  #free(): void {
    if (this.#freed) return;
    this.#freed = true;
    this.#values.fill(0n);
    this.#narrow?.fill(0);
    this.#encryptor.delete();
    this.#secret.delete();
  }
}

/** Words of 64 bits, in memory of their own. */
function wide(bytes: Uint8Array): BigUint64Array<ArrayBuffer> {
  return new BigUint64Array(bytes.slice().buffer);
}

/** The lower half of each 64-bit word; residues are below 2^32. */
function lowWords(wide: BigUint64Array<ArrayBuffer>): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(wide.buffer, wide.byteOffset, 2 * wide.length);
  const out = new Uint32Array(words.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = words[2 * i]!;
  return out;
}
