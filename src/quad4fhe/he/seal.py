"""SEAL: contexts, keys, and ciphertexts as arrays of residues.

Only this file imports the SEAL binding. It reads and writes the raw bytes of ciphertexts, and rejects a SEAL version
whose byte layout may differ. SEAL makes every key and draws all noise that protects the client's data.

Of an encryption only the first half is sent; the second one follows from a public seed (`layouts.masks`). SEAL encrypts
zero, and its first half is then moved to that mask (`rebased`); docs/lift.md has the proof. Two mistakes would reveal
the key: to show both forms of an encryption, and to use a mask for two encryptions. So SEAL's own form never leaves
`SecretKey.zeros`, no seed can be passed in, and a mask counts as used before its encryption is made.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from functools import cache, cached_property
from typing import Any, NoReturn

import numpy as np
import seal
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import Quad4FHEError
from quad4fhe.he.seal_bytes import HEADER, PLAIN_HEADER, WANTED, Words, ciphertext_header, modulo, plain_header
from quad4fhe.he.secrecy import forbid_core_dumps
from quad4fhe.layouts.encoding import Encoder
from quad4fhe.layouts.lift._compiled import exact
from quad4fhe.layouts.masks import SEED_BYTES, expand_into
from quad4fhe.planning.chains import Chain, chain


class SealError(Quad4FHEError):
    """The installed SEAL is not the one this library was written for."""


class SeedError(Quad4FHEError):
    """A mask would be used twice; nothing is encrypted with it."""


class Context:
    """A SEAL context for one chain, with its encoder."""

    def __init__(self, chain: Chain) -> None:
        check_layout()
        self.chain = chain
        self.seal = _make(chain)
        self.encoder = seal.CKKSEncoder(self.seal)
        self.dithering = Encoder(chain.ring)
        self.parms_id = self.seal.first_parms_id()
        self.key_parms_id = self.seal.key_context_data().parms_id()

    @cached_property
    def zero_plain(self) -> Any:
        """The plaintext zero."""
        words = np.zeros((len(self.chain.primes), self.chain.ring), dtype=np.uint64)
        out = seal.Plaintext()
        out.load_bytes(self.seal, plain_header(self.parms_id, words.size, 1.0) + words.tobytes())
        return out

    def encoded(self, values: Array, scale: float, reach: float) -> Words:
        """Real slots (r, N/2) as residues in NTT form (r, primes, N), their coefficients rounded at random.

        `reach` bounds the slots over the plan's box: how coefficients are reduced may depend on it, which takes
        different times, but not on the samples.
        """
        whole, _ = self.dithering.encode(values, scale)
        return exact(self.chain).to_ntt(modulo(whole, self.chain.primes, reach * scale + math.sqrt(self.chain.ring)))

    def ciphertext(self, words: NDArray[Any], scale: float) -> Any:
        """Rebuild a ciphertext from canonical residues (polynomials, primes, N); SEAL checks them again."""
        return _to_ciphertext(self.seal, self.parms_id, words, scale)


@cache
def context(chain: Chain) -> Context:
    """The context of a chain; making one takes longer than a question."""
    return Context(chain)


class SecretKey:
    """The secret key of one request and its public seed; or, from the bytes of `to_bytes`, what reads the reply.

    It can't be copied, sent, or used in a forked process, since masks would repeat.
    """

    def __init__(self, context: Context, kept: bytes | None = None) -> None:
        forbid_core_dumps()
        self.context = context
        self._known: NDArray[np.int8] | None = None
        if kept is None:
            self._key = seal.KeyGenerator(context.seal).secret_key()
            self._encryptor = seal.Encryptor(context.seal, self._key)
            self._seed = secrets.token_bytes(SEED_BYTES)
        else:
            self._encryptor, self._seed = None, b""
            self._known = _unpacked(kept, context.chain.ring)
            self._key = _secret(context, self._known)
        self._used, self._process, self._lock = 0, os.getpid(), threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("only one key may use a seed, so it can't be copied, pickled or sent")

    @property
    def seed(self) -> bytes:
        """The public seed, from which the second halves of all encryptions of this key follow."""
        return self._seed

    def zeros(self, count: int) -> Words:
        """The first halves (count, primes, N) of fresh encryptions of zero, whose second halves are the next masks."""
        if self._encryptor is None:
            raise SeedError("a key that was read from bytes reads a reply and encrypts nothing more")
        if self._process != os.getpid():  # before the lock: it may have been taken when the process forked
            raise SeedError("this request was begun in another process; encrypt it again here")
        chain = self.context.chain
        with self._lock:
            number, self._used = self._used, self._used + count
        masks = np.empty((count, len(chain.primes), chain.ring), dtype=np.uint64)
        expand_into(masks, self.seed, number, chain.primes)
        fresh = (words(self._encryptor.encrypt_symmetric(self.context.zero_plain)) for _ in range(count))
        return exact(chain).rebased(fresh, masks, self._values)

    def decrypt(self, words: NDArray[Any], scale: float) -> Array:
        """Decrypt a ciphertext (polynomials, primes, N) to its N/2 slots."""
        plain = self._decryptor.decrypt(self.context.ciphertext(words, scale))
        slots: Array = self.context.encoder.decode(plain)
        return slots

    def to_bytes(self) -> bytes:
        """The secret itself, for who reads the reply in another process; no message can carry it."""
        return np.packbits(np.stack([self.ternary == 1, self.ternary == -1])).tobytes()

    @cached_property
    def _decryptor(self) -> Any:
        return seal.Decryptor(self.context.seal, self._key)

    @cached_property
    def _values(self) -> Words:
        """The secret modulo every prime, in NTT form."""
        every, ring = self.context.chain.every, self.context.chain.ring
        return np.frombuffer(self._key.to_string(), dtype="<u8", offset=PLAIN_HEADER).reshape(len(every), ring)

    @cached_property
    def ternary(self) -> NDArray[np.int8]:
        """The secret's coefficients (N,), each -1, 0 or 1, for layouts that decrypt single coefficients."""
        if self._known is not None:
            return self._known
        q = self.context.chain.primes[0]
        found = exact(self.context.chain).from_ntt(self._values[None, :1])[0, 0]
        return np.where(found == q - 1, -1, found.astype(np.int64)).astype(np.int8)


