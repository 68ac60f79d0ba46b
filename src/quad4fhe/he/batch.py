"""Layout `batch`: one ciphertext per feature, one sample per slot, and no evaluation keys at all.

Decides how the folded circuit runs on raw residues: an exact matrix product per prime, a pointwise square in NTT form,
a second product; scales just multiply and the reply keeps three polynomials. Integers and exactness come from
`circuit`, keys from `seal`, checks of what a stranger sent are made here before any use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.exact import ExactMatrix, Limb, exact_matrix
from quad4fhe.circuit.quantise import IntegerCircuit
from quad4fhe.errors import InputError
from quad4fhe.he.residues import KernelName, check_residues, kernels, multiply, residues
from quad4fhe.he.seal import SecretKey

Residues = NDArray[np.uint32]

TILE = 512  # slots worked on at once: the tile's hidden layer stays in the outer cache between its four steps
_ENCODED = 8  # features encoded at once: their transforms share a call, their residues stay in the cache
CHUNK_BYTES = 128 * 2**20  # encrypted features held at once by either side; more features are streamed


def chunk_features(chain: Chain) -> int:
    """How many encrypted features travel together."""
    return max(1, CHUNK_BYTES // (8 * len(chain.primes) * chain.ring))


def encrypt(key: SecretKey, Z: Array, log2_scale: int, reach: float | None = None) -> Iterator[Residues]:
    """Encrypt shifted samples Z (n <= slots, d) feature by feature; yields (features, 2, primes, N) chunks.

    Unused slots hold z = 0, a point of the box, so they obey the same bound as the samples: `reach`, see `dithered`.
    """
    chain, scale = key.context.chain, 2.0**log2_scale
    n, d = Z.shape
    step = chunk_features(chain)
    for start in range(0, d, step):
        stop = min(start + step, d)
        out = np.empty((stop - start, 2, len(chain.primes), chain.ring), dtype=np.uint32)
        for first in range(start, stop, _ENCODED):
            features = range(first, min(first + _ENCODED, stop))
            slots = np.zeros((len(features), chain.slots))
            slots[:, :n] = Z[:, features.start : features.stop].T
            for i, plain in zip(features, key.context.dithered(slots, scale, reach=reach), strict=True):
                out[i - start] = key.encrypt_plain(plain)
        yield out


def decrypt(key: SecretKey, reply: Residues, log2_scale: int) -> Array:
    """Decrypt a reply (K, 3, primes, N) to all of its slots, shape (slots, K)."""
    out = np.empty((key.context.chain.slots, reply.shape[0]))
    for k, row in enumerate(reply):
        out[:, k] = key.decrypt(key.context.ciphertext(row, 2.0**log2_scale))
    return out


@dataclass(frozen=True, eq=False)
class _Prime:
    """The circuit modulo one prime."""

    q: int
    W: ExactMatrix
    t: Array
    V: ExactMatrix
    U: ExactMatrix | None
    c: Array


class BatchEvaluator:
    """The server's side: the integer circuit prepared for each prime of a chain."""

    def __init__(self, circuit: IntegerCircuit, chain: Chain, kernel: KernelName = "auto") -> None:
        self.chain = chain
        self.features = int(circuit.W.shape[1])
        self.units = int(circuit.W.shape[0])
        self.outputs = int(circuit.V.shape[0])
        self.kernel = kernels(kernel)
        self._primes = [
            _Prime(
                q,
                exact_matrix(circuit.W, q),
                residues(circuit.t, q),
                exact_matrix(circuit.V, q),
                None if circuit.U is None else exact_matrix(circuit.U, q),
                residues(circuit.c, q),
            )
            for q in chain.primes
        ]

    def evaluate(self, chunks: Iterable[NDArray[Any]]) -> Residues:
        """The reply (K, 3, primes, N) for encrypted features that arrive in one or more chunks."""
        shape = (-1, 2, len(self.chain.primes), self.chain.ring)
        seen = 0
        running: _Running | None = None
        for chunk in chunks:
            check_residues("the request", chunk, shape, self.chain.primes, np.uint32)
            if not 0 < chunk.shape[0] <= self.features - seen:
                raise InputError(f"the request has {seen + chunk.shape[0]} features, wanted {self.features}")
            if chunk.shape[0] == self.features:
                return self._whole(chunk)
            running = running or _Running(self)
            running.add(chunk, seen)
            seen += chunk.shape[0]
        if running is None or seen != self.features:
            raise InputError(f"the request has {seen} features, wanted {self.features}")
        return running.finish()

    def _whole(self, chunk: Residues) -> Residues:
        """Every feature at hand: tile by tile through all four steps, so that the hidden layer never leaves cache."""
        out = np.empty((self.outputs, 3, len(self._primes), self.chain.ring), dtype=np.uint32)
        tile = min(TILE, self.chain.ring)
        operand = np.empty((self.features, 2, tile))
        hidden = np.empty((self.units, 2, tile))
        work = self._workspace(tile)
        for place, prime in enumerate(self._primes):
            for start in range(0, self.chain.ring, tile):
                columns = slice(start, start + tile)
                self.kernel.load(chunk[:, :, place, columns], prime.q, operand)
                flat = operand.reshape(self.features, -1)
                multiply(prime.W, flat, hidden.reshape(self.units, -1), self.kernel)
                skip = self._skip(prime.U, flat, prime.q)
                self._finish(prime, hidden, skip, work, out[:, :, place, columns])
        return out

    def _workspace(self, tile: int) -> tuple[Array, Array]:
        return np.empty((self.units, 3, tile)), np.empty((self.outputs, 3, tile))

    def _skip(self, U: ExactMatrix | None, operand: Array, q: int) -> Array | None:
        if U is None:
            return None
        out = np.empty((self.outputs, operand.shape[1]))
        multiply(U, operand, out, self.kernel)
        self.kernel.centre(out, q)
        return out

    def _finish(
        self, prime: _Prime, hidden: Array, skip: Array | None, work: tuple[Array, Array], out: Residues
    ) -> None:
        squares, logits = work
        self.kernel.square(hidden, prime.t, prime.q, squares)
        multiply(prime.V, squares.reshape(self.units, -1), logits.reshape(self.outputs, -1), self.kernel)
        if skip is not None:
            logits[:, :2] += skip.reshape(self.outputs, 2, -1)
        self.kernel.store(logits, prime.c, prime.q, out)


