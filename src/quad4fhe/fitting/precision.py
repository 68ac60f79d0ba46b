"""How few bits a model can have: the fewest with which it keeps the fit's decisions but for a part of a standard error.

`rounding` makes a model of given bits; here they are chosen, and how many polynomials a free head needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.learning import Learned
from quad4fhe.fitting.rounding import FINER, GRID, SHARES, Bits, Copies, Units, rounded_units
from quad4fhe.mlp import MLP, decide
from quad4fhe.polynomial import PolynomialModel

_CHUNK = 8_192
_LOST = 0.25  # of a standard error: what rounding the coefficients may cost
_LEFT_OUT = 1.0  # of a standard error: what leaving out the smallest polynomials of a head may cost


class Precision:
    """Rounds polynomials of `mlp`, whose logits are those of the trained model over 2^power.

    `part` are the rows on which decisions are compared, `low` and `high` (m,) the range of each unit.
    """

    def __init__(self, mlp: MLP, part: Learned, power: int, low: Array, high: Array) -> None:
        self.mlp, self.part, self.power, self.low, self.high = mlp, part, power, low, high

    def rounded(self, basis: Basis, own: Array, constant: Array, *, lossless: bool = False) -> PolynomialModel:
        """The model of fewest bits that keeps the fit's decisions but for a fraction of a standard error."""
        pooled = bool((basis.mean == basis.mean[0]).all() and (own == own[:, :1]).all())
        low, high = self.low, self.high
        if pooled:
            low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
        units = Units.of(low, high)
        make = partial(rounded_units, self.mlp, units, basis, own, constant)
        if lossless:
            return self._fewest_bits(make, self.part.target.size, 0.0)
        weights = np.concatenate([self.mlp.W2 * each for each in own], axis=1)
        return self._fewest_bits(make, self._kept_unrounded(basis, weights, constant))

    def free(self, basis: Basis, weights: Array, constant: Array) -> PolynomialModel:
        """A free head of the fewest polynomials within a standard error of all of them, then of the fewest bits."""
        copies = Copies.split(weights, self.mlp.units)
        counts = sorted({min(len(copies), max(1, round(share * self.mlp.units))) for share in SHARES} | {len(copies)})
        makers = [self._maker(copies.first(max(1, count)), basis, constant) for count in counts]
        kept = self.kept(makers[-1](GRID[-1]))
        taken = next(make for make in makers if self.kept(make(GRID[-1])) >= kept - self._allowed(kept, _LEFT_OUT))
        return self._fewest_bits(taken, self._kept_unrounded(basis, weights, constant), _LEFT_OUT + _LOST)

    def _maker(self, part: Copies, basis: Basis, constant: Array) -> Callable[[Bits], PolynomialModel]:
        units = Units.of(self.low[part.of], self.high[part.of])
        return partial(rounded_units, part.network(self.mlp), units, part.basis(basis), part.own, constant)

    def _fewest_bits(
        self, make: Callable[[Bits], PolynomialModel], wanted: int, share: float = _LOST
    ) -> PolynomialModel:
        """The model of fewest bits that keeps `wanted` decisions but for this share of a standard error.

        Where no number of bits does, the one that keeps most.
        """
        most = self.kept(make(GRID[-1]))
        enough = most >= wanted - self._allowed(wanted, share)
        if enough:  # compare with the finest of the usual ones: it may keep some more, or fewer, by chance
            wanted, share = most, min(share, _LOST)
        tried: list[tuple[int, PolynomialModel]] = []
        for bits in GRID if enough else (GRID[-1], *FINER):
            model = make(bits)
            tried.append((self.kept(model), model))
            if tried[-1][0] >= wanted - self._allowed(wanted, share):
                return self._unscaled(model)
        return self._unscaled(max(tried, key=lambda each: each[0])[1])

    def _kept_unrounded(self, basis: Basis, weights: Array, constant: Array) -> int:
        """How many decisions polynomials of these weights (K, p m) and constants (K,) keep before they are rounded."""
        kept, m = 0, self.mlp.units
        for start in range(0, len(self.part.X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            y = np.asarray(self.part.X[rows], dtype=np.float64) @ self.mlp.W1.T + self.mlp.b1
            terms = (phi @ weights[:, k * m : (k + 1) * m].T for k, phi in enumerate(basis.polynomials(y)))
            kept += int(np.count_nonzero(decide(sum(terms, constant)) == self.part.target[rows]))
        return kept

    def _allowed(self, kept: int, share: float = _LOST) -> float:
        return share * float(np.sqrt(kept * (1 - kept / self.part.target.size)))

    def kept(self, model: PolynomialModel) -> int:
        """How many decisions a model keeps."""
        return int(np.count_nonzero(decide(model.logits(self.part.X)) == self.part.target))

    def _unscaled(self, model: PolynomialModel) -> PolynomialModel:
        if self.power == 0 or model.V is None or model.a is None:
            return model
        V, c = np.ldexp(model.V, self.power), np.ldexp(model.c, self.power)
        return PolynomialModel.by_unit(model.W1, model.b1, V, model.a, c)
