"""The same arithmetic for primes below 2^50, in float64: a fused multiply-add gives the exact error of a product.

Vector units multiply doubles, not 64-bit integers, so this is several times as fast as `_kernels_numba`. Sizes: with
|x| <= 2^51 and |w| <= q/2 the quotient of the product p = x w by q is below 2^50 and wrong by less than 3/8 before it
is rounded to k, so p - k q and the error of p are whole numbers below 2^53, and their sum x w - k q is below 0.88 q.
Sums are centred before they exceed 2^51: after every step of a transform for the largest primes, after some for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.layouts.lift import _kernels_numba as wide

Words = NDArray[np.uint64]
LARGEST = 2**50
MOST_BITS = 50  # of a switched number: its quotient is a double
_ROUND = 6755399441055744.0  # adding and taking off 1.5 * 2^52 rounds |v| < 2^51 to the nearest integer
_DOUBLES = 7  # sums of so many products, each below q, stay below 2^53
_LANES = 16  # steps shorter than this are taken on the transposed polynomial, where they are long


def _typed_fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    signature = types.float64(types.float64, types.float64, types.float64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return signature, generate


_fma: Any = intrinsic(_typed_fma)


@njit(inline="always")
def _centred(x: Any, q: Any, inverse: Any) -> Any:
    return _fma(-((x * inverse + _ROUND) - _ROUND), q, x)


@njit(inline="always")
def _times(x: Any, w: Any, q: Any, inverse: Any) -> Any:
    p = x * w
    k = (p * inverse + _ROUND) - _ROUND
    return _fma(-k, q, p) + _fma(x, w, -p)


# Functions of their own, so that the compiler sees arrays that do not overlap, and uses vectors.
@njit(nogil=True, cache=True)
def _upwards(up: Any, down: Any, w: Any, q: Any, inverse: Any) -> None:
    for i in range(up.size):
        x, y = _centred(up[i], q, inverse), _times(down[i], w, q, inverse)
        up[i] = x + y
        down[i] = x - y


@njit(nogil=True, cache=True)
def _upwards_each(up: Any, down: Any, w: Any, q: Any, inverse: Any) -> None:
    for i in range(up.size):
        x, y = _centred(up[i], q, inverse), _times(down[i], w[i], q, inverse)
        up[i] = x + y
        down[i] = x - y


@njit(nogil=True, cache=True)
def _downwards(up: Any, down: Any, w: Any, q: Any, inverse: Any) -> None:
    for i in range(up.size):
        x, y = up[i], down[i]
        up[i] = _centred(x + y, q, inverse)
        down[i] = _times(x - y, w, q, inverse)


@njit(nogil=True, cache=True)
def _downwards_lazy(up: Any, down: Any, w: Any, q: Any, inverse: Any) -> None:
    for i in range(up.size):
        x, y = up[i], down[i]
        up[i] = x + y
        down[i] = _times(x - y, w, q, inverse)


@njit(nogil=True, cache=True)
def _downwards_each(up: Any, down: Any, w: Any, q: Any, inverse: Any) -> None:
    for i in range(up.size):
        x, y = up[i], down[i]
        up[i] = _centred(x + y, q, inverse)
        down[i] = _times(x - y, w[i], q, inverse)


@njit(nogil=True, cache=True)
def _transform(v: Any, t: Any, q: Any, inverse: Any, roots: Any, late: Any) -> None:
    """Transform v (N,) in place; |v| <= 2^51 before, centred after."""
    n = v.size
    rows = n // _LANES
    step, blocks = n, 1
    while step > _LANES:
        step >>= 1
        for i in range(blocks):
            start = 2 * i * step
            _upwards(v[start : start + step], v[start + step : start + 2 * step], roots[blocks + i], q, inverse)
        blocks <<= 1
    for i in range(rows):
        for j in range(_LANES):
            t[j, i] = v[i * _LANES + j]
    step, stage = _LANES // 2, 0
    while step >= 1:
        for j in range(_LANES):
            if j & step:
                continue
            _upwards_each(t[j], t[j + step], late[stage, j // (2 * step)], q, inverse)
        step >>= 1
        stage += 1
    for i in range(rows):
        for j in range(_LANES):
            v[i * _LANES + j] = _centred(t[j, i], q, inverse)


@njit(nogil=True, cache=True)
def _forward(a: Any, q: Any, inverse: Any, roots: Any, late: Any, v: Any, t: Any) -> None:
    unsigned = np.uint64(q)
    for row in range(a.shape[0]):
        source = a[row]
        for j in range(v.size):
            v[j] = _centred(np.float64(np.int64(source[j])), q, inverse)
        _transform(v, t, q, inverse, roots, late)
        for j in range(v.size):
            x = np.int64(v[j])
            source[j] = np.uint64(x) + unsigned if x < 0 else np.uint64(x)


@njit(nogil=True, cache=True)
def _inverse(v: Any, t: Any, q: Any, inverse: Any, roots: Any, late: Any, lazy: Any) -> None:
    """Transform v (N,) back in place, but for the factor 1 / N; |v| <= 2^51 before and after."""
    n = v.size
    rows = n // _LANES
    for i in range(rows):
        for j in range(_LANES):
            t[j, i] = v[i * _LANES + j]
    for j in range(_LANES):
        for i in range(rows):
            t[j, i] = _centred(t[j, i], q, inverse)
    step, stage = 1, late.shape[0] - 1
    while step < _LANES:
        for j in range(_LANES):
            if j & step:
                continue
            _downwards_each(t[j], t[j + step], late[stage, j // (2 * step)], q, inverse)
        step <<= 1
        stage -= 1
    for i in range(rows):
        for j in range(_LANES):
            v[i * _LANES + j] = t[j, i]
    step, blocks, grown = _LANES, n // (2 * _LANES), 0
    while blocks >= 1:
        for i in range(blocks):
            start = 2 * i * step
            up, down = v[start : start + step], v[start + step : start + 2 * step]
            if grown < lazy:
                _downwards_lazy(up, down, roots[blocks + i], q, inverse)
            else:
                _downwards(up, down, roots[blocks + i], q, inverse)
        grown = grown + 1 if grown < lazy else 0
        step <<= 1
        blocks >>= 1


@njit(nogil=True, cache=True)
def _backward(a: Any, q: Any, inverse: Any, roots: Any, late: Any, lazy: Any, last: Any, v: Any, t: Any) -> None:
    n = v.size
    unsigned = np.uint64(q)
    for row in range(a.shape[0]):
        source = a[row]
        for j in range(n):
            v[j] = np.float64(np.int64(source[j]))
        _inverse(v, t, q, inverse, roots, late, lazy)
        for j in range(n):
            x = np.int64(_centred(_times(v[j], last, q, inverse), q, inverse))
            source[j] = np.uint64(x) + unsigned if x < 0 else np.uint64(x)


@njit(nogil=True, cache=True)
def rebase(first: Any, second: Any, mask: Any, secret: Any, prime: Any, out: Any) -> None:
    """out = first + (second - mask) secret, for one polynomial (N,) each."""
    q, inverse, unsigned = float(prime), 1.0 / prime, np.uint64(prime)
    for i in range(first.size):
        turn = np.float64(np.int64(second[i]) - np.int64(mask[i]))
        own = _centred(np.float64(np.int64(secret[i])), q, inverse)
        total = _times(turn, own, q, inverse) + np.float64(np.int64(first[i]))
        x = np.int64(_centred(total, q, inverse))
        out[i] = np.uint64(x) + unsigned if x < 0 else np.uint64(x)


@njit(nogil=True, cache=True)
def _combine(weights: Any, operands: Any, q: Any, inverse: Any, v: Any, out: Any) -> None:
    unsigned = np.uint64(q)
    for j in range(operands.shape[0]):
        for i in range(operands.shape[1]):
            v[j, i] = _centred(np.float64(np.int64(operands[j, i])), q, inverse)
    total = np.empty(operands.shape[1])
    for r in range(weights.shape[0]):
        total[:] = 0.0
        for j in range(operands.shape[0]):
            w, x = weights[r, j], v[j]
            for i in range(total.size):
                total[i] = _centred(total[i] + _times(x[i], w[i], q, inverse), q, inverse)
        for i in range(total.size):
            x_ = np.int64(total[i])
            out[r, i] = np.uint64(x_) + unsigned if x_ < 0 else np.uint64(x_)


@njit(nogil=True, cache=True)
def _gather(x: Any, w: Any, q: Any, inverse: Any, lanes: Any) -> None:
    for i in range(x.size):
        lanes[i] += _times(x[i], w[i], q, inverse)


@njit(nogil=True, cache=True)
def _fold(lanes: Any, others: Any, q: Any, inverse: Any) -> None:
    for i in range(lanes.size):
        lanes[i] = _centred(lanes[i] + others[i], q, inverse)


@njit(nogil=True, cache=True)
def _dots(weights: Any, values: Any, starts: Any, q: Any, inverse: Any, v: Any, lanes: Any, out: Any) -> None:
    unsigned = np.uint64(q)
    n, width = weights.shape[1], lanes.size // 2
    sums, zero = lanes[:width], lanes[width:]
    zero[:] = 0.0
    for i in range(values.size):
        v[i] = _centred(np.float64(np.int64(values[i])), q, inverse)
    for s in range(starts.size):
        x = v[starts[s] : starts[s] + n]
        for k in range(weights.shape[0]):
            w = weights[k]
            sums[:] = 0.0
            for start in range(0, n, width):
                end = min(start + width, n)
                _gather(x[start:end], w[start:end], q, inverse, sums)
                if start // width % _DOUBLES == _DOUBLES - 1:
                    _fold(sums, zero, q, inverse)
            _fold(sums, zero, q, inverse)
            half = width // 2
            while half >= 1:
                _fold(sums[:half], sums[half : 2 * half], q, inverse)
                half //= 2
            found = np.int64(sums[0])
            out[s, k] = np.uint64(found) + unsigned if found < 0 else np.uint64(found)


@njit(nogil=True, cache=True)
def _switch(values: Any, q: Any, inverse: Any, factor: Any, power: Any, ratio: Any, out: Any) -> None:
    half = np.floor(q / 2)
    for i in range(values.size):
        x = _centred(_times(np.float64(np.int64(values[i])), factor, q, inverse), q, inverse)
        x = x + q if x < 0 else x
        found = np.floor(x * ratio)
        left = _fma(-found, q, x * power) + half  # whole numbers: the quotient is off by one at most
        found = found + 1.0 if left >= q else found
        found = found - 1.0 if left < 0.0 else found
        out[i] += np.uint64(np.int64(found))


@njit(nogil=True, cache=True)
def _first(x: Any, w: Any, q: Any, inverse: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = _times(x[i], w[i], q, inverse)


@njit(nogil=True, cache=True)
def _more(x: Any, w: Any, q: Any, inverse: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = _centred(out[i] + _times(x[i], w[i], q, inverse), q, inverse)


@njit(nogil=True, cache=True)
def _plus(v: Any, last: Any, added: Any, q: Any, inverse: Any) -> None:
    """v last + added, centred."""
    for i in range(v.size):
        x = _times(v[i], last, q, inverse) + np.float64(np.int64(added[i]))
        v[i] = _centred(x, q, inverse)


@njit(nogil=True, cache=True)
def _finish(v: Any, factor: Any, q: Any, inverse: Any, power: Any, ratio: Any, mask: Any, out: Any) -> None:
    """The same as `_switch`, for doubles."""
    half = np.floor(q / 2)
    for i in range(v.size):
        x = _centred(_times(v[i], factor, q, inverse), q, inverse)
        x = x + q if x < 0 else x
        found = np.floor(x * ratio)
        left = _fma(-found, q, x * power) + half
        found = found + 1.0 if left >= q else found
        found = found - 1.0 if left < 0.0 else found
        out[i] = (out[i] + np.uint64(np.int64(found))) & mask


@njit(nogil=True, cache=True)
def _replies(
    weights: Any,
    operands: Any,
    added: Any,
    moduli: Any,
    tables: Any,
    lasts: Any,
    ratios: Any,
    mask: Any,
    x: Any,
    v: Any,
    t: Any,
    out: Any,
) -> None:
    """One reply after the other, so that all that is computed with stays in the nearest cache."""
    (q, inverse, lazy), (roots, late), (last, factor, both), (power, ratio) = moduli, tables, lasts, ratios
    for j in range(operands.shape[0]):
        for i in range(v.size):
            x[j, i] = _centred(np.float64(np.int64(operands[j, i])), q, inverse)
    for r in range(weights.shape[0]):
        _first(x[0], weights[r, 0], q, inverse, v)
        for j in range(1, operands.shape[0]):
            _more(x[j], weights[r, j], q, inverse, v)
        _inverse(v, t, q, inverse, roots, late, lazy)
        if added.shape[0]:
            _plus(v, last, added[r], q, inverse)
        _finish(v, factor if added.shape[0] else both, q, inverse, power, ratio, mask, out[r])


@dataclass(frozen=True, eq=False)
class _Tables:
    q: float
    inverse: float
    roots: Array
    late: Array
    backs: Array
    late_backs: Array
    last: float
    lazy: int  # steps over which sums below q may double: below 2^lazy q <= 2^50, so that two differ by 2^51 at most


@cache
def _tables(ring: int, q: int) -> _Tables:
    t = wide._tables(ring, q)
    roots, backs = _centred_floats(t.roots, q), _centred_floats(t.inverse_roots, q)
    lazy = (LARGEST // q).bit_length() - 1
    return _Tables(float(q), 1.0 / q, roots, _late(roots), backs, _late(backs), _signed(int(t.last), q), lazy)


def _signed(value: int, q: int) -> float:
    return float(value if value <= q // 2 else value - q)


def _late(roots: Array) -> Array:
    """Roots of the last steps (stage, place, block of `_LANES`), in the order of the transposed polynomial."""
    rows, stages = roots.size // _LANES, _LANES.bit_length() - 1
    out = np.zeros((stages, _LANES // 2, rows))
    for stage in range(stages):
        places = 1 << stage
        first = rows * places
        for place in range(places):
            out[stage, place] = roots[first + place : 2 * first : places]
    return out


def _centred_floats(words: Words, q: int) -> Array:
    whole = words.astype(np.int64)
    out: Array = np.where(whole > q // 2, whole - q, whole).astype(np.float64)
    return out


def _scratch(ring: int) -> tuple[Array, Array]:
    return np.empty(ring), np.empty((_LANES, ring // _LANES))


def to_ntt(values: Words, q: int) -> None:
    """Transform polynomials (r, N) in place, coefficients to values in SEAL's order."""
    t = _tables(values.shape[1], q)
    _forward(values, t.q, t.inverse, t.roots, t.late, *_scratch(values.shape[1]))


