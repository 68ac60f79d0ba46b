/**
 * The only file that uses node-seal: keys, encryption and decryption, on arrays of residues.
 *
 * All cryptography is SEAL's. Ciphertexts and plaintexts cross as bytes in SEAL's own framing, which is copied from what
 * this very build of SEAL saved, with the few fields changed that differ.
 */
import type { Ciphertext, MainModule, Plaintext } from "node-seal";
import initialize from "node-seal";

import type { Chain } from "./chain.ts";
import { AskError, messageOf } from "./errors.ts";

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

/** A secret key for one chain, and what only its holder can do. */
export class SecretKey {
  readonly chain: Chain;
  readonly #seal: MainModule;
  readonly #context: ReturnType<MainModule["SEALContext"]["prototype"]["copy"]>;
  readonly #encoder: InstanceType<MainModule["CKKSEncoder"]>;
  readonly #evaluator: InstanceType<MainModule["Evaluator"]>;
  readonly #encryptor: InstanceType<MainModule["Encryptor"]>;
  readonly #decryptor: InstanceType<MainModule["Decryptor"]>;
  readonly #plain: Plaintext;
  readonly #cipher: Ciphertext;
  readonly #cipherHeader: Uint8Array;
  readonly #plainHeader: Uint8Array;
  readonly #secretHeader: Uint8Array;
  /** The secret modulo every prime, in NTT form, and a public key (2, every prime, N); neither leaves the worker so. */
  readonly #values: BigUint64Array<ArrayBuffer>;
  #public: BigUint64Array<ArrayBuffer> | undefined;
  #coefficients: Int8Array | undefined;
  #narrow: Uint32Array<ArrayBuffer> | undefined;

