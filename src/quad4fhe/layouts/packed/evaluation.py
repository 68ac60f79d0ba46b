"""Layout `packed`: evaluates a request on ciphertexts.

The steps are: multiply diagonals, sum over blocks, rescale once, square, relinearise, and sum windows, without a last
rescale. `packing` has the positions in the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe._dyadic import Dyadic
from quad4fhe.errors import InputError
from quad4fhe.layouts.backend import Backend, Key, SwitchingKeys
from quad4fhe.layouts.base import Evaluator
from quad4fhe.layouts.encoding import Encoder
from quad4fhe.layouts.forms import Words
from quad4fhe.layouts.packed.noise import first_weights, placement
from quad4fhe.layouts.packed.packing import Packing, split_steps
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Counts
from quad4fhe.planning.fold import centred
from quad4fhe.planning.integers import Scales
from quad4fhe.polynomial import PolynomialModel


def encrypt(
    key: Key, Z: Array, packing: Packing, log2_scale: int, reach: float | None = None
) -> Iterator[NDArray[np.uint64]]:
    """Encrypt shifted samples Z (n <= samples, d); yields one (1, 2, primes, N) array per chunk of features.

    `reach` bounds |Z| beforehand, see `Context.dithered`.
    """
    lies = packing.feature_at()
    for chunk in range(packing.chunks):
        features = np.zeros((packing.samples, packing.span))
        part = Z[:, chunk * packing.span : (chunk + 1) * packing.span]
        features[: part.shape[0], : part.shape[1]] = part
        # (samples, width) to slots: sample s lies at p * samples + s.
        scale = 2.0**log2_scale
        (plain,) = key.context.dithered(features[:, lies].T.reshape(1, -1), scale, reach=reach)
        yield key.encrypt_plain(plain)[None]


def logits_of(slots: Array, packing: Packing) -> Array:
    """The logits (samples, K) among the slots of a reply."""
    return slots.reshape(packing.width, packing.samples)[:: packing.window][: packing.outputs].T


class PackedEvaluator(Evaluator):
    """Every weight encoded once, then a fixed sequence of the backend's operations."""

    def __init__(
        self, model: PolynomialModel, shift: Array, chain: Chain, scales: Scales, packing: Packing, backend: Backend
    ) -> None:
        self.backend, self.context = backend, backend.context(chain)
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
        even = self.context.residues(Encoder(chain.ring).uniform(chain.primes[-1], 2))
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

    def prepare(self, keys: Sequence[Words]) -> SwitchingKeys:
        """Relinearisation and Galois keys from their residues."""
        (words,) = keys
        digits = words.reshape(-1, len(self.chain.primes), *words.shape[1:])
        return self.context.switching_keys(digits, self.packing.steps())

    def evaluate(self, chunks: Iterable[Words], keys: SwitchingKeys) -> tuple[Words]:
        """The reply (1, 2, primes - 1, N) to ciphertexts (1, 2, primes, N)."""
        try:
            return (self._evaluate(chunks, keys),)
        except InputError:
            raise
        except self.backend.errors as error:
            # Also where an intermediate result is transparent: ciphertexts or keys can be made such that it is.
            name = self.backend.name
            raise InputError(
                f"{name} refuses this request with this client's evaluation keys ({error}); make both again"
            ) from None

    def _evaluate(self, chunks: Iterable[Words], keys: SwitchingKeys) -> Words:
        packing, context, scales = self.packing, self.context, self.scales
        self.counts = Counts(encryptions=packing.chunks, depth=3)
        inputs = [context.ciphertext(row, 2.0**scales.x) for chunk in chunks for row in chunk]
        baby, giant = split_steps(packing.diagonals)
        hidden = self._steps(
            [self._turned(x, baby, 1, keys) for x in inputs],
            lambda chunk, r: self._first[chunk][r],
            (baby, giant, 1),
            keys,
        )
        # Before the rescale: turning costs a prime more there, but its noise is divided away with that prime.
        for turn in packing.turns()["blocks"]:
            context.add(hidden, self._rotate(hidden, turn, keys))
        context.add(hidden, self._dither)
        # The plaintexts of the first product are encoded at the prime that is dropped here, so the scale is exact.
        hidden = context.scaled(context.rescale(hidden), 2.0**scales.x)
        self.counts.rescales += 1
        context.add_plain(hidden, self._bias)
        squares = context.square(hidden, keys)
        self.counts.ct_ct += 1
        self.counts.relinearisations += 1
        small, large = split_steps(packing.columns)
        if small > 1:
            # y is turned as well, and at its own scale the noise of that would show; an integer factor costs nothing.
            hidden = context.multiply_plain(hidden, self._raise)
            self.counts.ct_pt += 1
        logits = self._steps(
            [self._turned(x, small, packing.window, keys) for x in (squares, hidden)],
            lambda which, column: self._second[column][which],
            (small, large, packing.window),
            keys,
        )
        for turn in packing.turns()["window"]:
            context.add(logits, self._rotate(logits, turn, keys))
        context.add_plain(logits, self._constant)
        return context.words(logits)[None]

    def _turned(self, x: Any, count: int, unit: int, keys: Any) -> list[Any]:
        return [x] + [self._rotate(x, unit * r, keys) for r in range(1, count)]

    def _steps(
        self,
        turned: list[list[Any]],
        weights: Callable[[int, int], Any],
        steps: tuple[int, int, int],
        keys: Any,
    ) -> Any:
        """Baby-step giant-step: sum over giants of rotate(sum over babies of input turned by r times its weights)."""
        context = self.context
        baby, giant, unit = steps
        total = None
        for g in range(giant):
            part = None
            for which, inputs in enumerate(turned):
                for r in range(baby):
                    plain = weights(which, g * baby + r)
                    if context.is_zero(plain):
                        continue  # backends refuse a product that is zero for everyone
                    product = context.multiply_plain(inputs[r], plain)
                    self.counts.ct_pt += 1
                    part = product if part is None else context.add(part, product)
            if part is None:
                continue
            if g:
                part = self._rotate(part, g * baby * unit, keys)
            total = part if total is None else context.add(total, part)
        if total is None:
            raise InputError("every weight of a layer is zero: this model answers the same for all inputs")
        return total

    def _rotate(self, x: Any, turn: int, keys: Any) -> Any:
        self.counts.rotations += 1
        return self.context.rotate(x, turn * self.packing.samples, keys)

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
