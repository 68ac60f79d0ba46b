"""The lift of a model of degree p above two: monomials of degree p or less, and the model as a linear map of them.

With u = (x - shift) / root, unit j is t_j + s_j, where s = W u is linear. Taylor's formula at t_j turns its polynomial
into powers of s_j, and each power into monomials of u. So a few features have a few hundred monomials, and the rest of
the layout does not know the degree. The order is that of the degrees: (1, u_i, u_i u_j, u_i u_j u_k, ...).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe._dyadic import Dyadic
from quad4fhe.errors import InputError
from quad4fhe.layouts.lift.monomials import Lift, lift_over
from quad4fhe.planning.fold import Circuit
from quad4fhe.planning.target import Question

_PART = 2**22  # numbers of one block of products of weights


def count_monomials(features: int, degree: int) -> int:
    """D, the number of monomials of this degree or less."""
    return math.comb(features + degree, degree)


def lift_of_degree(box: Array, shift: Array, degree: int) -> Lift:
    """The monomials of this degree or less over a box (2, d)."""
    found = lift_over(box, shift)
    return found if degree == 2 else PowerLift.like(found, degree)


def lift_question(question: Question) -> Question:
    """The question with a reference whose logits add up to zero, which the check of a reply relies on.

    A quadratic is folded so already. Above degree 2 the head keeps its few bits and a small mean; here its weights are
    numbers like any other, and every logit loses the same function.
    """
    if question.model.is_quadratic:
        return question
    given: Any = {each.name: getattr(question, each.name) for each in fields(question)}
    return _Centred(**given)


def weights_of(lift: Lift, circuit: Circuit) -> Array:
    """The map M (K, D) of a circuit with the shift of the lift: logits = M z."""
    if count_monomials(circuit.features, circuit.degree) != lift.size:
        raise InputError(f"this plan is for models of another degree, and this one has {circuit.degree}; plan again")
    return lift.weights(circuit) if circuit.a is None else PowerLift.like(lift, circuit.degree).weights(circuit)


class _Centred(Question):
    @cached_property
    def reference(self) -> Circuit:
        """The exact model, folded, with the mean over the classes taken out."""
        folded = super().reference
        exact = folded.exact
        if self.model.outputs == 1 or exact is None:
            return folded
        V = exact.V - Dyadic.of(folded.V.mean(axis=0, keepdims=True))
        return replace(folded, V=V.floats(), exact=replace(exact, V=V))


@dataclass(frozen=True)
class _Step:
    """Monomials of degree k: those of degree k - 1 at `parent`, times feature `factor`; `times` as a power of s."""

    parent: IntArray
    factor: IntArray
    times: Array


@dataclass(frozen=True, eq=False)
class PowerLift(Lift):
    """The monomials of degree p or less."""

    degree: int

    @classmethod
    def like(cls, lift: Lift, degree: int) -> PowerLift:
        """Over the same box."""
        return cls(lift.shift, lift.reach, degree)

    @property
    def size(self) -> int:
        """The number of monomials D."""
        return count_monomials(self.features, self.degree)

    @cached_property
    def steps(self) -> list[_Step]:
        """How the monomials of degree 1, 2, ..., p follow from those of one degree less.

        `times` is the multinomial coefficient, a whole number: it grows by k and is shared by equal factors.
        """
        d = self.features
        last, run, times = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
        found = []
        for k in range(1, self.degree + 1):
            parent = np.repeat(np.arange(last.size), d - last)
            start = np.cumsum(d - last) - (d - last)
            factor = np.arange(parent.size) - start[parent] + last[parent]
            run = np.where((factor == last[parent]) & (k > 1), run[parent], 0) + 1
            times = times[parent] * k // run
            last = factor
            found.append(_Step(parent, factor, times.astype(np.float64)))
        return found

    def monomials(self, Z: Array) -> Array:
        """z of shifted samples (n, d), shape (n, D)."""
        return np.concatenate(self._powers(Z / self.roots), axis=1)

    def _powers(self, rows: Array) -> list[Array]:
        """The monomials of rows (n, d) by degree."""
        out = [np.ones((len(rows), 1))]
        for step in self.steps:
            out.append(out[-1][:, step.parent] * rows[:, step.factor])
        return out

    def norms(self, X: Array) -> Array:
        """|z| of samples (n, d), shape (n,): complete symmetric polynomials of the squares of u, without z itself."""
        squares = ((X - self.shift) / self.roots) ** 2
        sums = np.zeros((self.degree + 1, len(squares)))
        sums[0] = 1.0
        for column in squares.T:
            for k in range(1, self.degree + 1):
                sums[k] += column * sums[k - 1]
        out: Array = np.sqrt(sums.sum(axis=0)) * (1 + 1e-9)
        return out

    @property
    def largest(self) -> float:
        """The largest monomial anywhere in the box; infinite where no float holds it."""
        u = max(1.0, float((self.reach / self.roots).max(initial=0.0)))
        return u**self.degree if self.degree * math.log2(u) < 1023 else math.inf

    def weights(self, circuit: Circuit) -> Array:
        """The map M (K, D) of a circuit with this shift: logits = M z.

        In float64; see `Lift.weights`. The terms are those of the circuit, since Taylor's formula at |t| with |a| adds
        up to the same sizes, and no path has more than 3 p + m + 4 roundings.
        """
        taylor = circuit.taylor(circuit.t[None])[:, 0]
        scaled = circuit.W * self.roots
        products = np.ones((circuit.units, 1))
        out = [(circuit.V @ taylor[0] + circuit.c)[:, None]]
        for k, step in enumerate(self.steps, start=1):
            head = circuit.V * taylor[k]
            found = np.empty((circuit.outputs, step.parent.size))
            whole = k < self.degree
            kept = np.empty((circuit.units, step.parent.size)) if whole else products
            for start in range(0, step.parent.size, size := max(1, _PART // circuit.units)):
                columns = slice(start, start + size)
                part = products[:, step.parent[columns]] * scaled[:, step.factor[columns]]
                found[:, columns] = (head @ part) * step.times[columns]
                if whole:
                    kept[:, columns] = part
            products = kept
            out.append(found)
        return np.concatenate(out, axis=1)
