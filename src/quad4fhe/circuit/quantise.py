"""The circuit in integers: every weight times a power of two, rounded once.

Decides which integers the server multiplies with. The scales come from `plan`; how the products stay exact is left
to `he.residues`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.circuit.fold import Circuit

BigInts = NDArray[Any]  # dtype object, Python integers: biases and skips outgrow 64 bits long before the chain does


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
            t=_ldexp(self.t, -s.hidden),
            V=np.ldexp(self.V.astype(np.float64), -s.v),
            U=None if self.U is None else _ldexp(self.U, s.x - s.out),
            c=_ldexp(self.c, -s.out),
            shift=self.shift,
        )


def quantise(circuit: Circuit, scales: Scales) -> IntegerCircuit:
    """Round a circuit's weights at the given scales. W and V must stay below 2^62, which every plan respects."""
    return IntegerCircuit(
        W=np.rint(np.ldexp(circuit.W, scales.w)).astype(np.int64),
        t=_rounded(circuit.t, scales.hidden),
        V=np.rint(np.ldexp(circuit.V, scales.v)).astype(np.int64),
        U=None if circuit.U is None else _rounded(circuit.U, scales.out - scales.x),
        c=_rounded(circuit.c, scales.out),
        shift=circuit.shift,
        scales=scales,
    )


def _rounded(array: Array, log2_scale: int) -> BigInts:
    # Doubles are dyadic rationals, so the product is exact and the rounding is the only one.
    scale = Fraction(2) ** log2_scale
    out = np.empty(array.shape, dtype=object)
    out.ravel()[:] = [round(Fraction(value) * scale) for value in array.ravel().tolist()]
    return out


def _ldexp(integers: BigInts, log2_scale: int) -> Array:
    # Python's integer division rounds correctly, where float(big) * 2**-n could overflow on the way.
    power = 1 << abs(log2_scale)
    values = [(n / power if log2_scale < 0 else float(n * power)) for n in integers.ravel().tolist()]
    return np.array(values, dtype=np.float64).reshape(integers.shape)
