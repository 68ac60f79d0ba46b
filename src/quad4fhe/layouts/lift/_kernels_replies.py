"""Replies of layout lift for primes below 2^50: the linear map and the encryptions of zero, in one pass.

One reply after the other, so that all that is computed with stays in the nearest cache. Sizes as in `_kernels_narrow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.layouts.lift._kernels_narrow import (
    _centred,
    _finish,
    _first,
    _inverse,
    _more,
    _scratch,
    _signed,
    _tables,
    _times,
    _transform,
)

Words = NDArray[np.uint64]


@njit(nogil=True, cache=True)
def _plus_small(v: Any, last: Any, small: Any, q: Any, inverse: Any) -> None:
    """v last + small, centred."""
    for i in range(v.size):
        v[i] = _centred(_times(v[i], last, q, inverse) + np.float64(small[i]), q, inverse)


@njit(nogil=True, cache=True)
def _sum(x: Any, w: Any, key: Any, u: Any, q: Any, inverse: Any, out: Any) -> None:
    """out = sum over j of x_j w_j, plus key u where there is a key."""
    _first(x[0], w[0], q, inverse, out)
    for j in range(1, x.shape[0]):
        _more(x[j], w[j], q, inverse, out)
    if key.size:
        _more(key, u, q, inverse, out)


@njit(nogil=True, cache=True)
def _blinded(
    weights: Any,
    seconds: Any,
    firsts: Any,
    keys: Any,
    u: Any,
    noise: Any,
    moduli: Any,
    tables: Any,
    lasts: Any,
    ratios: Any,
    positions: Any,
    h: Any,
    v: Any,
    t: Any,
    reads: Any,
    out: Any,
) -> None:
    """Keys (2, N) are those of both halves, or (2, 0); firsts (0, N) for second halves only.

    u takes part as one more weight, and the key as one more operand.
    """
    (q, inverse, lazy), (roots, late, backs, late_backs), (last, factor, both) = moduli, tables, lasts
    power, ratio, mask = ratios
    unsigned = np.uint64(q)
    for r in range(weights.shape[0]):
        if u.shape[0]:
            for i in range(h.size):
                h[i] = np.float64(u[r, i])
            _transform(h, t, q, inverse, roots, late)
        _sum(seconds, weights[r], keys[1], h, q, inverse, v)
        _inverse(v, t, q, inverse, backs, late_backs, lazy)
        if u.shape[0]:
            _plus_small(v, last, noise[r], q, inverse)
        _finish(v, factor if u.shape[0] else both, q, inverse, power, ratio, mask, out[r])
        if firsts.shape[0]:
            _sum(firsts, weights[r], keys[0], h, q, inverse, v)
            _inverse(v, t, q, inverse, backs, late_backs, lazy)
            for p in range(positions.size):
                x = np.int64(_centred(_times(v[positions[p]], last, q, inverse), q, inverse))
                reads[r, p] = np.uint64(x) + unsigned if x < 0 else np.uint64(x)


@njit(nogil=True, cache=True)
def _centre(words: Any, q: Any, inverse: Any, out: Any) -> None:
    for j in range(words.shape[0]):
        for i in range(words.shape[1]):
            out[j, i] = _centred(np.float64(np.int64(words[j, i])), q, inverse)


@njit(nogil=True, cache=True)
def _transform_each(v: Any, t: Any, q: Any, inverse: Any, roots: Any, late: Any) -> None:
    for j in range(v.shape[0]):
        _transform(v[j], t, q, inverse, roots, late)


@njit(nogil=True, cache=True)
def _products_at(first: Any, u: Any, positions: Any, q: Any, whole: Any, out: Any) -> None:
    """Coefficients of the products of first (N,) with each u (R, N); sums stay below N q / 2 <= 2^63."""
    n, half = first.size, q // 2
    for i in range(n):
        x = np.int64(first[i])
        whole[i] = x - q if x > half else x
    for r in range(u.shape[0]):
        for p in range(positions.size):
            at, total = positions[p], np.int64(0)
            for i in range(at + 1):
                total += whole[i] * np.int64(u[r, at - i])
            for i in range(at + 1, n):
                total -= whole[i] * np.int64(u[r, n + at - i])
            total %= q
            out[r, p] = np.uint64(total + q if total < 0 else total)


@njit(nogil=True, cache=True)
def _add_zeros(
    parts: Any, flood: Any, keys: Any, u: Any, noise: Any, moduli: Any, tables: Any, h: Any, t: Any, total: Any
) -> None:
    """parts (d + 1, N) in NTT form, in place: plus flood at the first, plus d encryptions of zero, each one further."""
    (q, inverse), (roots, late) = moduli, tables
    for i in range(h.size):
        h[i] = _centred(np.float64(np.int64(flood[i])), q, inverse)
    _transform(h, t, q, inverse, roots, late)
    for i in range(h.size):
        total[i] = np.float64(np.int64(parts[0, i])) + h[i]
    for d in range(parts.shape[0]):
        if d < u.shape[0]:
            for i in range(h.size):
                h[i] = np.float64(u[d, i])
            _transform(h, t, q, inverse, roots, late)
            for i in range(h.size):
                total[i] += _times(keys[0, i], h[i], q, inverse)
        for i in range(h.size):
            x = np.int64(_centred(total[i], q, inverse))
            parts[d, i] = x + np.int64(q) if x < 0 else x
        if d < u.shape[0]:
            for i in range(h.size):
                total[i] = np.float64(np.int64(parts[d + 1, i])) + _times(keys[1, i], h[i], q, inverse)
                h[i] = np.float64(noise[d, i])
            _transform(h, t, q, inverse, roots, late)
            for i in range(h.size):
                total[i] += h[i]


@dataclass(frozen=True, eq=False)
class Blind:
    """What blinds the replies, modulo one prime: the client's key, pk0 as coefficients; u and e1 of each reply."""

    first: Words
    second: Words
    u: NDArray[np.int8]
    noise: NDArray[np.int8]


