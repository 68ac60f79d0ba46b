"""Arithmetic modulo primes of up to 60 bits, compiled: transforms, products and sums on polynomials of residues.

`SealArithmetic` in `he.seal` does the same with SEAL's calls and returns the same bits. Hard part: a product of two
residues has 120 bits, so every reduction is by a precomputed quotient (Shoup's for the roots of a transform, Barrett's
elsewhere) and no division is left in a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def _typed_high(typing: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a product of two words."""
    signature = types.uint64(types.uint64, types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return signature, generate


_high: Any = intrinsic(_typed_high)


@njit(inline="always")
def _times(x: Any, w: Any, quotient: Any, q: Any) -> Any:
    """x w mod q in [0, 2 q) for any word x, with quotient = floor(w 2^64 / q)."""
    return x * w - _high(x, quotient) * q


@njit(inline="always")
def _reduce(high: Any, low: Any, q: Any, r0: Any, r1: Any) -> Any:
    """(high 2^64 + low) mod q, with r1 2^64 + r0 = floor(2^128 / q)."""
    carry = _high(low, r0)
    a = low * r1
    t = a + carry
    c1 = _high(low, r1) + (np.uint64(1) if t < a else np.uint64(0))
    b = high * r0
    s = t + b
    c2 = _high(high, r0) + (np.uint64(1) if s < t else np.uint64(0))
    quotient = high * r1 + c1 + c2
    out = low - quotient * q
    return out - q if out >= q else out


@njit(nogil=True, cache=True)
def _upwards(up: Any, down: Any, w: Any, quotient: Any, q: Any, two: Any) -> None:
    for i in range(up.size):
        x = min(up[i], up[i] - two)  # a difference below zero wraps around to a large word
        y = _times(down[i], w, quotient, q)
        up[i] = x + y
        down[i] = x - y + two


@njit(nogil=True, cache=True)
def _downwards(up: Any, down: Any, w: Any, quotient: Any, q: Any, two: Any) -> None:
    for i in range(up.size):
        x, y = up[i], down[i]
        s = x + y
        up[i] = min(s, s - two)
        down[i] = _times(x - y + two, w, quotient, q)


@njit(nogil=True, cache=True)
def _forward(a: Any, q: Any, roots: Any, quotients: Any) -> None:
    two = q + q
    for row in range(a.shape[0]):
        v = a[row]
        step, blocks = v.size, 1
        while blocks < v.size:
            step >>= 1
            for i in range(blocks):
                start = 2 * i * step
                up, down = v[start : start + step], v[start + step : start + 2 * step]
                _upwards(up, down, roots[blocks + i], quotients[blocks + i], q, two)
            blocks <<= 1
        for j in range(v.size):
            x = v[j]
            x = x - two if x >= two else x
            v[j] = x - q if x >= q else x


@njit(nogil=True, cache=True)
def _backward(a: Any, q: Any, roots: Any, quotients: Any, last: Any, last_quotient: Any) -> None:
    two = q + q
    for row in range(a.shape[0]):
        v = a[row]
        step, blocks = 1, v.size >> 1
        while blocks >= 1:
            for i in range(blocks):
                start = 2 * i * step
                up, down = v[start : start + step], v[start + step : start + 2 * step]
                _downwards(up, down, roots[blocks + i], quotients[blocks + i], q, two)
            step <<= 1
            blocks >>= 1
        for j in range(v.size):
            x = _times(v[j], last, last_quotient, q)
            v[j] = x - q if x >= q else x


@njit(nogil=True, cache=True)
def _add(a: Any, b: Any, q: Any, out: Any) -> None:
    for i in range(a.size):
        total = a[i] + b[i]
        out[i] = min(total, total - q)


@njit(nogil=True, cache=True)
def _rebase(first: Any, second: Any, mask: Any, secret: Any, q: Any, r0: Any, r1: Any, out: Any) -> None:
    for i in range(first.size):
        x = second[i] - mask[i]
        x = min(x, x + q)
        total = first[i] + _reduce(_high(x, secret[i]), x * secret[i], q, r0, r1)
        out[i] = min(total, total - q)


@njit(nogil=True, cache=True)
def _combine(weights: Any, operands: Any, q: Any, r0: Any, r1: Any, out: Any) -> None:
    """out (R, N) = sum over j of weights (R, J, N) times operands (J, N), point by point; J is below 256."""
    for r in range(weights.shape[0]):
        for i in range(operands.shape[1]):
            high, low = np.uint64(0), np.uint64(0)
            for j in range(operands.shape[0]):
                w, v = weights[r, j, i], operands[j, i]
                part = w * v
                low += part
                high += _high(w, v) + (np.uint64(1) if low < part else np.uint64(0))
            out[r, i] = _reduce(high, low, q, r0, r1)


@njit(nogil=True, cache=True)
def _dots(weights: Any, values: Any, starts: Any, q: Any, r0: Any, r1: Any, out: Any) -> None:
    """out (S, K): sums over i of weights (K, n) times values (m,) from starts (S,) on."""
    n = weights.shape[1]
    for s in range(starts.size):
        first = starts[s]
        for k in range(weights.shape[0]):
            total = np.uint64(0)
            i = 0
            while i < n:
                high, low = np.uint64(0), total
                end = min(n, i + 128)
                while i < end:
                    w, v = weights[k, i], values[first + i]
                    part = w * v
                    low += part
                    high += _high(w, v) + (np.uint64(1) if low < part else np.uint64(0))
                    i += 1
                total = _reduce(high, low, q, r0, r1)
            out[s, k] = total


@njit(nogil=True, cache=True)
def _switch(values: Any, q: Any, factor: Any, factor_quotient: Any, ratio: Any, up: Any, bits: Any, out: Any) -> None:
    """out += round((x factor mod q) 2^bits / q); ratio = floor(2^(bits + 64 - up) / q), q has 64 - up bits."""
    half = q >> np.uint64(1)
    for i in range(values.size):
        x = _times(values[i], factor, factor_quotient, q)
        x = x - q if x >= q else x
        found = _high(x << up, ratio)  # at most two too small, so what is left stays below 3 q < 2^64
        left = (x << bits) + half - found * q
        if left >= q:
            found += np.uint64(1)
            left -= q
        if left >= q:
            found += np.uint64(1)
        out[i] += found


@dataclass(frozen=True, eq=False)
class _Tables:
    q: np.uint64
    r0: np.uint64
    r1: np.uint64
    roots: Words
    root_quotients: Words
    inverse_roots: Words
    inverse_quotients: Words
    last: np.uint64
    last_quotient: np.uint64


@cache
def _tables(ring: int, q: int) -> _Tables:
    """Roots in SEAL's order: psi^brv(i), psi the smallest primitive root of order 2 N."""
    psi = _smallest_root(ring, q)
    bits = ring.bit_length() - 1
    order = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(ring)]
    powers = [1] * ring
    for i in range(1, ring):
        powers[i] = powers[i - 1] * psi % q
    inverse = pow(psi, -1, q)
    backs = [1] * ring
    for i in range(1, ring):
        backs[i] = backs[i - 1] * inverse % q
    roots, inverse_roots = [powers[i] for i in order], [backs[i] for i in order]
    last = pow(ring, -1, q)
    ratio = (1 << 128) // q
    return _Tables(
        np.uint64(q),
        np.uint64(ratio & (2**64 - 1)),
        np.uint64(ratio >> 64),
        np.array(roots, dtype=np.uint64),
        np.array(_quotients(roots, q), dtype=np.uint64),
        np.array(inverse_roots, dtype=np.uint64),
        np.array(_quotients(inverse_roots, q), dtype=np.uint64),
        np.uint64(last),
        np.uint64((last << 64) // q),
    )


def _quotients(values: list[int], q: int) -> list[int]:
    return [(value << 64) // q for value in values]


def _smallest_root(ring: int, q: int) -> int:
    order = 2 * ring
    root = next(r for c in range(2, q) if pow(r := pow(c, (q - 1) // order, q), ring, q) == q - 1)
    square, best, power = root * root % q, root, root
    for _ in range(ring):
        best = min(best, power)
        power = power * square % q
    return best


def to_ntt(values: Words, q: int) -> None:
    """Transform polynomials (r, N) in place, coefficients to values in SEAL's order."""
    t = _tables(values.shape[1], q)
    _forward(values, t.q, t.roots, t.root_quotients)


def from_ntt(values: Words, q: int) -> None:
    """Transform polynomials (r, N) in place, values in SEAL's order to coefficients."""
    t = _tables(values.shape[1], q)
    _backward(values, t.q, t.inverse_roots, t.inverse_quotients, t.last, t.last_quotient)


def rebase(first: Words, second: Words, mask: Words, secret: Words, q: int, out: Words) -> None:
    """out = first + (second - mask) secret, for one polynomial (N,) each."""
    t = _tables(first.size, q)
    _rebase(first, second, mask, secret, t.q, t.r0, t.r1, out)


@njit(nogil=True, cache=True)
def _add_whole(a: Any, whole: Any, q: Any, inverse: Any, out: Any) -> None:
    for i in range(a.size):
        left = whole[i] - np.int64(np.floor(whole[i] * inverse)) * q  # the quotient is off by one at most
        left += q if left < 0 else np.int64(0)
        left += np.int64(a[i])
        left -= q if left >= q else np.int64(0)
        left -= q if left >= q else np.int64(0)
        out[i] = np.uint64(left)


def add(a: Words, b: Words, q: int, out: Words) -> None:
    """Sums of residues (n,)."""
    _add(a, b, np.uint64(q), out)


def add_whole(a: Words, whole: NDArray[np.int64], q: int, out: Words) -> None:
    """Sums of residues (n,) with whole numbers below 2^62 in size; q is above 2^16."""
    _add_whole(a, whole, np.int64(q), 1.0 / q, out)


def combine(weights: Words, operands: Words, q: int) -> Words:
    """Sums over j of weights (R, J, N) times operands (J, N), point by point: (R, N). J is below 256."""
    t, out = _tables(operands.shape[1], q), np.empty((len(weights), operands.shape[1]), dtype=np.uint64)
    _combine(weights, operands, t.q, t.r0, t.r1, out)
    return out


def dots(weights: Words, values: Words, starts: NDArray[np.int64], q: int) -> Words:
    """Scalar products of each row of weights (K, n) with values from each of `starts` (S,) on: (S, K)."""
    ratio = (1 << 128) // q
    out = np.empty((starts.size, len(weights)), dtype=np.uint64)
    _dots(weights, values, starts, np.uint64(q), np.uint64(ratio & (2**64 - 1)), np.uint64(ratio >> 64), out)
    return out


def switch(values: Words, q: int, factor: int, bits: int, out: Words) -> None:
    """Add round((x factor mod q) 2^bits / q) to `out`, element by element; bits is at most 62."""
    size = q.bit_length()
    _switch(
        values.reshape(-1),
        np.uint64(q),
        np.uint64(factor),
        np.uint64((factor << 64) // q),
        np.uint64((1 << (bits + size)) // q),
        np.uint64(64 - size),
        np.uint64(bits),
        out.reshape(-1),
    )


@njit(nogil=True, cache=True)
def _pack(values: Any, bits: Any, out: Any) -> None:
    filled, word, place = 0, np.uint64(0), 0
    for i in range(values.size):
        x = values[i]
        word |= x << np.uint64(filled)
        filled += bits
        if filled >= 64:
            out[place] = word
            place += 1
            filled -= 64
            word = x >> np.uint64(bits - filled) if filled else np.uint64(0)
    if filled:
        out[place] = word


@njit(nogil=True, cache=True)
def _unpack(words: Any, bits: Any, out: Any) -> None:
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    start = 0
    for i in range(out.size):
        place, filled = start >> 6, start & 63
        x = words[place] >> np.uint64(filled)
        if filled + bits > 64:
            x |= words[place + 1] << np.uint64(64 - filled)
        out[i] = x & mask
        start += bits


def pack(values: Words, bits: int) -> Words:
    """Words with the `bits` lowest bits of each value (n,), one after the other."""
    out = np.zeros(-(-values.size * bits // 64), dtype=np.uint64)
    _pack(values, bits, out)
    return out


def unpack(words: Words, bits: int, count: int) -> Words:
    """What `pack` packed."""
    out = np.empty(count, dtype=np.uint64)
    _unpack(words, bits, out)
    return out


@njit(nogil=True, cache=True)
def below(stream: Any, width: Any, count: Any, mask: Any, q: Any, out: Any) -> Any:
    """Put the words of `width` bits, cut by `mask`, that are below q into `out`; returns how many of them it got."""
    found, last = 0, out.size - 1
    for i in range(count):
        place, shift = (i * width) >> 6, (i * width) & 63
        word = stream[place] >> np.uint64(shift)
        if shift + width > 64:
            word |= stream[place + 1] << np.uint64(64 - shift)
        word &= mask
        out[min(found, last)] = word if found <= last else out[last]
        found += 1 if word < q else 0
    return min(found, out.size)


@njit(nogil=True, cache=True)
def mostly_below(stream: Any, mask: Any, q: Any, out: Any) -> Any:
    """The same for words of the stream's own type, of which nearly all are below q: a branch that is predicted."""
    found = 0
    for word in stream:
        if word & mask < q:
            out[found] = word & mask
            found += 1
            if found == out.size:
                break
    return found


@njit(nogil=True, cache=True)
def _read(polynomials: Any, secret: Any, positions: Any, out: Any) -> None:
    n = polynomials.shape[1]
    for r in range(polynomials.shape[0]):
        row = polynomials[r]
        for p in range(positions.size):
            at, total = positions[p], np.uint64(0)
            for i in range(at + 1):
                total += row[i] * secret[at - i]
            for i in range(at + 1, n):
                total -= row[i] * secret[n + at - i]
            out[r, p] = total


def read(polynomials: Words, secret: Words, positions: NDArray[np.int64]) -> Words:
    """Coefficients of the products of polynomials (R, N) with the secret (N,), modulo 2^64: (R, positions)."""
    out = np.empty((len(polynomials), positions.size), dtype=np.uint64)
    _read(polynomials, secret, positions, out)
    return out
