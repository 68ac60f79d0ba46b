"""The decisions of a model in exact arithmetic, for every sample of a data set.

Floating point settles almost all samples, by a forward-error bound that starts at the weights and inputs. The others
are evaluated in whole numbers, because floats are dyadic rationals. A binary score is treated as two logits (0, score),
so that one rule covers all models: the largest logit wins, the lowest index on a tie.

A transcendental activation (GELU, tanh) has no rational values. Its samples are settled by intervals that are proved to
contain the logits, with more and more bits; two logits that are still level at the last step count as a tie. The
first, floating-point step trusts the library's exp, tanh and erf to `activations.LIBRARY`, far less than they claim.
The decisions of a network that is a graph (`deep.GraphMLP`) are measured. `Settled` counts what was settled how.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, BoolArray, IntArray, row_chunks, samples
from quad4fhe._dyadic import Dyadic
from quad4fhe._progress import Progress, silent
from quad4fhe.activations.intervals import ZERO, Interval
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.settled import BITS, WAYS, Settled, float_way

if TYPE_CHECKING:  # exact decisions do not depend on how the rows are stored
    from quad4fhe.workers.scratch import Arrays
    from quad4fhe.workers.shards import Shard

_UNIT = 2.0**-53
_TINY = 2.0**-1022  # covers every product that underflows, also where results are flushed to zero
_SLACK = 1.001  # covers the rounding of the bounds themselves, which are sums of fewer than 2^40 positive terms

Model = MLP | PolynomialModel


@dataclass(frozen=True)
class Decisions:
    """Decisions of one model on n samples; `label` and `strict` are exact, `gap` is within `gap_error`.

    label (n,) is the winning class, strict (n,) says that no other class ties with it, gap (n,) is the winner's logit
    minus the runner-up's, and `rational` counts the samples that only exact arithmetic could settle. `settled` counts
    all rows by how they were settled, and `close` those so near to the limit of the float bound that another machine
    could settle them in another way.
    """

    label: IntArray
    strict: BoolArray
    gap: Array
    gap_error: Array
    rational: int
    settled: Settled
    close: int

    @property
    def ties(self) -> int:
        """How many samples have two or more classes exactly level at the top."""
        return int(np.count_nonzero(~self.strict))


def decisions(model: Model, X: NDArray[Any], name: str = "X", progress: Progress = silent) -> Decisions:
    """Decide every row of X (n, d) exactly; errors call the data `name`."""
    checked = samples(name, X, model.features)
    return _decisions(model, checked.shape[0], row_chunks(name, checked, _row_bytes(model)), name, progress)


def shard_decisions(model: Model, shard: Shard) -> Decisions:
    """Decide every row of a shard exactly."""
    return _decisions(model, shard.samples, shard.chunks(_row_bytes(model)), shard.name, silent)


def target_labels(shard: Shard, mlp: MLP) -> tuple[IntArray, BoolArray]:
    """The trained model's decisions on a shard and whether each is strict, computed once and kept."""
    label, strict, _ = _targets(shard, mlp)
    return label.astype(np.int64), strict


def target_settled(shard: Shard, mlp: MLP) -> Settled:
    """How these decisions were settled."""
    return Settled.of(_targets(shard, mlp)[2].tolist())


def _targets(shard: Shard, mlp: MLP) -> Arrays:
    def make() -> Arrays:
        found = shard_decisions(mlp, shard)
        return found.label.astype(np.min_scalar_type(mlp.classes - 1)), found.strict, np.array(found.settled.counts())

    return shard.keep("targets", make)


def _row_bytes(model: Model) -> int:
    return 8 * (model.features + 4 * model.units + 4 * model.outputs)


def _measured(model: MLP, n: int, chunks: Iterable[tuple[slice, Array]]) -> Decisions:
    """The decisions of a graph, as its floats give them; nothing bounds their error."""
    label, strict, gap = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.bool_), np.empty(n)
    for rows, chunk in chunks:
        logits = model.logits(chunk)
        logits, _ = _two_or_more(logits, np.zeros_like(logits))
        last = np.sort(logits, axis=1)[:, -2:]
        label[rows], gap[rows] = np.argmax(logits, axis=1), last[:, 1] - last[:, 0]
        strict[rows] = gap[rows] > 0
    settled = Settled.of([n if way == "measured" else 0 for way in WAYS])
    return Decisions(label, strict, gap, np.full(n, np.inf), 0, settled, 0)