def blinded(
    weights: Array,
    masks: Words,
    firsts: Words | None,
    blind: Blind | None,
    positions: NDArray[np.int64],
    q: int,
    factor: int,
    bits: int,
    out: Words,
) -> Words:
    """Replies (R, N), switched to `bits` bits (50 at most) and added to `out`, and their read coefficients (R, n).

    Prepared weights (R, J, N) multiply masks (J, N) in NTT form and `firsts` (J, N), coefficients. Encryptions of zero
    are added where there is a `blind`. Without `firsts`, only those are read.
    """
    ring = masks.shape[1]
    t, (v, turned), keys = _tables(ring, q), _scratch(ring), np.empty((2, 0 if blind is None else ring))
    last, both = int(t.last) % q, _signed(int(t.last) * factor % q, q)
    seconds, values = np.empty(masks.shape), np.empty((0, ring) if firsts is None else firsts.shape)
    _centre(masks, t.q, t.inverse, seconds)
    if firsts is not None:
        _centre(firsts, t.q, t.inverse, values)
        _transform_each(values, turned, t.q, t.inverse, t.roots, t.late)
    if blind is not None:
        _centre(blind.second[None], t.q, t.inverse, keys[1:])
        if firsts is not None:
            _centre(blind.first[None], t.q, t.inverse, keys[:1])
            _transform_each(keys[:1], turned, t.q, t.inverse, t.roots, t.late)
    none = np.empty((0, ring), dtype=np.int8)
    reads = np.zeros((len(weights), positions.size), dtype=np.uint64)
    if firsts is None and blind is not None:
        _products_at(blind.first, blind.u, positions, q, np.empty(ring, dtype=np.int64), reads)
    _blinded(
        weights,
        seconds,
        values,
        keys,
        none if blind is None else blind.u,
        none if blind is None else blind.noise,
        (t.q, t.inverse, t.lazy),
        (t.roots, t.late, t.backs, t.late_backs),
        (_signed(last, q), _signed(factor % q, q), both),
        (2.0**bits, 2.0**bits / q, np.uint64((1 << bits) - 1)),
        positions,
        np.empty(ring),
        v,
        turned,
        reads,
        out,
    )
    return reads


def add_zeros(
    parts: NDArray[Any], flood: Words, keys: Words, u: NDArray[np.int8], noise: NDArray[np.int8], q: int
) -> None:
    """Re-randomise a ciphertext of d + 1 parts (N,) in NTT form in place, modulo one prime.

    (x0, x1 + y0, ..., yd) is added for d encryptions of zero x, y, ..., each from a row of u and noise (d, N), and the
    flooding, coefficients (N,), to the first part. The halves of the public key, keys (2, N), are in NTT form.
    """
    ring = keys.shape[1]
    t, (h, turned), centred = _tables(ring, q), _scratch(ring), np.empty(keys.shape)
    _centre(keys, t.q, t.inverse, centred)
    _add_zeros(parts, flood, centred, u, noise, (t.q, t.inverse), (t.roots, t.late), h, turned, np.empty(ring))
