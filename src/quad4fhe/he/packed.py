"""Layout `packed`: one query, or a few interleaved, in one ciphertext; answered with few rotations.

Decides the order of SEAL operations: diagonals, sum over blocks, the one rescale, square, relinearise, windows, and no
last rescale. Where things lie is in `circuit.packing`; keys and ciphertexts are SEAL's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.circuit.chain import Chain
from quad4fhe.circuit.counts import Counts
from quad4fhe.circuit.dyadic import Dyadic
from quad4fhe.circuit.fold import centred
from quad4fhe.circuit.packed_noise import first_weights, placement
from quad4fhe.circuit.packing import Packing, split_steps
from quad4fhe.circuit.quantise import Scales
from quad4fhe.errors import InputError
from quad4fhe.he.residues import check_residues
from quad4fhe.he.seal import Context, SecretKey, words
from quad4fhe.quadratic import QuadraticModel

Residues = NDArray[np.uint64]


@dataclass(frozen=True)
class EvaluationKeys:
    """What the server needs to turn and relinearise: only the Galois keys this packing uses. Public, but large."""

    relin: bytes
    galois: bytes

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.relin) + len(self.galois)


def make_keys(key: SecretKey, packing: Packing) -> EvaluationKeys:
    """Fresh evaluation keys for one packing."""
    return EvaluationKeys(key.relin_keys(), key.galois_keys(packing.steps()))


def encrypt(
    key: SecretKey, Z: Array, packing: Packing, log2_scale: int, reach: float | None = None
) -> Iterator[Residues]:
    """Encrypt shifted samples Z (n <= samples, d); yields one (2, primes, N) array per chunk of features.

    `reach` bounds |Z| beforehand, see `dithered`.
    """
    lies = packing.feature_at()
    for chunk in range(packing.chunks):
        features = np.zeros((packing.samples, packing.span))
        part = Z[:, chunk * packing.span : (chunk + 1) * packing.span]
        features[: part.shape[0], : part.shape[1]] = part
        # (samples, width) to slots: sample s lies at p * samples + s.
        scale = 2.0**log2_scale
        (plain,) = key.context.dithered(features[:, lies].T.reshape(1, -1), scale, reach=reach)
        yield key.encrypt_plain(plain)


def decrypt(key: SecretKey, reply: NDArray[Any], scales: Scales) -> Array:
    """Every slot of a reply (2, primes - 1, N), shape (slots,)."""
    return key.decrypt(key.context.ciphertext(reply, 2.0**scales.out, drops=1))


def logits_of(slots: Array, packing: Packing) -> Array:
    """The logits (samples, K) among the slots of a reply."""
    return slots.reshape(packing.width, packing.samples)[:: packing.window][: packing.outputs].T


class PackedEvaluator:
    """The server's side: every weight encoded once, then a fixed sequence of SEAL calls."""

    def __init__(self, model: QuadraticModel, shift: Array, chain: Chain, scales: Scales, packing: Packing) -> None:
        self.context = Context(chain)
        self.chain, self.scales, self.packing = chain, scales, packing
        self.counts = Counts()
        S, T, c = (part.floats() for part in centred(model))
        self._positions = placement(model, packing, chain)
        self._first = self._first_plaintexts(model.W1)
        exact = Dyadic.of(model.b1) + Dyadic.of(model.W1) @ Dyadic.of(shift)
        bias = self._placed(exact.floats()[None])[0]
        self._bias = self._encode(bias[np.arange(packing.width) % packing.block], 2.0**scales.x, 1)
        self._raise = self._encode(np.ones(packing.width), 2.0**scales.x, 1)
        # Added before the rescale, so that what is rounded away is even whatever the ciphertext is. Drawn once: the
        # bound is for each request by itself.
        even = self.context.residues(self.context.dithering.uniform(chain.primes[-1], 2))
        self._dither = self.context.ciphertext(even, 2.0**scales.x)
        met, klass = packing.second_product()
        inside = klass < packing.outputs
        rows = np.minimum(klass, packing.outputs - 1)
        small, _ = split_steps(packing.columns)
        self._second: list[tuple[Any, Any]] = []
        for column in range(packing.columns):
            # A giant step turns the product, so its weights are turned back beforehand.
            back = packing.window * small * (column // small)
            pair = []
            for matrix, scale in ((S, 2.0**scales.v), (T, 2.0 ** (scales.v if small > 1 else scales.x + scales.v))):
                weights = np.where(inside, self._placed(matrix)[rows, met[column]], 0.0)
                pair.append(self._encode(np.roll(weights, back), scale, 1))
            self._second.append((pair[0], pair[1]))
        constant = np.where(inside & (np.arange(packing.width) % packing.window == 0), c[rows], 0.0)
        self._constant = self._encode(constant, 2.0**scales.out, 1)

    def evaluate(self, request: NDArray[Any], keys: tuple[Any, Any]) -> Residues:
        """The reply (2, primes - 1, N) to a request (chunks, 2, primes, N); `keys` are relin and Galois keys."""
        packing, evaluator, scales = self.packing, self.context.evaluator, self.scales
        relin, galois = keys
        primes = self.chain.primes
        check_residues("the request", request, (packing.chunks, 2, len(primes), self.chain.ring), primes, np.uint64)
        self.counts = Counts(encryptions=packing.chunks, depth=3)
        inputs = [self.context.ciphertext(chunk, 2.0**scales.x) for chunk in request]
        baby, giant = split_steps(packing.diagonals)
        hidden = self._steps(
            [self._turned(x, baby, 1, galois) for x in inputs],
            lambda chunk, r: self._first[chunk][r],
            (baby, giant, 1),
            galois,
        )
        # Before the rescale: turning costs a prime more there, but its noise is divided away with that prime.
        for turn in packing.turns()["blocks"]:
            evaluator.add_inplace(hidden, self._rotate(hidden, turn, galois))
        self._dither.scale(hidden.scale())
        evaluator.add_inplace(hidden, self._dither)
        # The plaintexts of the first product are encoded at the prime that is dropped here, so the scale is exact.
        evaluator.rescale_to_next_inplace(hidden)
        self.counts.rescales += 1
        hidden.scale(2.0**scales.x)
        evaluator.add_plain_inplace(hidden, self._bias)
        squares = evaluator.square(hidden)
        evaluator.relinearize_inplace(squares, relin)
        self.counts.ct_ct += 1
        self.counts.relinearisations += 1
        small, large = split_steps(packing.columns)
        if small > 1:
            # y is turned as well, and at its own scale the noise of that would show; an integer factor costs nothing.
            hidden = evaluator.multiply_plain(hidden, self._raise)
            self.counts.ct_pt += 1
        logits = self._steps(
            [self._turned(x, small, packing.window, galois) for x in (squares, hidden)],
            lambda which, column: self._second[column][which],
            (small, large, packing.window),
            galois,
        )
        for turn in packing.turns()["window"]:
            evaluator.add_inplace(logits, self._rotate(logits, turn, galois))
        evaluator.add_plain_inplace(logits, self._constant)
        return words(logits).copy()

    def _turned(self, x: Any, count: int, unit: int, galois: Any) -> list[Any]:
        return [x] + [self._rotate(x, unit * r, galois) for r in range(1, count)]

    def _steps(
        self,
        turned: list[list[Any]],
        weights: Callable[[int, int], Any],
        steps: tuple[int, int, int],
        galois: Any,
    ) -> Any:
        """Baby-step giant-step: sum over giants of rotate(sum over babies of input turned by r times its weights)."""
        evaluator = self.context.evaluator
        baby, giant, unit = steps
        total = None
        for g in range(giant):
            part = None
            for which, inputs in enumerate(turned):
                for r in range(baby):
                    plain = weights(which, g * baby + r)
                    if plain.is_zero():
                        continue  # SEAL refuses a product that is zero for everyone
                    product = evaluator.multiply_plain(inputs[r], plain)
                    self.counts.ct_pt += 1
                    if part is None:
                        part = product
                    else:
                        product.scale(part.scale())
                        evaluator.add_inplace(part, product)
            if part is None:
                continue
            if g:
                part = self._rotate(part, g * baby * unit, galois)
            if total is None:
                total = part
            else:
                evaluator.add_inplace(total, part)
        if total is None:
            raise InputError("every weight of a layer is zero: this model answers the same for all inputs")
        return total

    def _rotate(self, x: Any, turn: int, galois: Any) -> Any:
        self.counts.rotations += 1
        return self.context.evaluator.rotate_vector(x, turn * self.packing.samples, galois)

    def _first_plaintexts(self, W: Array) -> list[list[Any]]:
        packing, prime = self.packing, float(self.chain.primes[-1])
        baby, _ = split_steps(packing.diagonals)
        return [
            [self._encode(np.roll(row, baby * (r // baby)), prime, 0) for r, row in enumerate(chunk)]
            for chunk in first_weights(W, packing, self._positions)
        ]

    def _placed(self, columns: Array) -> Array:
        """Columns per unit (r, m) to columns per position of a block (r, block)."""
        out = np.zeros((columns.shape[0], self.packing.block))
        out[:, self._positions] = columns
        return out

    def _encode(self, values: Array, scale: float, drops: int) -> Any:
        return self.context.dithered(np.repeat(values, self.packing.samples)[None], scale, drops)[0]
