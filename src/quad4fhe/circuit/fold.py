"""From a quadratic head to the circuit that runs encrypted: affine, square, affine, and at most one linear skip.

Decides how the linear term T y is carried, because that decides depth, error and cost. Folding is exact: sums such as
b1 + W1 shift cancel where features lie far from zero, and what float64 loses there can change decisions. `plan` chooses
between the two forms, `quantise` rounds the exact numbers once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, row_chunks, samples, tensor
from quad4fhe.circuit.dyadic import Dyadic
from quad4fhe.errors import InputError
from quad4fhe.quadratic import QuadraticModel

Form = Literal["square", "skip"]
FORMS: tuple[Form, ...] = ("square", "skip")

# T is a multiple 2 t_j of S column by column when it was made from shared or unitwise coefficients, up to the rounding
# of those products; anything looser would change the function, not just its rounding.
_PROPORTIONAL = 64 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Exact:
    """The numbers of a folded circuit before any rounding."""

    t: Dyadic
    V: Dyadic
    U: Dyadic | None
    c: Dyadic


@dataclass(frozen=True, eq=False)
class Circuit:
    """logits(x) = V (y*y) + U z + c with z = x - shift and y = W z + t.

    W is (m, d), t is (m,), V is (K, m), U is (K, d) or None where no skip is needed, c is (K,), shift is (d,).
    For K >= 2 the mean over the classes is taken out of every logit: differences and decisions stay, and the values
    that must fit the chain are smaller. A folded circuit keeps its exact numbers; its doubles are the nearest to them.
    """

    W: Array
    t: Array
    V: Array
    U: Array | None
    c: Array
    shift: Array
    exact: Exact | None = None

    @property
    def form(self) -> Form:
        """How the linear term is carried: inside the square, or by a skip from the input."""
        return "square" if self.U is None else "skip"

    @property
    def features(self) -> int:
        """The input width d."""
        return int(self.W.shape[1])

    @property
    def units(self) -> int:
        """The hidden width m."""
        return int(self.W.shape[0])

    @property
    def outputs(self) -> int:
        """The number of logits K."""
        return int(self.V.shape[0])

    def logits(self, X: ArrayLike) -> Array:
        """The circuit's logits in the clear, shape (n, K)."""
        checked = samples("X", X, self.features)
        out = np.empty((checked.shape[0], self.outputs))
        for rows, chunk in row_chunks("X", checked, 8 * (2 * self.features + self.units)):
            z = chunk - self.shift
            y = z @ self.W.T + self.t
            out[rows] = (y * y) @ self.V.T + self.c
            if self.U is not None:
                out[rows] += z @ self.U.T
        return out


def centred(model: QuadraticModel) -> tuple[Dyadic, Dyadic, Dyadic]:
    """S, T, c with the mean over the classes taken out, exactly; unchanged for K = 1.

    The mean itself is rounded to a double, which is harmless: every logit loses the same function.
    """
    if model.outputs == 1:
        return Dyadic.of(model.S), Dyadic.of(model.T), Dyadic.of(model.c)
    return _centred(model.S), _centred(model.T), _centred(model.c)


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


def forms(model: QuadraticModel) -> tuple[Form, ...]:
    """The forms this model can take; a head with free S and T has no square form."""
    S, T, _ = centred(model)
    return FORMS if completed(S.floats(), T.floats()) is not None else ("skip",)


def nearest_zero(box: Array) -> Array:
    """The point of the box (2, d) nearest to zero, shape (d,): what the client takes off before it encodes.

    Rounded weights err in proportion to |x|, so a feature that lives far from zero would waste precision.
    """
    out: Array = np.clip(0.0, box[0], box[1])
    return out


def fold(model: QuadraticModel, box: ArrayLike, form: Form) -> Circuit:
    """Fold a model in the given form; `skip` is exactly the (centred) head, `square` up to the rounding of its offsets.

    `square` completes the square per unit, S y^2 + T y = S (y + t)^2 - S t^2: no further operation, but the offset
    makes the squares larger than their sum, and impossible where alpha_j is zero. `skip` keeps S y^2 and carries
    T y = (T W1) x + T b1 from the input: K x d more products, and the smaller error.
    """
    corners = checked_box(box, model.features)
    shift = nearest_zero(corners)
    S, T, c = centred(model)
    W = Dyadic.of(model.W1)
    hidden = Dyadic.of(model.b1) + W @ Dyadic.of(shift)
    if form == "skip":
        return _circuit(model.W1, Exact(hidden, S, T @ W, c + T @ hidden), shift)
    offset = completed(S.floats(), T.floats())
    if offset is None:
        raise InputError("this head has no common offset per unit (free S and T): fold it with form='skip'")
    moved = Dyadic.of(offset)
    return _circuit(model.W1, Exact(hidden + moved, S, None, c - S @ (moved * moved)), shift)


def _circuit(W: Array, exact: Exact, shift: Array) -> Circuit:
    U = None if exact.U is None else exact.U.floats()
    return Circuit(W, exact.t.floats(), exact.V.floats(), U, exact.c.floats(), shift, exact)


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
