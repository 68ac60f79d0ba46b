"""The SEAL backend (`layouts.backend`): contexts, keys, and ciphertexts as arrays of residues.

Only this file imports the SEAL binding. It reads and writes the raw bytes of ciphertexts, and rejects a SEAL version
whose byte layout may differ. SEAL does all cryptography.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from typing import Any

import numpy as np
import seal
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.errors import MissingExtraError, Quad4FHEError
from quad4fhe.he.seal_bytes import HEADER, MAGIC, PLAIN_HEADER, WANTED, Words, ciphertext_header, modulo, plain_header
from quad4fhe.he.secrecy import forbid_core_dumps
from quad4fhe.he.seeded import SeededEncryptor, Seeds
from quad4fhe.layouts.encoding import Encoder, values_of
from quad4fhe.layouts.lift.arithmetic import Arithmetic, compiled
from quad4fhe.layouts.masks import expand
from quad4fhe.layouts.residues import KernelName
from quad4fhe.planning.chains import Chain, chain
from quad4fhe.planning.noise import transform_share

_SECRET_HEADER = 88
_AT_ONCE = 4  # polynomials per transform; more would only take more memory


class SealError(Quad4FHEError):
    """The installed SEAL is not the one this library was written for."""


class Context:
    """A SEAL context for one chain, with its encoder and evaluator."""

    def __init__(self, chain: Chain) -> None:
        check_layout()
        self.chain = chain
        self.seal = _make(chain)
        self.encoder = seal.CKKSEncoder(self.seal)
        self.dithering = Encoder(chain.ring)
        self.evaluator = seal.Evaluator(self.seal)
        self.parms_id = self.seal.first_parms_id()

    def exact(self, kernel: KernelName = "auto") -> Arithmetic:
        """Exact arithmetic on residues: compiled if numba is installed and wanted, else by SEAL's calls."""
        from quad4fhe.he.seal_arithmetic import SealArithmetic  # here, because it imports this module

        found = None if kernel == "numpy" else self._compiled
        if found is None and kernel == "numba":
            raise MissingExtraError("numba", "fast", "the compiled residue kernels")
        return found or SealArithmetic(self)

    @cached_property
    def _compiled(self) -> Arithmetic | None:
        return compiled(self.chain)

    @cached_property
    def zero_plain(self) -> Any:
        """The plaintext zero."""
        return self.plaintext(np.zeros((len(self.chain.primes), self.chain.ring), dtype=np.uint64), 1.0)

    def zero_encryptor(self, seed: bytes, first: Words) -> Callable[[], Words]:
        """Return a function that makes fresh encryptions of zero (2, primes, N) under a client's public key.

        The second half is expanded here: a client could choose zero, and then the encryptions would hide nothing.
        """
        every, ring = self.chain.every, self.chain.ring
        second = expand(seed, "key", 1, every, ring)[0]
        body = np.ascontiguousarray(np.stack([first, second]), dtype="<u8")
        header = ciphertext_header(self.seal.key_context_data().parms_id(), 2, len(every), ring, 1.0)
        encryptor = seal.Encryptor(self.seal, self.seal.from_public_str(header + body.tobytes()))
        return lambda: words(encryptor.encrypt_zero())

    def encode(self, values: Array, scale: float, parms_id: Any = None) -> Any:
        """Encode at the level of `parms_id`, by switching down: the binding encodes only at the first level."""
        plain = self.encoder.encode(np.ascontiguousarray(values, dtype=np.float64), scale)
        if parms_id is not None and parms_id != self.parms_id:
            self.evaluator.mod_switch_to_inplace(plain, parms_id)
        return plain

    def dithered(self, values: Array, scale: float, drops: int = 0, reach: float | None = None) -> list[Any]:
        """Encode real slots (r, N/2) into plaintexts with random rounding.

        `reach` bounds the slots. A client passes the bound of its plan's box: the two branches below take different
        times, which a server can measure, so the choice between them must not depend on the samples.

        Whole coefficients are transformed directly. Without numba, SEAL's encoder is quicker at it: its input is so
        close to whole coefficients that it rounds to exactly those, if they are small enough.
        """
        whole, added = self.dithering.encode(values, scale)
        if reach is None:
            size = float(np.abs(whole).max(initial=0.0))
            norm = size * math.sqrt(self.chain.ring)
        else:  # the norm of the coefficients is at most the largest slot
            size = norm = reach * scale + math.sqrt(self.chain.ring)
        if self._compiled is None and drops == 0 and norm * transform_share(self.chain.ring) < 0.25:
            # The binding ignores the strides of an array, so it must be contiguous.
            near = np.ascontiguousarray(values + values_of(added) / scale)
            return [self.encoder.encode_complex(row, scale) for row in near]
        return [self.plaintext(words, scale, drops) for words in self.residues(whole, drops, size)]

    def residues(self, coefficients: Array, drops: int = 0, size: float | None = None) -> Words:
        """Transform whole coefficients (r, N), as doubles, to residues in NTT form (r, primes, N).

        `size` bounds the coefficients; the default is the largest. Zero polynomials take as long as others.
        """
        primes = self.chain.primes[: len(self.chain.primes) - drops]
        limit = float(np.abs(coefficients).max(initial=0.0)) if size is None else size
        if self._compiled is not None:
            return self._compiled.to_ntt(modulo(coefficients, primes, limit))
        out = np.empty((len(coefficients), len(primes), self.chain.ring), dtype=np.uint64)
        zero: NDArray[np.bool_] = np.all(coefficients == 0, axis=1)
        for start in range(0, len(coefficients), _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(coefficients)))
            # SEAL needs two polynomials or more, and none may be zero: repeat a single one, replace zero with one.
            pair = rows if len(rows) > 1 else np.repeat(rows, 2)
            given = coefficients[pair]
            given[zero[pair], 0] = 1.0
            transformed = _to_ciphertext(self.seal, self.level(drops), modulo(given, primes, limit), 1.0, ntt=False)
            self.evaluator.transform_to_ntt_inplace(transformed)
            out[rows] = words(transformed)[: len(rows)]
        out[zero] = 0
        return out

    def plaintext(self, words: Words, scale: float, drops: int = 0) -> Any:
        """Make a plaintext from its residues (primes, N) in NTT form."""
        out = seal.Plaintext()
        out.load_bytes(self.seal, plain_header(self.level(drops), words.size, scale) + words.tobytes())
        return out

    def level(self, drops: int) -> Any:
        """The parms_id of the chain without its last `drops` primes."""
        data = self.seal.get_context_data(self.parms_id)
        for _ in range(drops):
            data = data.next_context_data()
        return data.parms_id()

    def ciphertext(self, words: NDArray[Any], scale: float, drops: int = 0) -> Any:
        """Rebuild a ciphertext from canonical residues (polynomials, primes, N); SEAL checks them again."""
        return _to_ciphertext(self.seal, self.level(drops), words, scale)

    def transformed(self, polynomials: Words, *, back: bool) -> Words:
        """Transform two or more polynomials (primes, N), the second not zero, to NTT form or `back` to coefficients."""
        turned = _to_ciphertext(self.seal, self.parms_id, polynomials, 1.0, ntt=back)
        step = self.evaluator.transform_from_ntt_inplace if back else self.evaluator.transform_to_ntt_inplace
        step(turned)
        return words(turned)

    def words(self, x: Any) -> Words:
        """The residues (polynomials, primes, N) of a ciphertext, read-only."""
        return words(x)

    def is_zero(self, plain: Any) -> bool:
        """Whether a plaintext is zero."""
        return bool(plain.is_zero())

    def scaled(self, x: Any, scale: float) -> Any:
        """Set the scale of a ciphertext, in place."""
        x.scale(scale)
        return x

    def add(self, x: Any, y: Any) -> Any:
        """Add y to x in place, at the scale of x."""
        y.scale(x.scale())
        self.evaluator.add_inplace(x, y)
        return x

    def add_plain(self, x: Any, plain: Any) -> Any:
        """Add a plaintext to x in place."""
        self.evaluator.add_plain_inplace(x, plain)
        return x

    def multiply_plain(self, x: Any, plain: Any) -> Any:
        """A new ciphertext x * plain."""
        return self.evaluator.multiply_plain(x, plain)

    def rescale(self, x: Any) -> Any:
        """Divide x by the last prime of its chain, in place."""
        self.evaluator.rescale_to_next_inplace(x)
        return x

    def square(self, x: Any, keys: tuple[Any, Any]) -> Any:
        """A new ciphertext x * x, relinearised."""
        out = self.evaluator.square(x)
        self.evaluator.relinearize_inplace(out, keys[0])
        return out

    def rotate(self, x: Any, step: int, keys: tuple[Any, Any]) -> Any:
        """A new ciphertext with the slots of x rotated left by `step`."""
        return self.evaluator.rotate_vector(x, step, keys[1])

    def switching_keys(self, words: Words, steps: list[int]) -> tuple[Any, Any]:
        """Make relinearisation and Galois keys from residues (1 + steps, primes, 2, primes + 1, N).

        This writes the framing that SEAL reads; none of it comes from the sender.
        """
        relin = self.seal.from_relin_str(self._switching_bytes(words[:1], [0], single=True))
        return relin, self.seal.from_galois_str(self._switching_bytes(words[1:], steps))

    def switching_words(self, data: bytes, steps: list[int], *, single: bool = False) -> Words:
        """Read residues (steps, primes, 2, primes + 1, N) from Galois keys, or relinearisation keys (`single`).

        The chain and the steps determine the framing between residues; raises SealError if it differs.
        """
        shape = self._switching_shape(len(steps))
        out = np.empty(shape, dtype=np.uint64)
        pieces, total = self._framing(steps, single)
        whole = len(data) == total
        start = 0
        for piece, place in pieces:
            whole = whole and data[start : start + len(piece)] == piece
            start += len(piece)
            if whole and place is not None:
                words = np.frombuffer(data, dtype="<u8", count=math.prod(shape[2:]), offset=start)
                out[place] = words.reshape(shape[2:])
                start += words.nbytes
        if not whole:
            raise SealError("SEAL's key bytes do not have the layout this library expects; report the SEAL build")
        return out

    def _switching_bytes(self, words: Words, steps: list[int], *, single: bool = False) -> bytes:
        """Serialise the result of `switching_words` for SEAL."""
        pieces, _ = self._framing(steps, single)
        out = []
        for piece, place in pieces:
            out.append(piece)
            if place is not None:
                out.append(np.ascontiguousarray(words[place], dtype="<u8").tobytes())
        return b"".join(out)

    def _switching_shape(self, keys: int) -> tuple[int, int, int, int, int]:
        primes = len(self.chain.primes)
        return keys, primes, 2, primes + 1, self.chain.ring

    def _framing(self, steps: list[int], single: bool) -> tuple[list[tuple[bytes, tuple[int, int] | None]], int]:
        """SEAL's framing in pieces, each with the index of the residues that follow it; and the total length."""
        _, primes, size, every, ring = self._switching_shape(len(steps))
        parms_id = self.seal.key_context_data().parms_id()
        # A Galois key lies at the index of its automorphism x -> x^(3^step).
        index = {0: 0} if single else {(pow(3, step, 2 * ring) - 1) // 2: i for i, step in enumerate(steps)}
        rows = 1 if single else ring
        body = ciphertext_header(parms_id, size, every, ring, 1.0)
        one = len(body) + 8 * size * every * ring
        total = 16 + 32 + 8 + 8 * rows + len(steps) * primes * one
        pieces: list[tuple[bytes, tuple[int, int] | None]] = []
        pending = struct.pack("<HBBBBHQ4QQ", MAGIC, 16, *WANTED, 0, 0, total, *parms_id, rows)
        for row in range(rows):
            if row not in index:
                pending += struct.pack("<Q", 0)
                continue
            pending += struct.pack("<Q", primes)
            for digit in range(primes):
                pieces.append((pending + body, (index[row], digit)))
                pending = b""
        return [*pieces, (pending, None)], total


class SecretKey:
    """A secret key, fresh or from the bytes that `keys` stored, and the operations that need it."""

    def __init__(self, context: Context, kept: bytes | None = None) -> None:
        forbid_core_dumps()
        self.context = context
        self._generator = _invertible(context) if kept is None else _kept(context, kept)
        self._key = self._generator.secret_key()
        self._encryptor = seal.Encryptor(context.seal, self._key)
        self._decryptor = seal.Decryptor(context.seal, self._key)
        self._seeds = Seeds()

    @staticmethod
    def size(chain: Chain) -> int:
        """The number of bytes that `to_bytes` returns."""
        return _SECRET_HEADER + 8 * len(chain.every) * chain.ring

    def to_bytes(self) -> bytes:
        """The secret itself, for `keys` to store; no message can carry it."""
        out: bytes = self._key.to_string()
        return out

    def encrypt(self, values: Array, scale: float) -> Any:
        """Encrypt up to N/2 real values symmetrically."""
        return self._encryptor.encrypt_symmetric(self.context.encode(values, scale))

    def encrypt_plain(self, plain: Any) -> Words:
        """Encrypt a plaintext symmetrically: residues (2, primes, N)."""
        return words(self._encryptor.encrypt_symmetric(plain))

    def seeded(self) -> SeededEncryptor:
        """An encryptor with a fresh public seed, from which the second halves of its ciphertexts follow."""
        return SeededEncryptor(self._seeds, self.encrypt_plain, self._rebased, self.context.chain)

    def seeded_zeros(self, count: int) -> tuple[bytes, Words]:
        """Make encryptions of zero under a fresh public seed; returns it and their first halves (count, primes, N)."""
        fresh = self.seeded()
        return fresh.seed, fresh.encrypt([self.context.zero_plain] * count)

    def seeded_public_key(self) -> tuple[bytes, Words]:
        """Make a public key with its second half from a fresh public seed; returns it and the first (all primes, N)."""
        every, ring = self.context.chain.every, self.context.chain.ring
        seed = self._seeds.fresh()
        masks = expand(seed, "key", 1, every, ring)
        made = self._generator.create_public_key().to_string()
        whole = np.frombuffer(made, dtype="<u8", offset=HEADER).reshape(1, 2, len(every), ring)
        return seed, self._rebased(whole, masks)[0]

    def _rebased(self, made: Iterable[Words], masks: Words) -> Words:
        """c0 + (c1 - mask) s; whoever sees `made` as well can solve for the secret."""
        return self._exact.rebased(made, masks, self._values)

    @cached_property
    def _exact(self) -> Arithmetic:
        return self.context.exact()

    @cached_property
    def _values(self) -> Words:
        """The secret modulo every prime, in NTT form."""
        every, ring = self.context.chain.every, self.context.chain.ring
        return np.frombuffer(self.to_bytes(), dtype="<u8", offset=_SECRET_HEADER).reshape(len(every), ring)

    @cached_property
    def ternary(self) -> NDArray[np.int8]:
        """The secret's coefficients (N,), each -1, 0 or 1, for layouts that decrypt single coefficients."""
        q = self.context.chain.primes[0]
        found = self._exact.from_ntt(self._values[None, : len(self.context.chain.primes)])[0, 0]
        return np.where(found == q - 1, -1, found.astype(np.int64)).astype(np.int8)

    def decrypt(self, ciphertext: Any) -> Array:
        """Decrypt the N/2 slots of a ciphertext."""
        slots: Array = self.context.encoder.decode(self._decryptor.decrypt(ciphertext))
        return slots

    def switching_words(self, steps: list[int]) -> Words:
        """Make relinearisation and Galois keys, as residues (1 + steps, primes, 2, primes + 1, N)."""
        relin = self._generator.create_relin_keys().to_string()
        galois = seal.GaloisKeys()
        self._generator.create_galois_keys(steps, galois)
        read = self.context.switching_words
        return np.concatenate([read(relin, [0], single=True), read(galois.to_string(), steps)])


def words(ciphertext: Any) -> Words:
    """The residues of a ciphertext, shape (polynomials, primes, N), read-only."""
    shape = (ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree())
    return np.frombuffer(ciphertext.to_string(), dtype="<u8", offset=HEADER).reshape(shape)


def _invertible(context: Context) -> Any:
    """Make a generator with a fresh key; if the chain switches keys, the key is a unit modulo every prime.

    The error bound of layout packed needs a unit: then the value that a key switch rounds is uniform modulo the special
    prime. All but one key in 2^27 are units.
    """
    while True:
        generator = seal.KeyGenerator(context.seal)
        if not context.chain.keys or _is_unit(generator.secret_key().to_string()):
            return generator


def _kept(context: Context, kept: bytes) -> Any:
    if context.chain.keys and not _is_unit(kept):
        raise ValueError("the key is not a unit modulo every prime")
    return seal.KeyGenerator(context.seal, context.seal.from_secret_str(kept))


def _is_unit(key: bytes) -> bool:
    return bool(np.frombuffer(key, dtype="<u8", offset=_SECRET_HEADER).all())


def _to_ciphertext(context: Any, parms_id: Any, residues: NDArray[Any], scale: float, *, ntt: bool = True) -> Any:
    size, primes, ring = residues.shape
    body = np.ascontiguousarray(residues, dtype="<u8").tobytes()
    ciphertext = seal.Ciphertext()
    ciphertext.load_bytes(context, ciphertext_header(parms_id, size, primes, ring, scale, ntt=ntt) + body)
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


class SealBackend:
    """SEAL as a `layouts.backend.Backend`."""

    name = "SEAL"
    # The binding turns C++ exceptions into these. A MemoryError is not caught: it is not the client's fault.
    errors: tuple[type[Exception], ...] = (ValueError, RuntimeError, IndexError, ArithmeticError, SealError)

    def context(self, chain: Chain) -> Context:
        """A context for one chain."""
        return Context(chain)


BACKEND = SealBackend()
