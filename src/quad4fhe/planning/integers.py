"""The circuit in integers: every weight times a power of two, rounded once.

These integers define the circuit: bounds and margins are computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe._dyadic import BigInts, Dyadic, nearest_doubles
from quad4fhe.planning.exactness import NotExactError
from quad4fhe.planning.fold import Circuit, resolution


@dataclass(frozen=True)
class Scales:
    """log2 of the three scales: of the encrypted features, of W and of V."""

    x: int
    w: int
    v: int

    @property
    def hidden(self) -> int:
        """log2 of the scale of y."""
        return self.x + self.w

    @property
    def out(self) -> int:
        """log2 of the scale of the reply: nothing is rescaled, so scales just multiply."""
        return 2 * self.hidden + self.v


def distinct_rows(W: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Indices (h,) of the distinct rows of W (m, d), and which of them each row equals, (m,)."""
    _, first, which = np.unique(W, axis=0, return_index=True, return_inverse=True)
    if first.size == len(W):
        return np.arange(len(W)), np.arange(len(W))
    return first.astype(np.int64), which.reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class IntegerCircuit:
    """round(scale * weight) for each array of a Circuit; t, U, c and a are Python integers of any size.

    The reply has the scale 2^out. Coefficients `a` (p, m) of lower powers are aligned with the highest one, which has
    the scale 2^unit.
    """

    W: IntArray
    t: BigInts
    V: IntArray
    U: BigInts | None
    c: BigInts
    shift: Array
    scales: Scales
    a: BigInts | None = None
    unit: int = 0

    @property
    def degree(self) -> int:
        """The degree p."""
        return 2 if self.a is None else int(self.a.shape[0])

    @property
    def out(self) -> int:
        """log2 of the scale of the reply."""
        return self.degree * self.scales.hidden + self.unit + self.scales.v

    def dequantised(self) -> Circuit:
        """The circuit that these integers represent, in float64."""
        s, a = self.scales, None
        if self.a is not None:
            places = range(1 - self.degree, 1)  # lower powers are aligned with the highest
            rows = zip(self.a, places, strict=True)
            a = np.array([nearest_doubles(row, place * s.hidden - self.unit) for row, place in rows])
        return Circuit(
            W=np.ldexp(self.W, -s.w),
            t=nearest_doubles(self.t, -s.hidden),
            V=np.ldexp(self.V, -s.v),
            U=None if self.U is None else nearest_doubles(self.U, s.x - s.out),
            c=nearest_doubles(self.c, -self.out),
            shift=self.shift,
            a=a,
        )


def quantise(circuit: Circuit, scales: Scales) -> IntegerCircuit:
    """Round a folded circuit at the given scales. W and V must stay below 2^62, which every plan respects."""
    exact = circuit.exact
    if exact is None:
        raise AssertionError("only a folded circuit has exact numbers to round")
    a, unit = None, 0
    if circuit.a is not None and exact.a is not None:  # whole numbers at their own scales, so nothing is rounded
        unit = resolution(circuit.a[-1])
        places = [unit + k * scales.hidden for k in range(circuit.degree - 1, -1, -1)]
        rows = zip(exact.a.integers, places, strict=True)
        a = np.array([Dyadic(row, exact.a.exponent).rounded(place) for row, place in rows], dtype=object)
    out = circuit.degree * scales.hidden + unit + scales.v
    return IntegerCircuit(
        W=_short(exact.W.rounded(scales.w)),
        t=exact.t.rounded(scales.hidden),
        V=_short(exact.V.rounded(scales.v)),
        U=None if exact.U is None else exact.U.rounded(out - scales.x),
        c=exact.c.rounded(out),
        shift=circuit.shift,
        scales=scales,
        a=a,
        unit=unit,
    )


def _short(integers: BigInts) -> IntArray:
    try:
        return integers.astype(np.int64)
    except OverflowError:
        raise NotExactError("a weight of 2^63 or more does not fit; the plan must take smaller scales") from None
