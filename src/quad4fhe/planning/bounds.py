"""Bounds on the circuit's output and its slope over the box of inputs.

Overflow under encryption is silent. So each number here is an upper bound for every point of the box, not an estimate
from samples, and a client rejects a sample outside the box (`planning.box`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import comb

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.errors import InputError
from quad4fhe.planning.fold import Circuit, checked_box, taylor

# An eigendecomposition per class is worth it as long as all of them take a second or two. Beyond that, the Frobenius
# norm bounds the spectral norm, for one product per class; polynomials of units take one form for all classes.
_EIGEN_WORK = 4e9
_NEAR = 0.2  # of the largest eigenvalue; with 0.02, rounding grew to a percent of the bound where eigenvalues tie
ROUNDS = 12  # of tightening the ellipsoid; one gives the ball
_SLACK = 1e-9  # covers the rounding of the bound's own arithmetic where nothing cancels, many times over
_UNIT = 2.0**-53
_CELLS = 256  # parts of the range of a unit, over which a polynomial is bounded by its Taylor series
ENCODED_BITS = 62  # of an encoded input: one word of SEAL's encoder, with a bit to spare


@dataclass(frozen=True)
class Bound:
    """Upper bounds over the box: of |logit|, of the slope of a logit, and of |y| per unit.

    For polynomials of units `curves` (p + 1, m) bounds the sizes of their Taylor coefficients.
    """

    logit: float
    method: str
    interval: float
    ellipsoid: float
    slope: float
    hidden: Array
    curves: Array | None = None


def bound(circuit: Circuit, box: Array, rounds: int = ROUNDS) -> Bound:
    """Bound |logits| over the box by interval arithmetic per unit and by an enclosing ellipsoid; take the smaller.

    Above degree 2 the ellipsoid bounds quadratic forms that enclose the polynomials.

    The slope is a bound of the Euclidean norm of d logit / d x over the box, for the largest class.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = _bound(circuit, checked_box(box, circuit.features), rounds)
    if not np.isfinite([found.logit, found.slope]).all():
        raise InputError("the logits overflow float64 over the box; standardise the features or narrow the box")
    return found


def _bound(circuit: Circuit, corners: Array, rounds: int) -> Bound:
    if circuit.a is not None:
        return _bound_units(circuit, corners, rounds)
    middle, radius = _centre(circuit, corners)
    y_middle = circuit.W @ middle + circuit.t
    y_radius = np.abs(circuit.W) @ radius
    lost = 8 * (circuit.features + circuit.units + 8) * _UNIT
    interval = _interval(circuit, middle, radius, y_middle, y_radius)
    ellipsoid, slope = _ellipsoid(circuit, middle, radius, y_middle, rounds, lost)
    hidden = np.abs(circuit.W) @ (np.abs(middle) + radius) + np.abs(circuit.t)
    terms = np.abs(circuit.V) @ (hidden * hidden) + np.abs(circuit.c)
    steep = 2.0 * (np.abs(circuit.V) * hidden) @ np.abs(circuit.W)
    if circuit.U is not None:
        terms = terms + np.abs(circuit.U) @ (np.abs(middle) + radius)
        steep = steep + np.abs(circuit.U)
    # Sums that cancel lose units of their terms, which are far larger than the sums where features lie far from zero
    # or a square was completed with a tiny alpha.
    best = np.minimum(interval, ellipsoid) + lost * terms
    slope += lost * float(np.linalg.norm(steep, axis=1).max())
    # Each class may take its own bound; the name says which of the two the largest class used.
    widest = int(np.argmax(best))
    return Bound(
        logit=float(best[widest]) * (1 + _SLACK),
        method="interval" if interval[widest] <= ellipsoid[widest] else "ellipsoid",
        interval=float(interval.max()),
        ellipsoid=float(ellipsoid.max()),
        slope=slope * (1 + _SLACK),
        hidden=(np.abs(y_middle) + y_radius) * (1 + _SLACK) + lost * hidden,
    )


def _centre(circuit: Circuit, corners: Array) -> tuple[Array, Array]:
    """The middle of the shifted box and half its width, (d,) each.

    Shifted first: the middle of a narrow box far from zero would round by more than its width.
    """
    low, high = corners - circuit.shift
    return low / 2 + high / 2, high / 2 - low / 2