def _decisions(model: Model, n: int, chunks: Iterable[tuple[slice, Array]], name: str, progress: Progress) -> Decisions:
    if isinstance(model, MLP) and model.network is not None:
        return _measured(model, n, chunks)
    label = np.empty(n, dtype=np.int64)
    strict = np.ones(n, dtype=np.bool_)
    gap, gap_error = np.empty(n), np.zeros(n)
    whole = WholeNumbers(model)
    ways: Counter[str] = Counter()
    rational = close = 0
    seen: dict[bytes, Verdict] = {}
    by_floats = float_way(model) if isinstance(model, MLP) else "bound"
    for rows, chunk in chunks:
        # Inputs near the end of the float range overflow here; such samples stay open.
        with np.errstate(over="ignore", invalid="ignore"):
            logits, error = _two_or_more(*bounded_logits(model, chunk))
            top, settled, near, gap[rows], gap_error[rows] = _settle(logits, error)
        label[rows] = top
        ways[by_floats] += int(np.count_nonzero(settled))
        close += near
        for i in np.flatnonzero(~settled):
            key = chunk[i].tobytes()
            if key not in seen:
                seen[key] = whole.decision(chunk[i])
                rational += 1
                progress(f"exact arithmetic on row {rows.start + int(i)} of {name}", rows.start + int(i), n)
            at = rows.start + int(i)
            label[at], strict[at], gap[at], gap_error[at], way = seen[key]
            ways[way] += 1
    return Decisions(label, strict, gap, gap_error, rational, Settled.of([ways[way] for way in WAYS]), close)


def bounded_logits(model: Model, X: Array) -> tuple[Array, Array]:
    """Logits (n, K) and a rigorous bound on their rounding error, for any order of summation and with FMA or not."""
    d, m = model.features, model.units
    assert not isinstance(model, MLP) or model.network is None, "a graph has no error bound"
    y = X @ model.W1.T + model.b1
    y_size = np.abs(X) @ np.abs(model.W1).T + np.abs(model.b1)
    y_error = _SLACK * (2 * (d + 2) * _UNIT * y_size + (d + 2) * _TINY)
    rounding = 2 * (m + 4) * _UNIT
    if isinstance(model, MLP) and model.layers:
        return _bounded_layers(model, y, y_error)
    if isinstance(model, MLP):
        r = model.activation(y)
        size = np.abs(model.W2)
        logits = r @ model.W2.T + model.b2
        moved = y_error if model.activation.is_default else model.activation.error(y, y_error)
        error = rounding * (np.abs(r) @ size.T + np.abs(model.b2)) + moved @ size.T
    else:
        return _bounded_polynomial(model, y, y_error)
    return logits, _SLACK * error + (m + 4) * _TINY


def _bounded_layers(model: MLP, y: Array, y_error: Array) -> tuple[Array, Array]:
    """The same through all layers of a deeper network: the error of each layer moves the next one."""
    for activation, (W, b) in zip(model.activations, model.layers, strict=True):
        m, size = W.shape[1], np.abs(W).T
        r = activation(y)
        moved = y_error if activation.is_default else activation.error(y, y_error)
        y_error = _SLACK * (2 * (m + 4) * _UNIT * (np.abs(r) @ size + np.abs(b)) + moved @ size) + (m + 4) * _TINY
        y = r @ W.T + b
    return y, y_error


