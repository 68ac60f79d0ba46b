"""The only file that imports the SEAL binding: contexts, keys, and ciphertexts as arrays of residues.

Decides how a ciphertext's raw bytes are read and rebuilt, and refuses a SEAL whose bytes might lie differently. All
cryptography is SEAL's; what is computed on the residues is left to `batch`, `packed` and `paper`.
"""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import Any

import numpy as np
import seal
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.circuit.chain import Chain, chain
from quad4fhe.circuit.error import transform_share
from quad4fhe.errors import Quad4FHEError
from quad4fhe.he.encoding import Encoder, values_of
from quad4fhe.he.secrecy import forbid_core_dumps

Words = NDArray[np.uint64]

WANTED = (4, 4)  # the SEAL release whose byte layout this file knows
_HEADER = 113
_SECRET_HEADER = _PLAIN_HEADER = 88
_AT_ONCE = 4  # polynomials that are transformed together: more only allocate more
_MAGIC = 0xA15E


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

    def encode(self, values: Array, scale: float, parms_id: Any = None) -> Any:
        """A plaintext at the first level, or switched down to `parms_id` (the binding encodes at the top only)."""
        plain = self.encoder.encode(np.ascontiguousarray(values, dtype=np.float64), scale)
        if parms_id is not None and parms_id != self.parms_id:
            self.evaluator.mod_switch_to_inplace(plain, parms_id)
        return plain

    def dithered(self, values: Array, scale: float, drops: int = 0, reach: float | None = None) -> list[Any]:
        """Plaintexts of real slots (r, N/2), rounded at random.

        `reach` is a bound of the slots that is known beforehand. A client gives that of its plan's box: the two ways
        below take different times, which a server can measure, so a sample must not choose between them.

        SEAL's encoder transforms and rounds; it is given slots that lie within its own error of whole coefficients, so
        it can't round otherwise. Where they are too large for that, the coefficients are transformed directly.
        """
        whole, added = self.dithering.encode(values, scale)
        if reach is None:
            size = float(np.abs(whole).max(initial=0.0))
            norm = size * math.sqrt(self.chain.ring)
        else:  # no norm of coefficients exceeds the largest slot
            size = norm = reach * scale + math.sqrt(self.chain.ring)
        if drops == 0 and norm * transform_share(self.chain.ring) < 0.25:
            # The binding reads memory as it lies, whatever an array's strides are.
            near = np.ascontiguousarray(values + values_of(added) / scale)
            return [self.encoder.encode_complex(row, scale) for row in near]
        return [self.plaintext(words, scale, drops) for words in self.residues(whole, drops, size)]

    def residues(self, coefficients: Array, drops: int = 0, size: float | None = None) -> Words:
        """Whole coefficients (r, N), as doubles, to residues in NTT form (r, primes, N); SEAL transforms them.

        None of them is larger than `size`, by default the largest. Polynomials that are zero take as long as others.
        """
        primes = self.chain.primes[: len(self.chain.primes) - drops]
        out = np.empty((len(coefficients), len(primes), self.chain.ring), dtype=np.uint64)
        limit = float(np.abs(coefficients).max(initial=0.0)) if size is None else size
        zero: NDArray[np.bool_] = np.all(coefficients == 0, axis=1)
        for start in range(0, len(coefficients), _AT_ONCE):
            rows = np.arange(start, min(start + _AT_ONCE, len(coefficients)))
            # SEAL takes two polynomials or more, and none of them may be zero: one stands in for it.
            pair = rows if len(rows) > 1 else np.repeat(rows, 2)
            given = coefficients[pair]
            given[zero[pair], 0] = 1.0
            words = _modulo(given, primes, limit)
            transformed = _to_ciphertext(self.seal, self.level(drops), words, 1.0, ntt=False)
            self.evaluator.transform_to_ntt_inplace(transformed)
            out[rows] = _words(transformed)[: len(rows)]
        out[zero] = 0
        return out

    def plaintext(self, words: Words, scale: float, drops: int = 0) -> Any:
        """A plaintext from its residues (primes, N) in NTT form."""
        out = seal.Plaintext()
        out.load_bytes(self.seal, _plain_header(self.level(drops), words.size, scale) + words.tobytes())
        return out

    def level(self, drops: int) -> Any:
        """The parms_id after `drops` primes were dropped from the end of the chain."""
        data = self.seal.get_context_data(self.parms_id)
        for _ in range(drops):
            data = data.next_context_data()
        return data.parms_id()

    def ciphertext(self, words: NDArray[Any], scale: float, drops: int = 0) -> Any:
        """Rebuild a ciphertext from canonical residues (polynomials, primes, N); SEAL checks them again."""
        return _to_ciphertext(self.seal, self.level(drops), words, scale)

    def relin_keys(self, data: bytes) -> Any:
        """Read relinearisation keys; raises ValueError or RuntimeError on bytes that are not a valid key."""
        return self.seal.from_relin_str(data)

    def galois_keys(self, data: bytes) -> Any:
        """Read Galois keys; raises ValueError or RuntimeError on bytes that are not a valid key."""
        return self.seal.from_galois_str(data)

    def switching_words(self, data: bytes, steps: list[int], *, single: bool = False) -> Words:
        """The residues (steps, primes, 2, primes + 1, N) of serialised Galois keys, or relinearisation keys (`single`).

        The framing between them is known from the chain and the steps; bytes that differ anywhere else are refused.
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
            raise SealError("SEAL's key bytes do not lie where this library reads them; report the SEAL build")
        return out

    def switching_bytes(self, words: Words, steps: list[int], *, single: bool = False) -> bytes:
        """What `switching_words` read, serialised as SEAL reads it."""
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
        """Pieces of SEAL's framing, each with the place of the residues that follow it; and the length of it all."""
        _, primes, size, every, ring = self._switching_shape(len(steps))
        parms_id = self.seal.key_context_data().parms_id()
        # A Galois key lies at the index of its automorphism x -> x^(3^step).
        index = {0: 0} if single else {(pow(3, step, 2 * ring) - 1) // 2: i for i, step in enumerate(steps)}
        rows = 1 if single else ring
        body = _header(parms_id, size, every, ring, 1.0)
        one = len(body) + 8 * size * every * ring
        total = 16 + 32 + 8 + 8 * rows + len(steps) * primes * one
        pieces: list[tuple[bytes, tuple[int, int] | None]] = []
        pending = struct.pack("<HBBBBHQ4QQ", _MAGIC, 16, *WANTED, 0, 0, total, *parms_id, rows)
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
    """A secret key and what only its holder can do: fresh, or from the bytes that `keys` kept on the client's disk."""

    def __init__(self, context: Context, kept: bytes | None = None) -> None:
        forbid_core_dumps()
        self.context = context
        self._generator = _invertible(context) if kept is None else _kept(context, kept)
        self._key = self._generator.secret_key()
        self._encryptor = seal.Encryptor(context.seal, self._key)
        self._decryptor = seal.Decryptor(context.seal, self._key)

    @staticmethod
    def size(chain: Chain) -> int:
        """How many bytes `to_bytes` gives."""
        return _SECRET_HEADER + 8 * len(chain.every) * chain.ring

    def to_bytes(self) -> bytes:
        """The secret itself, for `keys` to keep; no message can carry it."""
        out: bytes = self._key.to_string()
        return out

    def encrypt(self, values: Array, scale: float) -> Any:
        """Encrypt up to N/2 real values symmetrically."""
        return self._encryptor.encrypt_symmetric(self.context.encode(values, scale))

    def encrypt_plain(self, plain: Any) -> Words:
        """Encrypt a plaintext symmetrically: residues (2, primes, N)."""
        return words(self._encryptor.encrypt_symmetric(plain))

    def decrypt(self, ciphertext: Any) -> Array:
        """The N/2 slots of a ciphertext."""
        slots: Array = self.context.encoder.decode(self._decryptor.decrypt(ciphertext))
        return slots

    def relin_keys(self) -> bytes:
        """Relinearisation keys, serialised without compression."""
        out: bytes = self._generator.create_relin_keys().to_string()
        return out

    def galois_keys(self, steps: list[int]) -> bytes:
        """Galois keys for the given rotation steps alone, serialised without compression."""
        keys = seal.GaloisKeys()
        self._generator.create_galois_keys(steps, keys)
        out: bytes = keys.to_string()
        return out


def words(ciphertext: Any) -> Words:
    """The residues of a ciphertext, shape (polynomials, primes, N), read-only."""
    shape = (ciphertext.size(), ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree())
    return np.frombuffer(ciphertext.to_string(), dtype="<u8", offset=_HEADER).reshape(shape)


_words = words  # inside methods whose arguments have that name


def _invertible(context: Context) -> Any:
    """A generator with a fresh key; where keys are switched, one that is a unit modulo every prime.

    All but one key in 2^27 are. The bound of layout packed needs it: then what a key switch rounds is even modulo the
    special prime.
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


def _modulo(coefficients: Array, primes: tuple[int, ...], size: float) -> Words:
    """Whole doubles (r, N), none larger than `size`, to canonical residues (r, primes, N)."""
    out = np.empty((len(coefficients), len(primes), coefficients.shape[1]), dtype=np.uint64)
    exact = size < 2.0**52
    for place, q in enumerate(primes):
        if exact and q >= 2**52:
            left = coefficients.astype(np.int64)
            out[:, place] = np.where(left < 0, left + q, left)
        elif exact:
            # The quotient may be off by one, the difference is exact: every number here is below 2^53.
            rest = coefficients - np.floor(coefficients * (1.0 / q)) * float(q)
            rest += np.where(rest < 0, float(q), 0.0)
            rest -= np.where(rest >= q, float(q), 0.0)
            out[:, place] = rest
        elif size < 2.0**63:
            out[:, place] = np.mod(coefficients.astype(np.int64), np.int64(q))
        else:
            flat = [int(c) % q for c in coefficients.ravel().tolist()]
            out[:, place] = np.array(flat, dtype=np.uint64).reshape(coefficients.shape)
    return out


def _to_ciphertext(context: Any, parms_id: Any, residues: NDArray[Any], scale: float, *, ntt: bool = True) -> Any:
    size, primes, ring = residues.shape
    body = np.ascontiguousarray(residues, dtype="<u8").tobytes()
    ciphertext = seal.Ciphertext()
    ciphertext.load_bytes(context, _header(parms_id, size, primes, ring, scale, ntt=ntt) + body)
    return ciphertext


def _plain_header(parms_id: Any, count: int, scale: float) -> bytes:
    outer = struct.pack("<HBBBBHQ", _MAGIC, 16, *WANTED, 0, 0, _PLAIN_HEADER + 8 * count)
    inner = struct.pack("<HBBBBHQQ", _MAGIC, 16, *WANTED, 0, 0, 24 + 8 * count, count)
    return outer + struct.pack("<4QQd", *parms_id, count, scale) + inner


def _header(parms_id: Any, size: int, primes: int, ring: int, scale: float, *, ntt: bool = True) -> bytes:
    count = size * primes * ring
    outer = struct.pack("<HBBBBHQ", _MAGIC, 16, *WANTED, 0, 0, _HEADER + 8 * count)
    fields = struct.pack("<4Q?QQQdQ", *parms_id, ntt, size, ring, primes, scale, 1)
    inner = struct.pack("<HBBBBHQQ", _MAGIC, 16, *WANTED, 0, 0, 24 + 8 * count, count)
    return outer + fields + inner


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
    """Check once that SEAL's raw bytes lie where this file reads them; raise SealError if not.

    Own header and residues must equal SEAL's bytes exactly, and a ciphertext changed on the residues (doubled) must
    decrypt to the doubled values: offsets, order of polynomials and primes, and NTT form are all in that one check.
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
        raise SealError("SEAL's ciphertext bytes do not lie where this library reads them; report the SEAL build")
    doubled = _to_ciphertext(context, context.first_parms_id(), residues * np.uint64(2) % primes, 2.0**24)
    seen = encoder.decode(seal.Decryptor(context, key).decrypt(doubled))
    if np.abs(seen - 2 * values).max() > 1e-2:
        raise SealError("arithmetic on SEAL's residues does not decrypt to the right values; report the SEAL build")
    plain = encoder.encode(values, 2.0**24)
    words_in = np.frombuffer(plain.to_bytes(), dtype="<u8", offset=_PLAIN_HEADER)
    if _plain_header(context.first_parms_id(), words_in.size, 2.0**24) + words_in.tobytes() != plain.to_bytes():
        raise SealError("SEAL's plaintext bytes do not lie where this library reads them; report the SEAL build")
