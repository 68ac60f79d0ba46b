"""Folds a polynomial model into the circuit that runs encrypted: affine, a polynomial of each unit, affine.

The linear term of a quadratic head goes inside the square or into a skip from the input; the two differ in error and
cost. A model of higher degree has a polynomial for every unit. Folding is exact, in Python integers times a power of
two: if features lie far from zero, sums such as b1 + W1 shift cancel, and their float64 errors can change decisions.
`integers.quantise` rounds the exact numbers once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, row_chunks, tensor
from quad4fhe._dyadic import Dyadic
from quad4fhe.errors import InputError
from quad4fhe.polynomial import PolynomialModel

Form = Literal["square", "skip", "units"]
FORMS: tuple[Form, ...] = ("square", "skip")

# T is a multiple 2 t_j of S column by column when it was made from shared or unitwise coefficients, up to the rounding
# of those products; anything looser would change the function, not just its rounding.
_PROPORTIONAL = 64 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Exact:
    """The numbers of a folded circuit before any rounding."""

    W: Dyadic
    t: Dyadic
    V: Dyadic
    U: Dyadic | None
    c: Dyadic
    a: Dyadic | None = None


@dataclass(frozen=True, eq=False)
class Circuit:
    """logits(x) = V g(y) + U z + c with z = x - shift and y = W z + t.

    W is (m, d), t is (m,), V is (K, m), U is (K, d) or None where no skip is needed, c is (K,), shift is (d,). g is the
    square where `a` is None, else g_j(y) = a_1j y + ... + a_pj y^p with a (p, m).
    For K >= 2 the mean over the classes is subtracted from every logit: differences and decisions stay the same, and
    the values that must fit the chain are smaller. A folded circuit keeps its exact numbers, and its doubles are the
    nearest to them.
    """

    W: Array
    t: Array
    V: Array
    U: Array | None
    c: Array
    shift: Array
    exact: Exact | None = None
    a: Array | None = None

    @cached_property
    def degree(self) -> int:
        """The degree p."""
        return 2 if self.a is None else int(self.a.shape[0])

    def activation(self, y: Array) -> Array:
        """g(y) of pre-activations (n, m)."""
        if self.a is None:
            return y * y
        out = self.a[-1] * y
        for a in self.a[-2::-1]:
            out = (out + a) * y
        return np.asarray(out)

    def taylor(self, y: Array) -> Array:
        """The Taylor coefficients g, g', g''/2, ... at pre-activations (n, m), shape (p + 1, n, m)."""
        if self.a is None:
            return np.stack([y * y, y + y, np.ones_like(y)])
        return taylor(np.concatenate([np.zeros((1, self.units)), self.a]), y)

    def sizes(self, y: Array) -> Array:
        """The sum of the absolute terms of g(y), which bounds |g(y)|, for |y| (n, m)."""
        if self.a is None:
            return y * y
        out = np.abs(self.a[-1]) * y
        for a in self.a[-2::-1]:
            out = (out + np.abs(a)) * y
        return np.asarray(out)

    @property
    def form(self) -> Form:
        """How the linear term is carried: inside the square, by a skip from the input, or by each unit's polynomial."""
        if self.a is not None:
            return "units"
        return "square" if self.U is None else "skip"

    @cached_property
    def features(self) -> int:
        """The input width d."""
        return int(self.W.shape[1])

    @cached_property
    def units(self) -> int:
        """The hidden width m."""
        return int(self.W.shape[0])

    @cached_property
    def outputs(self) -> int:
        """The number of logits K."""
        return int(self.V.shape[0])

    def logits(self, X: Array) -> Array:
        """The circuit's logits in the clear at checked samples, shape (n, K)."""
        out = np.empty((X.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", X, 8 * (2 * self.features + self.units), check=False):
            z = chunk - self.shift
            y = z @ self.W.T + self.t
            out[rows] = self.activation(y) @ self.V.T + self.c
            if self.U is not None:
                out[rows] += z @ self.U.T
        return out


def taylor(coefficients: Array, y: Array) -> Array:
    """The Taylor coefficients at y (n, m) of one polynomial for each unit, given and returned from power 0 up.

    `coefficients` is (p + 1, m), the result (p + 1, n, m).
    """
    p = len(coefficients) - 1
    out = np.empty((p + 1, *y.shape))
    out[:] = coefficients[:, None, :]
    for i in range(p):  # repeated synthetic division by (u - y)
        for k in range(p - 1, i - 1, -1):
            out[k] += y * out[k + 1]
    return out


def centred(model: PolynomialModel) -> tuple[Dyadic, Dyadic, Dyadic]:
    """S, T, c minus their means over the classes, exactly; unchanged for K = 1.

    Rounding the mean to a double is harmless: the same function is subtracted from every logit.
    """
    if model.degree != 2:
        raise InputError(f"this form is for models of degree 2, and this one has degree {model.degree}; plan again")
    T, S = model.A
    if model.outputs == 1:
        return Dyadic.of(S), Dyadic.of(T), Dyadic.of(model.c)
    return _centred(S), _centred(T), _centred(model.c)


def _centred(values: Array) -> Dyadic:
    return Dyadic.of(values) - Dyadic.of(values.mean(axis=0, keepdims=True))


def completed(S: Array, T: Array) -> Array | None:
    """The per-unit offset t_j with T = 2 S t, shape (m,), or None where no single offset serves every class."""
    weight = (S * S).sum(axis=0)
    dead = weight == 0.0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        offset = np.where(dead, 0.0, (S * T).sum(axis=0) / np.where(dead, 1.0, 2.0 * weight))
        left_over = np.abs(T - 2.0 * S * offset).max(axis=0)
    allowed = _PROPORTIONAL * np.abs(T).max(axis=0)
    if not np.isfinite(offset).all() or (left_over > allowed).any():
        return None
    out: Array = offset
    return out


def nearest_zero(box: Array) -> Array:
    """The point of the box (2, d) nearest to zero, shape (d,), which the client subtracts before encoding.

    The error of rounded weights is proportional to |x|, so a feature far from zero would waste precision.
    """
    out: Array = np.clip(0.0, box[0], box[1])
    return out


def fold(model: PolynomialModel, box: ArrayLike, form: Form) -> Circuit:
    """Fold a model over a box in the given form; see `Folding`."""
    return Folding(model, checked_box(box, model.features)).circuit(form)


@dataclass(frozen=True, eq=False)
class Folding:
    """A model over a checked box; each form is folded once, when it is first needed.

    `skip` keeps S y^2 and computes T y = (T W1) x + T b1 from the input: K x d more products, and the smaller error. It
    is exactly the (centred) head. `square` completes the square per unit, S y^2 + T y = S (y + t)^2 - S t^2. It needs
    no further operation, but its squares are larger than their sum, it is impossible if an alpha_j is zero, and its
    offsets are rounded. `units` is exactly the model, except that one function is subtracted from every logit.
    """

    model: PolynomialModel
    box: Array

    @cached_property
    def shift(self) -> Array:
        """What the client subtracts from every feature, shape (d,)."""
        return nearest_zero(self.box)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The forms this model can take; a head with free S and T has no square form."""
        if not self.model.is_quadratic:
            return () if self.model.V is None else ("units",)
        return FORMS if self._offset is not None else ("skip",)

    @cached_property
    def head(self) -> tuple[Dyadic, Dyadic, Dyadic]:
        """The centred S, T and c; see `centred`."""
        return centred(self.model)

    @cached_property
    def doubles(self) -> tuple[Array, Array, Array]:
        """The same in float64."""
        S, T, c = self.head
        return S.floats(), T.floats(), c.floats()

    def circuit(self, form: Form) -> Circuit:
        """The model in this form."""
        if form not in self._circuits:
            self._circuits[form] = self._units() if form == "units" else self._quadratic(form)
        return self._circuits[form]

    @cached_property
    def _circuits(self) -> dict[Form, Circuit]:
        return {}

    @cached_property
    def _offset(self) -> Array | None:
        S, T, _ = self.doubles
        return completed(S, T)

    @cached_property
    def _first(self) -> tuple[Dyadic, Dyadic]:
        """W1, and b1 + W1 shift."""
        W = Dyadic.of(self.model.W1)
        return W, Dyadic.of(self.model.b1) + W @ Dyadic.of(self.shift)

    def _quadratic(self, form: Form) -> Circuit:
        S, T, c = self.head
        W, hidden = self._first
        if form == "skip":
            exact = Exact(W, hidden, S, T @ W, c + T @ hidden)
        elif self._offset is not None:
            moved = Dyadic.of(self._offset)
            exact = Exact(W, hidden + moved, S, None, c - S @ (moved * moved))
        else:
            raise InputError("this head has no common offset per unit (free S and T): fold it with form='skip'")
        U = None if exact.U is None else exact.U.floats()
        return Circuit(self.model.W1, exact.t.floats(), self.doubles[0], U, exact.c.floats(), self.shift, exact)

    def _units(self) -> Circuit:
        model = self.model
        if model.V is None or model.a is None:
            raise InputError("this head has no common polynomial per unit: it can't be folded with form='units'")
        V, c = model.V, Dyadic.of(model.c)
        if model.outputs > 1:
            step = 2.0 ** -resolution(V)
            V = V - np.rint(V.mean(axis=0) / step) * step  # exact, on the grid of V: no bit is added
            c = _centred(model.c)
        W, t = self._first
        exact = Exact(W, t, Dyadic.of(V), None, c, Dyadic.of(model.a))
        return Circuit(model.W1, t.floats(), V, None, c.floats(), self.shift, exact, model.a)


def resolution(array: Array) -> int:
    """The smallest s for which 2^s times the array is whole."""
    exact = Dyadic.of(array)
    whole = [int(n) for n in exact.integers.ravel().tolist() if n]
    lowest = min(((n & -n).bit_length() - 1 for n in whole), default=0)
    return -exact.exponent - lowest


def checked_box(box: ArrayLike, features: int) -> Array:
    """The box as (2, features), lowest row first."""
    corners = tensor("box", box, 2)
    if corners.shape != (2, features):
        raise InputError(f"box has shape {corners.shape}, wanted (2, {features}): per-feature minimum and maximum")
    wrong = np.flatnonzero(corners[0] > corners[1])
    if wrong.size:
        i = int(wrong[0])
        raise InputError(f"box has minimum {corners[0, i]:g} above maximum {corners[1, i]:g} at feature {i}")
    return corners