def _bounded_polynomial(model: PolynomialModel, y: Array, y_error: Array) -> tuple[Array, Array]:
    """The same for powers of y, which is off by at most y_error: (|y| + e)^k - |y|^k <= k e (|y| + e)^(k - 1)."""
    degree, m = model.degree, model.units
    reach = np.abs(y) + y_error
    power, size = np.ones_like(y), np.ones_like(y)
    logits, terms = np.broadcast_to(model.c, (len(y), model.outputs)).copy(), np.abs(model.c) + np.zeros((len(y), 1))
    moved = np.zeros_like(logits)
    for k, block in enumerate(model.A, start=1):
        weight = np.abs(block).T
        moved += (k * y_error * size + _TINY) @ weight
        power, size = power * y, size * reach
        logits += power @ block.T
        terms += size @ weight
    rounding = 2 * (m + 2 * degree + 4) * _UNIT
    return logits, _SLACK * (rounding * terms + moved) + degree * (m + 4) * _TINY


def _two_or_more(logits: Array, error: Array) -> tuple[Array, Array]:
    if logits.shape[1] > 1:
        return logits, error
    zero = np.zeros_like(logits)
    return np.hstack([zero, logits]), np.hstack([zero, error])


def _settle(logits: Array, error: Array) -> tuple[IntArray, BoolArray, int, Array, Array]:
    """The winner per row, whether the error bound leaves no doubt, how many are near it, and the gap with its error."""
    at = np.arange(logits.shape[0])
    top = np.argmax(logits, axis=1)
    best, low = logits[at, top], (logits - error)[at, top]
    rivals, high = logits.copy(), logits + error
    rivals[at, top] = -np.inf
    high[at, top] = -np.inf
    second = np.argmax(rivals, axis=1)
    gap = best - rivals[at, second]
    gap_error = error[at, top] + error.max(axis=1)
    room = low - high.max(axis=1)
    near = int(np.count_nonzero(np.abs(room) <= 0.5 * gap_error))
    # A comparison with NaN is false, so a row that overflowed stays open.
    return top.astype(np.int64), room > 0, near, gap, gap_error


class Verdict(NamedTuple):
    """The decision of one sample: its class, whether it is strict, its gap within `gap_error`, and how it was found."""

    label: int
    strict: bool
    gap: float
    gap_error: float
    way: str


def _decide_exactly(logits: list[Fraction]) -> Verdict:
    best = max(logits)
    top = logits.index(best)
    rest = max(value for c, value in enumerate(logits) if c != top)
    gap = _nearest(best - rest)
    return Verdict(top, rest < best, gap, abs(gap) * _UNIT + 5e-324, "fractions")


def _decide_enclosed(logits: list[Interval]) -> Verdict | None:
    """The decision, if one interval is above all others."""
    top = max(range(len(logits)), key=lambda c: logits[c].low)
    others = [each for c, each in enumerate(logits) if c != top]
    rest = Interval(max(each.low for each in others), max(each.high for each in others))
    gap = logits[top] - rest
    if gap.low <= 0:
        return None
    nearest = _nearest(gap.low)
    return Verdict(top, True, nearest, _nearest(gap.high - gap.low) + 2 * abs(nearest) * _UNIT + 5e-324, "intervals")


def _nearest(value: Fraction) -> float:
    """The float nearest to a fraction, the largest where it is out of range and never zero where it is not zero."""
    try:
        nearest = float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max
    return nearest if nearest or not value else math.copysign(5e-324, value)