class _Running:
    """The hidden layer summed over chunks of features: memory depends on units and chain, not on features.

    Each chunk's product is centred before it is added; 2^22 chunks would fit below 2^53.
    """

    def __init__(self, evaluator: BatchEvaluator) -> None:
        self._of = evaluator
        primes, ring = len(evaluator._primes), evaluator.chain.ring
        self._hidden = np.zeros((primes, evaluator.units, 2, ring))
        self._skip = np.zeros((primes, evaluator.outputs, 2, ring))

    def add(self, chunk: Residues, first: int) -> None:
        of, count = self._of, chunk.shape[0]
        columns = slice(first, first + count)
        for place, prime in enumerate(of._primes):
            for start in range(0, of.chain.ring, TILE):
                tile = slice(start, min(start + TILE, of.chain.ring))
                operand = np.empty((count, 2, tile.stop - start))
                of.kernel.load(chunk[:, :, place, tile], prime.q, operand)
                flat = operand.reshape(count, -1)
                product = np.empty((of.units, flat.shape[1]))
                multiply(_columns(prime.W, columns), flat, product, of.kernel)
                of.kernel.centre(product, prime.q)
                self._hidden[place, :, :, tile] += product.reshape(of.units, 2, -1)
                skip = of._skip(None if prime.U is None else _columns(prime.U, columns), flat, prime.q)
                if skip is not None:
                    self._skip[place, :, :, tile] += skip.reshape(of.outputs, 2, -1)

    def finish(self) -> Residues:
        of = self._of
        out = np.empty((of.outputs, 3, len(of._primes), of.chain.ring), dtype=np.uint32)
        tile = min(TILE, of.chain.ring)
        work = of._workspace(tile)
        for place, prime in enumerate(of._primes):
            for start in range(0, of.chain.ring, tile):
                columns = slice(start, start + tile)
                skip = None
                if prime.U is not None:
                    skip = np.ascontiguousarray(self._skip[place, :, :, columns])
                    of.kernel.centre(skip, prime.q)
                hidden = np.ascontiguousarray(self._hidden[place, :, :, columns])
                of._finish(prime, hidden, skip, work, out[:, :, place, columns])
        return out


def _columns(matrix: ExactMatrix, columns: slice) -> ExactMatrix:
    # Fewer columns only make the partial sums smaller: the proof carries over.
    limbs = tuple(Limb(limb.rows, limb.weights[:, columns]) for limb in matrix.limbs)
    return ExactMatrix(matrix.q, matrix.step, limbs, matrix.headroom)