def from_ntt(values: Words, q: int) -> None:
    """Transform polynomials (r, N) in place, values in SEAL's order to coefficients."""
    t = _tables(values.shape[1], q)
    _backward(values, t.q, t.inverse, t.backs, t.late_backs, t.lazy, t.last, *_scratch(values.shape[1]))


def prepared(weights: Words, q: int) -> Array:
    """Weights as `combine` and `dots` take them: centred doubles."""
    return _centred_floats(weights, q)


def combine(weights: Array, operands: Words, q: int) -> Words:
    """Sums over j of prepared weights (R, J, N) times operands (J, N), point by point: (R, N)."""
    out = np.empty((len(weights), operands.shape[1]), dtype=np.uint64)
    _combine(weights, operands, float(q), 1.0 / q, np.empty(operands.shape), out)
    return out


def replies(weights: Array, operands: Words, added: Words | None, q: int, factor: int, bits: int, out: Words) -> None:
    """Add to `out` (R, N) what `combine`, `from_ntt`, adding `added` (R, N) and `switch` give one after the other.

    Numbers are cut to `bits` bits, 50 at most.
    """
    ring = operands.shape[1]
    t, v, turned = _tables(ring, q), *_scratch(ring)
    last, both = int(t.last) % q, _signed(int(t.last) * factor % q, q)
    _replies(
        weights,
        operands,
        np.empty((0, ring), dtype=np.uint64) if added is None else added,
        (t.q, t.inverse, t.lazy),
        (t.backs, t.late_backs),
        (_signed(last, q), _signed(factor % q, q), both),
        (2.0**bits, 2.0**bits / q),
        np.uint64((1 << bits) - 1),
        np.empty(operands.shape),
        v,
        turned,
        out,
    )


def dots(weights: Array, values: Words, starts: NDArray[np.int64], q: int) -> Words:
    """Scalar products of each row of prepared weights (K, n) with values from each of `starts` (S,) on: (S, K)."""
    out = np.empty((starts.size, len(weights)), dtype=np.uint64)
    _dots(weights, values, starts, float(q), 1.0 / q, np.empty(values.size), np.empty(512), out)
    return out


def switch(values: Words, q: int, factor: int, bits: int, out: Words) -> None:
    """Add round((x factor mod q) 2^bits / q) to `out`, element by element; bits is at most 62."""
    if bits > MOST_BITS:
        wide.switch(values, q, factor, bits, out)
        return
    _switch(values.reshape(-1), float(q), 1.0 / q, _signed(factor, q), 2.0**bits, 2.0**bits / q, out.reshape(-1))