class WholeNumbers:
    """The model in whole numbers: exact logits and exact lifted statistics of single samples."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _weights(self) -> dict[str, Dyadic]:
        names = ("W1", "b1", "W2", "b2") if isinstance(self._model, MLP) else ("W1", "b1", "c")
        return {name: Dyadic.of(getattr(self._model, name)) for name in names}

    @cached_property
    def _blocks(self) -> list[Dyadic]:
        return [] if isinstance(self._model, MLP) else [Dyadic.of(block) for block in self._model.A]

    @cached_property
    def _layers(self) -> list[tuple[Dyadic, Dyadic]]:
        assert isinstance(self._model, MLP), "a polynomial has no layers after the first"
        layers = self._model.layers or ((self._model.W2, self._model.b2),)
        return [(Dyadic.of(W), Dyadic.of(b)) for W, b in layers]

    def hidden(self, x: Array) -> Dyadic:
        """Exact pre-activations (m,) of one sample (d,)."""
        w = self._weights
        return w["W1"] @ Dyadic.of(x) + w["b1"]

    def decision(self, x: Array) -> Verdict:
        """The winner of one sample, whether no other class ties with it, and its gap to the next."""
        if isinstance(self._model, MLP) and self._model.settled_by == "intervals":
            return self._decide_by_intervals(self._model, x)
        return _decide_exactly(self.logits(x))

    def _decide_by_intervals(self, mlp: MLP, x: Array) -> Verdict:
        y = [Interval.at(value) for value in self.hidden(x).fractions()]
        for bits in BITS:
            logits = self._enclosed(mlp, y, bits)
            found = [ZERO, *logits] if len(logits) == 1 else logits
            verdict = _decide_enclosed(found)
            if verdict is not None:
                return verdict
        floor = max(each.low for each in found)
        level = next(c for c, each in enumerate(found) if each.high >= floor)
        return Verdict(level, False, 0.0, _nearest(max(each.high for each in found) - floor), "level")

    def _enclosed(self, mlp: MLP, values: list[Interval], bits: int) -> list[Interval]:
        """Intervals around the logits, from intervals around the pre-activations of the first layer."""
        unit = 2**bits
        for activation, (weight, bias) in zip(mlp.activations, self._layers, strict=True):
            active = [activation.around(each, j, bits) for j, each in enumerate(values)]
            low = np.array([math.floor(each.low * unit) for each in active], dtype=object)
            high = np.array([math.ceil(each.high * unit) for each in active], dtype=object)
            up, down = np.maximum(weight.integers, 0), np.minimum(weight.integers, 0)
            ends = (up @ low + down @ high, up @ high + down @ low)
            lows, highs = ((Dyadic(end, weight.exponent - bits) + bias).fractions() for end in ends)
            values = [Interval(*pair).rounded(bits) for pair in zip(lows, highs, strict=True)]
        return values

    def logits(self, x: Array) -> list[Fraction]:
        """Exact logits of one sample, a binary score as (0, score); only where fractions settle the decisions."""
        y = self.hidden(x)
        if not isinstance(self._model, MLP):
            out = self._weights["c"]
            for k, block in enumerate(self._blocks, start=1):
                out = out + block @ y**k
            return self._classes(out.fractions())
        if not all(each.is_default for each in self._model.activations):
            return self._classes(self._fractions(self._model, y.fractions()))
        for weight, bias in self._layers:
            y = weight @ Dyadic(np.maximum(y.integers, 0), y.exponent) + bias
        return self._classes(y.fractions())

    def _fractions(self, mlp: MLP, values: list[Fraction]) -> list[Fraction]:
        """The same for other activations than ReLU."""
        for activation, (W, b) in zip(mlp.activations, mlp.layers or ((mlp.W2, mlp.b2),), strict=True):
            active = [activation.fraction(value, j) for j, value in enumerate(values)]
            sums = [sum((Fraction(w) * u for w, u in zip(row, active, strict=True)), Fraction(0)) for row in W]
            values = [total + Fraction(bias) for total, bias in zip(sums, b, strict=True)]
        return values

    def lift(self, x: Array, degree: int = 2) -> list[list[Fraction]]:
        """Exact sums of k-th powers under an MLP's head, k = degree ... 1, one entry per class each (Eq. QHc: Q, L)."""
        y, head = self.hidden(x), self._weights["W2"]
        sums = [head @ y**k for k in range(degree, 0, -1)]
        return [self._classes(each.fractions()) for each in sums]

    def offsets(self) -> tuple[list[Fraction], list[Fraction]]:
        """Exact B_c (row sums of W2) and b_c, one entry per class."""
        w = self._weights
        total = Dyadic(w["W2"].integers.sum(axis=1), w["W2"].exponent)
        return self._classes(total.fractions()), self._classes(w["b2"].fractions())

    def _classes(self, values: list[Fraction]) -> list[Fraction]:
        return [Fraction(0), *values] if len(values) == 1 else values
