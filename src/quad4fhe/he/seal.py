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
from quad4fhe.errors import Quad4FHEError

Words = NDArray[np.uint64]

WANTED = (4, 4)  # the SEAL release whose byte layout this file knows
_HEADER = 113
_SECRET_HEADER = 88
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
        self.evaluator = seal.Evaluator(self.seal)
        self.parms_id = self.seal.first_parms_id()

    def encode(self, values: Array, scale: float, parms_id: Any = None) -> Any:
        """A plaintext at the first level, or switched down to `parms_id` (the binding encodes at the top only)."""
        plain = self.encoder.encode(np.ascontiguousarray(values, dtype=np.float64), scale)
        if parms_id is not None and parms_id != self.parms_id:
            self.evaluator.mod_switch_to_inplace(plain, parms_id)
        return plain

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
        self.context = context
        if kept is None:
            self._generator = seal.KeyGenerator(context.seal)
        else:
            self._generator = seal.KeyGenerator(context.seal, context.seal.from_secret_str(kept))
        self._key = self._generator.secret_key()
        self._encryptor = seal.Encryptor(context.seal, self._key)
        self._decryptor = seal.Decryptor(context.seal, self._key)

    @staticmethod
    def size(chain: Chain) -> int:
        """How many bytes `to_bytes` gives."""
        return _SECRET_HEADER + 8 * (len(chain.primes) + 1) * chain.ring

    def to_bytes(self) -> bytes:
        """The secret itself, for `keys` to keep; no message can carry it."""
        out: bytes = self._key.to_string()
        return out

    def encrypt(self, values: Array, scale: float) -> Any:
        """Encrypt up to N/2 real values symmetrically."""
        return self._encryptor.encrypt_symmetric(self.context.encode(values, scale))

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


def _to_ciphertext(context: Any, parms_id: Any, residues: NDArray[Any], scale: float) -> Any:
    size, primes, ring = residues.shape
    body = np.ascontiguousarray(residues, dtype="<u8").tobytes()
    ciphertext = seal.Ciphertext()
    ciphertext.load_bytes(context, _header(parms_id, size, primes, ring, scale) + body)
    return ciphertext


def _header(parms_id: Any, size: int, primes: int, ring: int, scale: float) -> bytes:
    count = size * primes * ring
    outer = struct.pack("<HBBBBHQ", _MAGIC, 16, *WANTED, 0, 0, _HEADER + 8 * count)
    fields = struct.pack("<4Q?QQQdQ", *parms_id, True, size, ring, primes, scale, 1)
    inner = struct.pack("<HBBBBHQQ", _MAGIC, 16, *WANTED, 0, 0, 24 + 8 * count, count)
    return outer + fields + inner


def _make(chain: Chain) -> Any:
    parameters = seal.EncryptionParameters(seal.scheme_type.ckks)
    parameters.set_poly_modulus_degree(chain.ring)
    parameters.set_coeff_modulus([seal.Modulus(q) for q in (*chain.primes, chain.special)])
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