def _unpacked(kept: bytes, ring: int) -> NDArray[np.int8]:
    if len(kept) != ring // 4:
        raise ValueError(f"a secret of {len(kept)} bytes, wanted {ring // 4}")
    bits = np.unpackbits(np.frombuffer(kept, dtype=np.uint8)).reshape(2, ring).astype(np.int8)
    out: NDArray[np.int8] = bits[0] - bits[1]
    return out


def _secret(context: Context, ternary: NDArray[np.int8]) -> Any:
    """SEAL's key with these coefficients."""
    every = context.chain.every
    residues = np.stack([np.mod(ternary.astype(np.int64), q).astype(np.uint64) for q in every])
    values = exact(context.chain).to_ntt(residues[None])[0]
    header = plain_header(context.key_parms_id, values.size, 1.0)
    return context.seal.from_secret_str(header + np.ascontiguousarray(values, dtype="<u8").tobytes())


def words(ciphertext: Any) -> Words:
    """The residues of a ciphertext, shape (polynomials, primes, N), read-only."""
    shape = (ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree())
    return np.frombuffer(ciphertext.to_string(), dtype="<u8", offset=HEADER).reshape(shape)


def _to_ciphertext(context: Any, parms_id: Any, residues: NDArray[Any], scale: float) -> Any:
    size, primes, ring = residues.shape
    body = np.ascontiguousarray(residues, dtype="<u8").tobytes()
    ciphertext = seal.Ciphertext()
    ciphertext.load_bytes(context, ciphertext_header(parms_id, size, primes, ring, scale) + body)
    return ciphertext


def _make(chain: Chain) -> Any:
    parameters = seal.EncryptionParameters(seal.scheme_type.ckks)
    parameters.set_poly_modulus_degree(chain.ring)
    parameters.set_coeff_modulus([seal.Modulus(q) for q in chain.every])
    context = seal.SEALContext(parameters, True, seal.sec_level_type.tc128)
    if not context.parameters_set():
        raise SealError(f"SEAL refuses the chain: {context.parameter_error_message()}")
    return context


def found_version() -> str:
    """The version of the installed SEAL binding."""
    return str(seal.__version__)


@cache
def check_layout() -> None:
    """Check once that SEAL's byte layout is the one this file expects; raise SealError if not.

    The header and residues written here must equal SEAL's bytes exactly, and a ciphertext with doubled residues must
    decrypt to doubled values. This checks offsets, the order of polynomials and primes, and the NTT form at once.
    """
    found = found_version()
    if tuple(found.split(".")[:2]) != tuple(map(str, WANTED)):
        raise SealError(
            f"found seal-python {found}, wanted {WANTED[0]}.{WANTED[1]}.x: pip install 'seal-python>=4.4,<4.5'"
        )
    small = chain(2048, (18, 18))
    context = _make(small)
    generator = seal.KeyGenerator(context)
    encoder = seal.CKKSEncoder(context)
    values = np.linspace(-1.0, 1.0, small.slots)
    key = generator.secret_key()
    ciphertext = seal.Encryptor(context, key).encrypt_symmetric(encoder.encode(values, 2.0**24))
    residues = words(ciphertext)
    primes = np.array(small.primes, dtype=np.uint64)[None, :, None]
    rebuilt = _to_ciphertext(context, context.first_parms_id(), residues, 2.0**24)
    if rebuilt.to_string() != ciphertext.to_string() or (residues >= primes).any():
        raise SealError("SEAL's ciphertext bytes do not have the layout this library expects; report the SEAL build")
    doubled = _to_ciphertext(context, context.first_parms_id(), residues * np.uint64(2) % primes, 2.0**24)
    seen = encoder.decode(seal.Decryptor(context, key).decrypt(doubled))
    if np.abs(seen - 2 * values).max() > 1e-2:
        raise SealError("arithmetic on SEAL's residues does not decrypt to the right values; report the SEAL build")
    plain = encoder.encode(values, 2.0**24)
    words_in = np.frombuffer(plain.to_bytes(), dtype="<u8", offset=PLAIN_HEADER)
    if plain_header(context.first_parms_id(), words_in.size, 2.0**24) + words_in.tobytes() != plain.to_bytes():
        raise SealError("SEAL's plaintext bytes do not lie where this library reads them; report the SEAL build")
