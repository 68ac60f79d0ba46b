"""The circuit in integers: every weight times a power of two, rounded once.

Decides which integers the server multiplies with. From here on the integers are the circuit: bounds and margins are
taken from them. The scales come from `plan`; `he.residues` keeps the products exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe.circuit.dyadic import BigInts, Dyadic, nearest_doubles
from quad4fhe.circuit.exact import NotExactError
from quad4fhe.circuit.fold import Circuit


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


@dataclass(frozen=True, eq=False)
class IntegerCircuit:
    """round(scale * weight) for each array of a Circuit; t, U, c are Python integers of any size."""

    W: IntArray
    t: BigInts
    V: IntArray
    U: BigInts | None
    c: BigInts
    shift: Array
    scales: Scales

    def dequantised(self) -> Circuit:
        """The circuit these integers stand for, in float64."""
        s = self.scales
        return Circuit(
            W=np.ldexp(self.W.astype(np.float64), -s.w),
            t=nearest_doubles(self.t, -s.hidden),
            V=np.ldexp(self.V.astype(np.float64), -s.v),
            U=None if self.U is None else nearest_doubles(self.U, s.x - s.out),
            c=nearest_doubles(self.c, -s.out),
            shift=self.shift,
        )


def quantise(circuit: Circuit, scales: Scales) -> IntegerCircuit:
    """Round a folded circuit at the given scales. W and V must stay below 2^62, which every plan respects."""
    exact = circuit.exact
    if exact is None:
        raise AssertionError("only a folded circuit has exact numbers to round")
    return IntegerCircuit(
        W=_short(Dyadic.of(circuit.W).rounded(scales.w)),
        t=exact.t.rounded(scales.hidden),
        V=_short(exact.V.rounded(scales.v)),
        U=None if exact.U is None else exact.U.rounded(scales.out - scales.x),
        c=exact.c.rounded(scales.out),
        shift=circuit.shift,
        scales=scales,
    )


def _short(integers: BigInts) -> IntArray:
    try:
        return integers.astype(np.int64)
    except OverflowError:
        raise NotExactError("a weight of 2^63 or more does not fit; the plan must take smaller scales") from None
