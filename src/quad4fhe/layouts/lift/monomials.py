"""A quadratic model as a linear map of its inputs' monomials: what client and server compute.

With u = (x - shift) / root the model is linear in z = (1, u_i, u_i u_j for i <= j), D = (d + 1)(d + 2) / 2 numbers. The
root of a feature is the power of two nearest to the square root of its reach, which makes weights and monomials of
about the same size; division by it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError
from quad4fhe.planning.fold import Circuit

Words = NDArray[np.uint64]
Numbers = NDArray[Any]  # doubles, whole numbers or residues


def monomial_count(features: int) -> int:
    """D, the number of monomials of degree two or less."""
    return (features + 1) * (features + 2) // 2


@dataclass(frozen=True, eq=False)
class Lift:
    """The monomials over a box: `shift` (d,) is taken off, `reach` (d,) is the largest |x - shift|."""

    shift: Array
    reach: Array

    @property
    def features(self) -> int:
        """The input width d."""
        return int(self.shift.size)

    @property
    def size(self) -> int:
        """The number of monomials D."""
        return monomial_count(self.features)

    @cached_property
    def roots(self) -> Array:
        """What each feature is divided by, (d,): powers of two."""
        with np.errstate(divide="ignore"):
            half = np.rint(np.log2(self.reach) / 2)
        return np.ldexp(1.0, np.where(self.reach > 0, np.clip(half, -500, 500), 0).astype(np.int64))

    @cached_property
    def pairs(self) -> tuple[IntArray, IntArray]:
        """Indices i <= j of the products, row by row."""
        i, j = np.triu_indices(self.features)
        return i.astype(np.int64), j.astype(np.int64)

    def monomials(self, Z: Array) -> Array:
        """z of shifted samples (n, d), shape (n, D); for few samples, as D grows with the square of d."""
        u, (i, j) = Z / self.roots, self.pairs
        out = np.empty((len(u), self.size))
        out[:, 0] = 1.0
        out[:, 1 : self.features + 1] = u
        np.multiply(u.take(i, axis=1), u.take(j, axis=1), out=out[:, self.features + 1 :])
        return out

    def norms(self, X: Array) -> Array:
        """|z| of samples (n, d), shape (n,): 1 + |u|^2 + (|u|^4 + sum of u_i^4) / 2, without z itself."""
        squares = ((X - self.shift) / self.roots) ** 2
        whole = squares.sum(axis=1)
        out: Array = np.sqrt(1.0 + whole + (whole * whole + (squares * squares).sum(axis=1)) / 2) * (1 + 1e-9)
        return out

    @property
    def largest_norm(self) -> float:
        """The largest |z| anywhere in the box."""
        return float(self.norms(self.shift + self.reach[None])[0])

    @property
    def largest(self) -> float:
        """The largest monomial anywhere in the box."""
        u = float((self.reach / self.roots).max(initial=0.0))
        return max(1.0, u, u * u)

    def weights(self, circuit: Circuit) -> Array:
        """The map M (K, D) of a circuit with this shift: logits = M z.

        In float64, from the circuit's own doubles: what that loses is within `evaluation_error` of the circuit, since
        the terms and the number of roundings are the same.
        """
        if circuit.a is not None:
            raise InputError(f"layout lift takes models of degree 2, and this one has {circuit.degree}; plan again")
        scaled = circuit.W * self.roots
        i, j = self.pairs
        twice = np.where(i == j, 1.0, 2.0)
        out = np.empty((circuit.outputs, self.size))
        slope = circuit.V * circuit.t
        out[:, 0] = slope @ circuit.t + circuit.c
        out[:, 1 : self.features + 1] = 2.0 * slope @ scaled
        if circuit.U is not None:
            out[:, 1 : self.features + 1] += circuit.U * self.roots
        for row, v in zip(out, circuit.V, strict=True):
            row[self.features + 1 :] = ((scaled.T * v) @ scaled)[i, j] * twice
        return out


def lift_over(box: Array, shift: Array) -> Lift:
    """The monomials over a box (2, d)."""
    return Lift(shift, np.abs(box - shift).max(axis=0))


@dataclass(frozen=True)
class Placement:
    """Where monomials and answers lie in polynomials of degree N.

    A sample's D monomials are cut into `inputs` blocks of `block` coefficients, one block a ciphertext. A reply holds
    `group` rows of the map: coefficient c * block of sum_j w_j m_j is row c where the weights of row c are
    X^(c block) sum_i w_i X^-i. Where all monomials fit into one ciphertext, `samples` of them lie group * block apart.
    """

    ring: int
    size: int
    rows: int
    group: int
    samples: int

    @property
    def places(self) -> int:
        """How often a row of the map is read: once for each sample."""
        return self.samples

    @cached_property
    def block(self) -> int:
        """Coefficients of one block."""
        return self.size if self.group * self.size <= self.ring else self.ring // self.group

    @cached_property
    def inputs(self) -> int:
        """Ciphertexts of a request, J."""
        return -(-self.size // self.block)

    @cached_property
    def replies(self) -> int:
        """Ciphertexts of a reply, R."""
        return -(-self.rows // self.group)

    @cached_property
    def used(self) -> int:
        """Coefficients of the first polynomial that reach an answer: with one row a reply only those of monomials.

        With several rows the weights of one reply fill `group` blocks, so those of `group` - 1 blocks before the first
        answer reach it as well.
        """
        if self.group > 1:
            return self.window.size if self.windowed else self.inputs * self.ring
        return self.samples * self.size if self.inputs == 1 else self.size

    @property
    def lead(self) -> int:
        """Coefficients before the first answer that reach it, where a reply has several rows."""
        return (self.group - 1) * self.block

    @cached_property
    def windowed(self) -> bool:
        """Whether several rows share a reply and leave out some coefficients of a request."""
        return self.group > 1 and self.inputs == 1 and self.lead + self.samples * self.group * self.block <= self.ring

    @cached_property
    def window(self) -> IntArray:
        """The coefficients of a windowed request, in the order of their powers; those of negative powers come first."""
        return np.arange(-self.lead, self.samples * self.group * self.block, dtype=np.int64) % self.ring

    @property
    def reads(self) -> int:
        """Coefficients that are read from a reply, answers of empty places included."""
        return self.places * self.rows

    @cached_property
    def positions(self) -> IntArray:
        """The coefficients read from each reply, (places, group)."""
        apart = self.group * self.block
        starts = np.arange(self.samples, dtype=np.int64) * apart
        return starts[:, None] + np.arange(self.group, dtype=np.int64) * self.block

    def spread(self, values: Numbers) -> Numbers:
        """Monomials (samples, D) as coefficients of the request's polynomials, (J, N)."""
        out = np.zeros((self.inputs, self.ring), dtype=values.dtype)
        if self.inputs == 1:
            apart = self.group * self.block
            for s, row in enumerate(values):
                out[0, s * apart : s * apart + self.size] = row
            return out
        padded = np.zeros((self.inputs * self.block,), dtype=values.dtype)
        padded[: self.size] = values[0]
        out[:, : self.block] = padded.reshape(self.inputs, self.block)
        return out

    def weights(self, values: Numbers) -> Numbers:
        """Rows of weights (rows, D) as coefficients of the server's polynomials, (R, J, N)."""
        out = np.zeros((self.replies, self.inputs, self.ring), dtype=values.dtype)
        for row, all_of_them in enumerate(values):
            r, c = divmod(row, self.group)
            for j in range(self.inputs):
                part = all_of_them[j * self.block : (j + 1) * self.block]
                at = c * self.block - np.arange(part.size)
                out[r, j, at % self.ring] += np.where(at < 0, -part, part)
        return out

    def readers(self, polynomials: Numbers) -> Numbers:
        """What each used coefficient of the request adds to each answer of the first sample, (rows, n).

        For one row a reply these are the weights themselves, n = D; else n = J N, or those of the window that reach it.
        """
        j, ring = self.inputs, self.ring
        if self.group == 1:
            at = -np.arange(self.block)
            turned = polynomials[:, :, at % ring] * np.where(at < 0, -1, 1)
            return np.ascontiguousarray(turned.reshape(self.rows, -1)[:, : self.size])
        out = np.empty((self.rows, j * ring), dtype=polynomials.dtype)
        for row in range(self.rows):
            r, c = divmod(row, self.group)
            at = c * self.block - np.arange(ring)
            out[row] = (polynomials[r][:, at % ring] * np.where(at < 0, -1, 1)).reshape(-1)
        return out[:, self.window[: self.lead + self.group * self.block]] if self.windowed else out

    def cut(self, polynomials: Numbers) -> Numbers:
        """The used coefficients of polynomials (..., J, N), shape (..., used)."""
        if self.windowed:
            return polynomials[..., 0, self.window]
        if self.group > 1:
            return polynomials.reshape(*polynomials.shape[:-2], -1)
        if self.inputs == 1:
            return polynomials[..., 0, : self.used]
        flat = polynomials[..., : self.block].reshape(*polynomials.shape[:-2], -1)
        return flat[..., : self.size]

    def uncut(self, used: Words) -> Words:
        """What `cut` was given, (..., J, N), with zeros for what it left out."""
        if self.group > 1 and not self.windowed:
            return used.reshape(*used.shape[:-1], self.inputs, self.ring)
        out = np.zeros((*used.shape[:-1], self.inputs, self.ring), dtype=used.dtype)
        if self.windowed:
            out[..., 0, self.window] = used
            return out
        if self.inputs == 1:
            out[..., 0, : self.used] = used
            return out
        flat = np.zeros((*used.shape[:-1], self.inputs * self.block), dtype=used.dtype)
        flat[..., : self.size] = used
        out[..., : self.block] = flat.reshape(*used.shape[:-1], self.inputs, self.block)
        return out


def with_offset(weights: Array, offset: float) -> Array:
    """M with `offset` added to every answer.

    The rows of a centred M add up to zero, so a sample's answers add up to a known number, which is not zero: that
    tells a wrong key and an empty reply.
    """
    out = weights.copy()
    out[:, 0] += offset
    return out