def _bound_units(circuit: Circuit, corners: Array, rounds: int) -> Bound:
    """Bounds from the range of each unit's polynomial, and from quadratic forms that enclose the logits."""
    middle, radius = _centre(circuit, corners)
    lost = 8 * (circuit.degree * (circuit.features + 4) + circuit.units + 8) * _UNIT
    hidden = np.abs(circuit.W) @ (np.abs(middle) + radius) + np.abs(circuit.t)
    y_middle = circuit.W @ middle + circuit.t
    y_radius = np.abs(circuit.W) @ radius * (1 + _SLACK) + lost * hidden
    around = circuit.taylor(y_middle[None])[:, 0]
    low, high, curves = _range(around, y_radius)
    positive, negative = np.maximum(circuit.V, 0.0), np.minimum(circuit.V, 0.0)
    top, bottom = positive @ high + negative @ low + circuit.c, positive @ low + negative @ high + circuit.c
    interval = np.maximum(np.abs(top), np.abs(bottom))
    ellipsoid = _enclosed(circuit, around, radius, y_radius, rounds, lost)
    # Terms of a sum that cancels lose units of their size, and the second powers below their size times the degree.
    terms = np.abs(circuit.V) @ circuit.sizes(hidden) + np.abs(circuit.c)
    best = (np.fmin(interval, ellipsoid) + 4 * circuit.degree * lost * terms) * (1 + _SLACK)
    widest = int(np.argmax(best))
    assert circuit.a is not None
    largest = taylor(np.concatenate([np.zeros((1, circuit.units)), np.abs(circuit.a)]), hidden[None])[:, 0]
    curves = (curves + circuit.degree * lost * largest) * (1 + _SLACK)
    steep = np.abs(circuit.V) * curves[1]
    slope = np.minimum(_norms(steep) * float(np.linalg.norm(circuit.W, 2)), steep @ _norms(circuit.W))
    return Bound(
        logit=float(best[widest]),
        method="interval" if interval[widest] <= ellipsoid[widest] else "ellipsoid",
        interval=float(interval.max()),
        ellipsoid=float(ellipsoid.max()),
        slope=float(slope.max()) * (1 + _SLACK),
        hidden=hidden * (1 + _SLACK),
        curves=curves,
    )


def _range(coefficients: Array, radius: Array) -> tuple[Array, Array, Array]:
    """The range of each unit's polynomial (p + 1, m) within `radius` (m,) of zero, and bounds of Taylor coefficients.

    Cell by cell: on a cell of radius h around s a polynomial stays within sum_i |g_i| h^i of its value there, g_i its
    Taylor coefficients at s; and each coefficient within sum_k C(k, i) |g_k| h^(k - i).
    """
    h = radius / _CELLS
    around = taylor(coefficients, (2 * np.arange(_CELLS)[:, None] + 1 - _CELLS) * h)
    size, p = np.abs(around), len(coefficients) - 1
    curves = np.array(
        [sum(comb(k, i) * size[k] * h ** (k - i) for k in range(i, p + 1)).max(axis=0) for i in range(p + 1)]
    )
    spread = sum((size[k] * h**k for k in range(1, p + 1)), np.zeros_like(h))
    return (around[0] - spread).min(axis=0), (around[0] + spread).max(axis=0), curves


def _enclosed(circuit: Circuit, around: Array, radius: Array, y_radius: Array, rounds: int, lost: float) -> Array:
    """Per class: a bound of |logit| by two quadratic forms. Shape (K,).

    At a distance s from its pre-activation in the middle, a unit's polynomial is g + g' s + r(s) s^2, with `around` the
    coefficients (p + 1, m). Where V r stays below u, the logit stays below the value in the middle, plus what the
    gradient adds over the box, plus the sum of u s^2; likewise from below.
    """
    W = circuit.W * radius
    least, most, _ = _range(around[2:], y_radius)
    first, second = circuit.V * least, circuit.V * most
    value = circuit.V @ around[0] + circuit.c
    steep = np.abs((circuit.V * around[1]) @ W).sum(axis=1)
    above, below = np.maximum(first, second), -np.minimum(first, second)
    curve = _highest(W, np.concatenate([above, below]), rounds, lost).reshape(2, -1)
    out: Array = np.maximum(np.abs(value + steep + curve[0]), np.abs(value - steep - curve[1]))
    return out