  /** A fresh key, or the one that `saved` returned earlier for the same chain. */
  constructor(seal: MainModule, chain: Chain, saved?: Uint8Array) {
    this.chain = chain;
    this.#seal = seal;
    const every = chain.special === null ? chain.primes : [...chain.primes, chain.special];
    const moduli = seal.vecFromArrayModulus(every.map((q) => new seal.Modulus(q)));
    const parameters = new seal.EncryptionParameters(seal.SchemeType.ckks);
    parameters.setPolyModulusDegree(chain.ring);
    parameters.setCoeffModulus(moduli);
    this.#context = new seal.SEALContext(parameters, chain.special !== null, seal.SecLevelType.tc128);
    moduli.delete();
    parameters.delete();
    if (!this.#context.parametersSet()) throw new AskError("SEAL refuses this plan's parameters; nothing was sent");
    this.#encoder = new seal.CKKSEncoder(this.#context);
    this.#evaluator = new seal.Evaluator(this.#context);
    const generator = saved === undefined ? new seal.KeyGenerator(this.#context) : this.#restored(saved);
    const secret = generator.secretKey();
    const open = generator.createPublicKey(); // node-seal's encryptor asks for one
    const bytes = secret.saveToArray(seal.ComprModeType.none) as Uint8Array;
    this.#secretHeader = bytes.slice(0, PLAIN_HEADER);
    this.#values = wide(bytes.subarray(PLAIN_HEADER));
    bytes.fill(0);
    this.#public = wide((open.saveToArray(seal.ComprModeType.none) as Uint8Array).subarray(CIPHER_HEADER));
    this.#encryptor = new seal.Encryptor(this.#context, open, secret);
    this.#decryptor = new seal.Decryptor(this.#context, secret);
    for (const done of [open, secret, generator]) done.delete();
    this.#plain = new seal.Plaintext();
    this.#cipher = new seal.Ciphertext();
    this.#encoder.encode(new Float64Array([1]), 2 ** 10, this.#plain);
    this.#encryptor.encryptSymmetric(this.#plain, this.#cipher);
    this.#cipherHeader = this.#saved(this.#cipher).slice(0, CIPHER_HEADER);
    this.#plainHeader = this.#saved(this.#plain).slice(0, PLAIN_HEADER);
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
    return lowWords(this.#saved(this.#cipher).subarray(CIPHER_HEADER, CIPHER_HEADER + 8 * count));
  }

  /** Encrypt a plaintext given by its residues (primes, N): residues (2, primes, N). */
  encrypt(residues: Uint32Array): Uint32Array<ArrayBuffer> {
    this.#frame(residues);
    this.#encryptor.encryptSymmetric(this.#plain, this.#cipher);
    return lowWords(this.#saved(this.#cipher).subarray(CIPHER_HEADER));
  }

  /**
   * The first half (primes, N) of an encryption of a plaintext, given by its residues, whose second half is `mask`.
   *
   * SEAL's own second half is moved to the mask here: both forms of one encryption together give away the key.
   */
  seeded(residues: Uint32Array, mask: Uint32Array): Uint32Array<ArrayBuffer> {
    const made = this.encrypt(residues);
    const { ring, primes } = this.chain;
    this.#narrow ??= lowWords(new Uint8Array(this.#values.buffer, 0, 8 * mask.length));
    const out = new Uint32Array(mask.length);
    for (const [place, q] of primes.map(Number).entries()) {
      for (let i = place * ring; i < (place + 1) * ring; i++) {
        const turn = made[mask.length + i]! + q - mask[i]!;
        const secret = this.#narrow[i]!;
        // Below 2^49 and 2^50, so exact in doubles, as in `residues`.
        const high = turn * (secret >>> 16);
        const sum = (high - q * Math.floor(high / q)) * 65536 + turn * (secret & 65535) + made[i]!;
        out[i] = sum - q * Math.floor(sum / q);
      }
    }
    return out;
  }

  /** The slots (N/2) of a ciphertext given by its residues (size, primes, N), each below its prime. */
  decrypt(residues: Uint32Array, size: number, scale: number): Float64Array {
    const words = new Uint32Array(2 * residues.length);
    for (let i = 0; i < residues.length; i++) words[2 * i] = residues[i]!;
    this.#load(words, size, scale, true);
    this.#decryptor.decrypt(this.#cipher, this.#plain);
    return this.#encoder.decodeFloat64(this.#plain) as Float64Array;
  }

  /** A fresh encryption of zero: residues (2, primes, N) in NTT form. It must not be sent, see `rebased`. */
  zero(): BigUint64Array<ArrayBuffer> {
    this.#frame(new Uint32Array(this.chain.primes.length * this.chain.ring));
    this.#encryptor.encryptSymmetric(this.#plain, this.#cipher);
    return wide(this.#saved(this.#cipher).subarray(CIPHER_HEADER));
  }

  /**
   * A public key: residues (2, every prime, N) in NTT form, for `rebased`. It is given out once: under two masks, the
   * difference of what is sent is a known multiple of the secret.
   */
  publicKey(): BigUint64Array<ArrayBuffer> {
    const found = this.#public;
    if (found === undefined) throw new AskError("the public key of this secret was made already; make a new secret for another");
    this.#public = undefined;
    return found;
  }

  /**
   * The first half of a ciphertext (2, primes, N) with another mask (primes, N) in the place of its second half.
   *
   * Both forms of one encryption together give away the key, so what goes in here never leaves the worker.
   */
  rebased(made: BigUint64Array, mask: BigUint64Array, primes: readonly bigint[]): BigUint64Array<ArrayBuffer> {
    const { ring } = this.chain;
    const out = new BigUint64Array(mask.length);
    for (const [place, q] of primes.entries()) {
      for (let i = place * ring; i < (place + 1) * ring; i++) {
        out[i] = (made[i]! + (made[mask.length + i]! + q - mask[i]!) * this.#values[i]!) % q;
      }
    }
    return out;
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

  /** The secret's coefficients (N), each -1, 0 or 1. */
  ternary(): Int8Array {
    const { ring, primes } = this.chain;
    this.#coefficients ??= Int8Array.from(this.fromNtt(this.#values.slice(0, primes.length * ring)).subarray(0, ring), (each) =>
      each === 0n ? 0 : each === 1n ? 1 : -1,
    );
    return this.#coefficients;
  }

  /** The secret as SEAL writes it, for a later `SecretKey` of this chain. Whoever has it can decrypt everything. */
  save(): Uint8Array<ArrayBuffer> {
    const out = new Uint8Array(PLAIN_HEADER + 8 * this.#values.length);
    out.set(this.#secretHeader);
    out.set(new Uint8Array(this.#values.buffer), PLAIN_HEADER);
    return out;
  }

  #restored(saved: Uint8Array): InstanceType<MainModule["KeyGenerator"]> {
    const secret = new this.#seal.SecretKey();
    try {
      secret.loadFromArray(this.#context, saved);
      return new this.#seal.KeyGenerator(this.#context, secret);
    } catch (error) {
      throw new AskError(`the saved key is not one of this plan (${messageOf(error)}); make a new one`);
    } finally {
      secret.delete();
    }
  }

  /** Free what SEAL holds, the key included. */
  forget(): void {
    this.#values.fill(0n);
    this.#coefficients?.fill(0);
    this.#narrow?.fill(0);
    for (const held of [this.#plain, this.#cipher, this.#encryptor, this.#decryptor, this.#encoder, this.#evaluator]) {
      held.delete();
    }
    this.#context.delete();
  }

  #frame(residues: Uint32Array): void {
    const bytes = new Uint8Array(PLAIN_HEADER + 8 * residues.length);
    bytes.set(this.#plainHeader);
    const view = new DataView(bytes.buffer);
    for (let i = 0; i < residues.length; i++) view.setUint32(PLAIN_HEADER + 8 * i, residues[i]!, true);
    this.#plain.loadFromArray(this.#context, bytes);
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
    this.#cipher.loadFromArray(this.#context, bytes);
  }

  #saved(held: Plaintext | Ciphertext): Uint8Array {
    return held.saveToArray(this.#seal.ComprModeType.none) as Uint8Array;
  }
}

/** Words of 64 bits, in memory of their own. */
function wide(bytes: Uint8Array): BigUint64Array<ArrayBuffer> {
  return new BigUint64Array(bytes.slice().buffer);
}

/** The lower half of each 64-bit word; residues are below 2^32. */
function lowWords(bytes: Uint8Array): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(bytes.slice().buffer);
  const out = new Uint32Array(words.length / 2);
  for (let i = 0; i < out.length; i++) out[i] = words[2 * i]!;
  return out;
}
