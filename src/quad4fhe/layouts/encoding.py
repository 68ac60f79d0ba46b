"""Encodes numbers as polynomials with integer coefficients, with random rounding.

SEAL's encoder rounds each coefficient to the nearest integer, and these errors are not independent: a request of one
sample has coefficients near 2 scale / N that all round to zero, in the same way for every feature. Here a coefficient c
becomes floor(c) + 1 with probability c - floor(c), else floor(c). For any values, the error then has mean zero, is
independent for every coefficient, and lies in an interval of length 1. `he.seal` transforms to residues.
"""

from __future__ import annotations

import secrets
from functools import cache

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray

Slots = NDArray[np.complex128]


class Encoder:
    """Slots to integer coefficients for one ring, with a random generator of its own.

    The dither hides nothing, so the generator need not be cryptographic; its seed comes from the operating system, so
    that nobody can choose a model or samples against it. Nothing public may seed it.
    """

    def __init__(self, ring: int) -> None:
        self.ring = ring
        self._rng = np.random.Generator(np.random.SFC64(secrets.randbits(256)))

    def encode(self, values: Array, scale: float) -> tuple[Array, Array]:
        """Real slots (r, N/2) times the scale to whole coefficients (r, N), as doubles, and what rounding added."""
        coefficients = embedded(values) * scale
        whole = np.floor(coefficients)
        np.subtract(whole, coefficients, out=coefficients)  # exact, in (-1, 0]
        up = self._rng.random(whole.shape) < -coefficients
        whole += up
        coefficients += up
        return whole, coefficients

    def uniform(self, q: int, count: int) -> Array:
        """Polynomials (count, N) with coefficients even over the residues of an odd q, centred; q below 2^53."""
        half = q // 2
        return self._rng.integers(-half, half, size=(count, self.ring), endpoint=True).astype(np.float64)


def embedded(values: Array) -> Array:
    """The real coefficients (r, N) of the polynomials with these real slots (r, N/2), in SEAL's order of slots.

    Slot j is the value at zeta^(3^j), zeta = exp(i pi / N). All N odd powers of zeta make one discrete Fourier
    transform; real values make it real, and coefficient N - k the negative of coefficient k.
    """
    rows, slots = values.shape
    ring = 2 * slots
    place, mirror, twist = _roots(ring)
    spread = np.empty((rows, ring))
    spread[:, place] = values
    spread[:, mirror] = values
    half = np.fft.rfft(spread, axis=1)[:, :slots]
    half *= twist
    out = np.empty((rows, ring))
    out[:, :slots] = half.real
    out[:, slots] = 0.0
    out[:, slots + 1 :] = -half.real[:, :0:-1]
    return out


def values_of(coefficients: Array) -> Slots:
    """The slots (r, N/2) of polynomials with real coefficients (r, N).

    At a power e = 4 t + 1 of zeta the upper half of the polynomial counts i times the lower one, which leaves a complex
    transform of half the length; the other slots are conjugates of such values.
    """
    slots = coefficients.shape[1] // 2
    place, flip, twist = _quarter(2 * slots)
    folded = np.empty((len(coefficients), slots), dtype=np.complex128)
    folded.real, folded.imag = coefficients[:, :slots], coefficients[:, slots:]
    folded *= twist
    out: Slots = np.fft.ifft(folded, axis=1, norm="forward")[:, place]
    out.imag *= flip
    return out


@cache
def _quarter(ring: int) -> tuple[IntArray, Array, Slots]:
    exponents = np.array([pow(3, j, 2 * ring) for j in range(ring // 2)], dtype=np.int64)
    other = exponents % 4 == 3
    place = (np.where(other, 2 * ring - exponents, exponents) - 1) // 4
    return place, np.where(other, -1.0, 1.0), np.exp(1j * np.pi * np.arange(ring // 2) / ring)


@cache
def _roots(ring: int) -> tuple[IntArray, IntArray, Slots]:
    exponents = np.array([pow(3, j, 2 * ring) for j in range(ring // 2)], dtype=np.int64)
    place = (exponents - 1) // 2
    twist = np.exp(-1j * np.pi * np.arange(ring // 2) / ring) / ring
    return place, ring - 1 - place, twist