def _highest(W: Array, weights: Array, rounds: int, lost: float) -> Array:
    """Upper bounds (n,) of z' W' diag(v) W z over the unit cube, for each row v of `weights` (n, m); at least zero.

    Over an ellipsoid around the cube, as in `_ellipsoid`: one for all rows, fitted to the largest weights of any row.
    """
    (m, d), core = W.shape, _core(W)
    together = np.maximum(weights.max(axis=0), 0.0)
    taken, largest = np.full(len(core), np.sqrt(d)), np.inf
    p = np.full(d, 1.0 / d)
    for _ in range(rounds if d <= m else 1):
        root = 1.0 / np.sqrt(p) if d <= m else taken
        form = (core * together) @ core.T * root * root[:, None]
        if not np.isfinite(form).all():
            return np.full(len(weights), np.inf)
        spectrum, vectors = np.linalg.eigh(form)
        if spectrum[-1] < largest:
            largest, taken = float(spectrum[-1]), root
        if d <= m and largest > 0:
            # All eigenvectors near the top count, so that the result depends smoothly on the weights where some tie.
            near = np.exp((spectrum - spectrum[-1]) / (_NEAR * largest))
            p = np.maximum(0.7 * p + 0.3 * np.square(vectors) @ (near / near.sum()), 1e-6 / d)
            p /= p.sum()
    core = core * taken[:, None]
    slack = lost * (np.abs(weights) @ np.square(core).sum(axis=0) + float(together @ np.square(core).sum(axis=0)))
    found = np.full(len(weights), largest)
    if len(weights) * float(len(core)) ** 3 <= _EIGEN_WORK:
        found = np.minimum(found, [np.linalg.eigvalsh((core * v) @ core.T)[-1] for v in weights])
    return np.asarray(np.maximum(found, 0.0) + slack)


def _norms(rows: Array) -> Array:
    """Euclidean norms of rows, whose squares may be too small for float64."""
    size = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-300)
    return np.asarray(size[:, 0] * np.linalg.norm(rows / size, axis=1))


def _interval(circuit: Circuit, middle: Array, radius: Array, y_middle: Array, y_radius: Array) -> Array:
    """Per class: the sum over units of the range of V_j y_j^2, plus the range of the skip. Shape (K,)."""
    low, high = y_middle - y_radius, y_middle + y_radius
    largest = np.maximum(low * low, high * high)
    smallest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low * low, high * high))
    positive, negative = np.maximum(circuit.V, 0.0), np.minimum(circuit.V, 0.0)
    top = positive @ largest + negative @ smallest + circuit.c
    bottom = positive @ smallest + negative @ largest + circuit.c
    if circuit.U is not None:
        centre, spread = circuit.U @ middle, np.abs(circuit.U) @ radius
        top, bottom = top + centre + spread, bottom + centre - spread
    out: Array = np.maximum(np.abs(top), np.abs(bottom))
    return out


