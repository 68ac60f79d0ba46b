"""Layout `batch`: the folded circuit on raw residues.

A ciphertext is a polynomial in the key s: after an exact matrix product per prime, every unit is h0 + h1 s. Taylor's
formula expands its activation, a square or a polynomial of degree p, in powers of s, pointwise in NTT form. A second
product gives the p + 1 polynomials of the reply. Scales multiply, and no step needs a key. Second halves of a request
follow from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe._threads import few_threads
from quad4fhe.layouts import _kernels_numba as kernels
from quad4fhe.layouts.base import Evaluator
from quad4fhe.layouts.batch import costs
from quad4fhe.layouts.batch.privacy import Blinding
from quad4fhe.layouts.forms import Words
from quad4fhe.layouts.key import Key
from quad4fhe.layouts.masks import expand_into
from quad4fhe.layouts.residues import residues
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.exactness import ExactMatrix, Limb, exact_matrices
from quad4fhe.planning.integers import IntegerCircuit, distinct_rows

Residues = NDArray[np.uint32]

TILE = 128  # slots worked on at once: the hidden layer of a tile stays in the cache between its four steps
_ENCODED = 8  # features encoded at once: their transforms share a call, their residues stay in the cache


def encrypt(key: Key, Z: Array, log2_scale: int, reach: float, *, private: bool = False) -> tuple[Words, Words]:
    """Encrypt shifted samples Z (n, d): a seed, and first halves (d, 1, primes, N), with a public key one more.

    Unused slots hold z = 0, a point of the box, so they obey the same bound as the samples: `reach`, see `encoded`.
    """
    chain, scale = key.context.chain, 2.0**log2_scale
    modulus = np.array(chain.primes, dtype=np.uint64)[:, None]
    n, d = Z.shape
    out = np.empty((d + private, 1, len(chain.primes), chain.ring), dtype=np.uint32)
    for first in range(0, d, _ENCODED):
        features = slice(first, min(first + _ENCODED, d))
        slots = np.zeros((features.stop - first, chain.slots))
        slots[:, :n] = Z[:, features].T
        encoded = key.context.encoded(slots, scale, reach=reach)
        encoded += key.zeros(len(slots))  # below 2^33
        out[features, 0] = encoded % modulus
    if private:
        out[d, 0] = key.zeros(1)[0]
    return np.frombuffer(key.seed, dtype=np.uint8), out


def decrypt(key: Key, reply: Residues, log2_scale: float) -> Array:
    """Decrypt a reply (K, polynomials, primes, N) to all of its slots, shape (slots, K)."""
    out = np.empty((key.context.chain.slots, reply.shape[0]))
    for k, row in enumerate(reply):
        out[:, k] = key.decrypt(row, 2.0**log2_scale)
    return out


def multiply(matrix: ExactMatrix, operand: Array, out: Array) -> None:
    """out (r, n) = matrix times operand (c, n), exact integers congruent to the product mod q.

    `operand` holds centred residues; `out` is left unreduced, at most 2^53 with room for the matrix's `extra` terms.
    """
    carried: Array | None = None
    carried_rows = matrix.limbs[-1].rows
    for limb in reversed(matrix.limbs[1:]):
        product = limb.weights @ operand
        if carried is not None:
            # Rows of a higher limb are a subset of this one's; both are sorted.
            kernels.raise_limb(carried, np.searchsorted(limb.rows, carried_rows), product, matrix.q, matrix.step)
        carried, carried_rows = product, limb.rows
    np.matmul(matrix.limbs[0].weights, operand, out=out)
    if carried is not None:
        kernels.raise_limb(carried, carried_rows, out, matrix.q, matrix.step)


@dataclass(frozen=True, eq=False)
class _Prime:
    """The circuit modulo one prime."""

    q: int
    W: ExactMatrix
    t: Array
    V: ExactMatrix
    U: ExactMatrix | None
    c: Array
    a: Array | None


class BatchEvaluator(Evaluator):
    """The integer circuit prepared for each prime of a chain; equal rows of W are multiplied once."""

    def __init__(self, circuit: IntegerCircuit, chain: Chain, blinding: Blinding | None = None) -> None:
        self.chain = chain
        self._blinding = blinding
        self.features = int(circuit.W.shape[1])
        self.units = int(circuit.W.shape[0])
        self.outputs = int(circuit.V.shape[0])
        self.parts = circuit.degree + 1
        first, which = distinct_rows(circuit.W)
        self.hidden = int(first.size)
        self._which = None if self.hidden == self.units else which
        W, V = exact_matrices(circuit.W[first], chain.primes), exact_matrices(circuit.V, chain.primes)
        U = None if circuit.U is None else exact_matrices(circuit.U, chain.primes)
        self._primes = [
            _Prime(
                q,
                W[i],
                residues(circuit.t, q),
                V[i],
                None if U is None else U[i],
                residues(circuit.c, q),
                None if circuit.a is None else residues(circuit.a, q),
            )
            for i, q in enumerate(chain.primes)
        ]

    def answer(self, request: Sequence[Words]) -> tuple[Residues]:
        """The reply (K, degree + 1, primes, N) for a seed and first halves, those of a public key last."""
        seed, firsts = request[0].tobytes(), request[1]
        with few_threads():  # products of tiles are small: more threads take up to twice the CPU time
            reply = self._plain(seed, firsts[: self.features])
        if self._blinding is not None:
            self._blinding.blind(reply, firsts[-1, 0], self.masks(seed, self.features, 1)[0, 0])
        return (reply,)

    def _plain(self, seed: bytes, firsts: Words) -> Residues:
        step = costs.chunk_features(self.chain)
        if self.features <= 2 * self.units or self.features <= step:  # then its hidden layer takes more memory
            return self._whole(seed, firsts)
        running = _Running(self)
        for start in range(0, self.features, step):
            chunk = firsts[start : start + step]
            running.add(chunk, self.masks(seed, start, len(chunk)), start)
        return running.finish()

    def masks(self, seed: bytes, first: int, count: int) -> Residues:
        """The second halves (count, 1, primes, N) of the features from `first` on."""
        out = np.empty((count, 1, len(self._primes), self.chain.ring), dtype=np.uint32)
        expand_into(out[:, 0], seed, first, self.chain.primes)
        return out

    def load(self, halves: tuple[Residues, Residues], place: int, columns: slice, out: Array) -> None:
        """Both halves modulo one prime, (features, 2, T), as centred numbers."""
        for polynomial, half in enumerate(halves):
            kernels.load(half[:, :, place, columns], self.chain.primes[place], out[:, polynomial : polynomial + 1])

    def _whole(self, seed: bytes, chunk: Residues) -> Residues:
        """Every feature at hand: tile by tile through all four steps, so that the hidden layer never leaves cache."""
        out = np.empty((self.outputs, self.parts, len(self._primes), self.chain.ring), dtype=np.uint32)
        tile = min(TILE, self.chain.ring)
        operand = np.empty((self.features, 2, tile))
        hidden = np.empty((self.hidden, 2, tile))
        work = self._workspace(tile)
        halves = (chunk, self.masks(seed, 0, self.features))
        for place, prime in enumerate(self._primes):
            for start in range(0, self.chain.ring, tile):
                columns = slice(start, start + tile)
                self.load(halves, place, columns, operand)
                flat = operand.reshape(self.features, -1)
                multiply(prime.W, flat, hidden.reshape(self.hidden, -1))
                skip = self._skip(prime.U, flat, prime.q)
                self._finish(prime, hidden, skip, work, out[:, :, place, columns])
        return out

    def _workspace(self, tile: int) -> tuple[Array, Array]:
        return np.empty((self.units, self.parts, tile)), np.empty((self.outputs, self.parts, tile))

    def _skip(self, U: ExactMatrix | None, operand: Array, q: int) -> Array | None:
        if U is None:
            return None
        out = np.empty((self.outputs, operand.shape[1]))
        multiply(U, operand, out)
        kernels.centre(out, q)
        return out

    def _finish(
        self, prime: _Prime, hidden: Array, skip: Array | None, work: tuple[Array, Array], out: Residues
    ) -> None:
        powers, logits = work
        if self._which is not None:
            hidden = hidden[self._which]
        if prime.a is None:
            kernels.square(hidden, prime.t, prime.q, powers)
        else:
            kernels.expand(hidden, prime.t, prime.a, prime.q, powers)
        multiply(prime.V, powers.reshape(self.units, -1), logits.reshape(self.outputs, -1))
        if skip is not None:
            logits[:, :2] += skip.reshape(self.outputs, 2, -1)
        kernels.store(logits, prime.c, prime.q, out)


class _Running:
    """The hidden layer summed over chunks of features: memory depends on units and chain, not on features.

    Each chunk's product is centred before it is added; 2^22 chunks would fit below 2^53.
    """

    def __init__(self, evaluator: BatchEvaluator) -> None:
        self._of = evaluator
        primes, ring = len(evaluator._primes), evaluator.chain.ring
        self._hidden = np.zeros((primes, evaluator.hidden, 2, ring))
        self._skip = np.zeros((primes, evaluator.outputs, 2, ring))

    def add(self, chunk: Residues, masks: Residues, first: int) -> None:
        of, count = self._of, chunk.shape[0]
        columns = slice(first, first + count)
        for place, prime in enumerate(of._primes):
            for start in range(0, of.chain.ring, TILE):
                tile = slice(start, min(start + TILE, of.chain.ring))
                operand = np.empty((count, 2, tile.stop - start))
                of.load((chunk, masks), place, tile, operand)
                flat = operand.reshape(count, -1)
                product = np.empty((of.hidden, flat.shape[1]))
                multiply(_columns(prime.W, columns), flat, product)
                kernels.centre(product, prime.q)
                self._hidden[place, :, :, tile] += product.reshape(of.hidden, 2, -1)
                skip = of._skip(None if prime.U is None else _columns(prime.U, columns), flat, prime.q)
                if skip is not None:
                    self._skip[place, :, :, tile] += skip.reshape(of.outputs, 2, -1)

    def finish(self) -> Residues:
        of = self._of
        out = np.empty((of.outputs, of.parts, len(of._primes), of.chain.ring), dtype=np.uint32)
        tile = min(TILE, of.chain.ring)
        work = of._workspace(tile)
        for place, prime in enumerate(of._primes):
            for start in range(0, of.chain.ring, tile):
                columns = slice(start, start + tile)
                skip = None
                if prime.U is not None:
                    skip = np.ascontiguousarray(self._skip[place, :, :, columns])
                    kernels.centre(skip, prime.q)
                hidden = np.ascontiguousarray(self._hidden[place, :, :, columns])
                of._finish(prime, hidden, skip, work, out[:, :, place, columns])
        return out


def _columns(matrix: ExactMatrix, columns: slice) -> ExactMatrix:
    # Fewer columns only make the partial sums smaller: the proof carries over.
    limbs = tuple(Limb(limb.rows, limb.weights[:, columns]) for limb in matrix.limbs)
    return ExactMatrix(matrix.q, matrix.step, limbs, matrix.headroom)