def _ellipsoid(
    circuit: Circuit, middle: Array, radius: Array, y_middle: Array, rounds: int, lost: float
) -> tuple[Array, float]:
    """Per class: |F(middle)| + |gradient| + the quadratic form over an ellipsoid around the box; and the slope bound.

    With x = middle + radius * z the box is |z_i| <= 1, and for any positive weights p with sum 1 it lies inside the
    ellipsoid sum_i p_i z_i^2 <= 1, where a quadratic form z' A z stays below the largest eigenvalue of
    P^-1/2 A P^-1/2. Equal weights give the ball; moving weight to the coordinates of the leading eigenvector
    tightens it (the dual of the max-cut relaxation). `lost` is the relative error of a sum in float64.
    """
    W = circuit.W * radius
    gradient = 2.0 * (circuit.V * y_middle) @ W
    value = circuit.V @ (y_middle * y_middle) + circuit.c
    if circuit.U is not None:
        gradient += circuit.U * radius
        value = value + circuit.U @ middle
    work = float(min(circuit.features, circuit.units)) ** 3 * circuit.outputs * 10
    form = _frobenius if work > _EIGEN_WORK else _form
    core = _core(W)
    curve = np.array([form(W, core, v, rounds, lost) for v in circuit.V])
    # The slope per unit of x, not of z: its own spectral norm, by the Frobenius bound through the Gram matrix. The sum
    # of squares cancels where units do; what it loses is within the sum of absolute values.
    gram = circuit.W @ circuit.W.T
    squares = ((circuit.V @ (gram * gram)) * circuit.V).sum(axis=1)
    whole = np.abs(circuit.V) @ (circuit.W * circuit.W).sum(axis=1)
    bend = 2.0 * np.sqrt(np.maximum(squares, 0.0) + 4 * lost * whole * whole)
    still = 2.0 * (circuit.V * y_middle) @ circuit.W
    if circuit.U is not None:
        still = still + circuit.U
    slope = np.linalg.norm(still, axis=1) + bend * float(np.linalg.norm(radius))
    return np.abs(value) + np.abs(gradient).sum(axis=1) + curve, float(slope.max())


def _core(W: Array) -> Array:
    """W' itself (d, m), or the triangle R (m, m) of its QR decomposition where that is smaller.

    A = W' diag(v) W has the nonzero eigenvalues, and so the norms, of R diag(v) R'.
    """
    if W.shape[1] <= W.shape[0]:
        return W.T
    _, triangle = np.linalg.qr(W.T)
    out: Array = triangle
    return out


def _frobenius(W: Array, core: Array, v: Array, _: int, lost: float) -> float:
    """An upper bound of max |z' A z| over the unit cube: d times the Frobenius norm of A, formed entry by entry."""
    slack = lost * float(np.abs(v) @ (W * W).sum(axis=1))
    return float(W.shape[1] * (np.linalg.norm((core * v) @ core.T) + slack))


def _form(W: Array, core: Array, v: Array, rounds: int, lost: float) -> float:
    """An upper bound of max |z' A z| over the unit cube for A = W' diag(v) W."""
    d, size = W.shape[1], np.abs(v)
    A = (core * v) @ core.T
    if d > W.shape[0]:
        spectrum = np.linalg.eigvalsh(A)
        return float(d * (np.abs(spectrum).max() + lost * (size @ (W * W).sum(axis=1))))
    best = float(np.abs(A).sum() + lost * (size @ np.abs(W).sum(axis=1) ** 2))
    p = np.full(d, 1.0 / d)
    for _ in range(rounds):
        root = 1.0 / np.sqrt(p)
        if not np.isfinite(A).all():
            return np.inf
        spectrum, vectors = np.linalg.eigh(A * root * root[:, None])
        worst = int(np.argmax(np.abs(spectrum)))
        slack = lost * float(size @ ((W * root) ** 2).sum(axis=1))
        best = min(best, float(np.abs(spectrum[worst])) + slack)
        p = np.maximum(0.7 * p + 0.3 * vectors[:, worst] ** 2, 1e-6 / d)
        p /= p.sum()
    return best


@dataclass(frozen=True)
class Domain:
    """The inputs that a client may encrypt, and how large a slot of the reply can become.

    `bound` holds for every slot of a reply, including padding and partial sums, `logit` for the logits alone, by
    `method`. `outlier_bits` says how many bits the outermost thousandth of the samples costs, if samples were given.
    """

    low: tuple[float, ...] = field(repr=False)
    high: tuple[float, ...] = field(repr=False)
    bound: float
    logit: float
    method: str
    interval: float
    ellipsoid: float
    outlier_bits: float | None = None

    @property
    def box(self) -> Array:
        """The box as an array (2, d)."""
        return np.array([self.low, self.high])


def largest_scale(reach: Array) -> float:
    """log2 of the largest scale at which every |x - shift| up to `reach` (d,) can be encoded."""
    return ENCODED_BITS - float(np.log2(max(1.0, float(reach.max(initial=0.0)))))
