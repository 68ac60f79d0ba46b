"""Recognise an activation that a graph computes in several elementwise nodes, such as GELU with erf.

An expression is a polynomial whose variables are the pre-activation u and functions of expressions, so the order of
sums and products in a graph does not matter. `recognise` compares forms, never values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from quad4fhe.activations import ACTIVATIONS, RELU, Activation

_CLOSE = 1e-4  # relative; float16 constants are off by 5e-4 of a unit, and no two known forms are this near
_LIMIT = 16  # terms of the longest expression that is followed


@dataclass(frozen=True)
class Atom:
    """A variable of an expression: u itself (no name), or a named function of an expression."""

    name: str = ""
    parameters: tuple[Any, ...] = ()
    inner: Expression | None = None

    @property
    def inner_terms(self) -> tuple[tuple[tuple[Atom, ...], float], ...]:
        """The terms of the inner expression."""
        return () if self.inner is None else self.inner.terms


@dataclass(frozen=True)
class Expression:
    """A sum of terms: coefficients by the sorted atoms that they multiply."""

    terms: tuple[tuple[tuple[Atom, ...], float], ...]

    @classmethod
    def of(cls, terms: dict[tuple[Atom, ...], float]) -> Expression:
        """The expression with these terms, sorted."""
        kept = {key: value for key, value in terms.items() if value}
        return cls(tuple(sorted(kept.items(), key=lambda item: repr(item[0]))))

    def __add__(self, other: Expression) -> Expression:
        terms = dict(self.terms)
        for key, value in other.terms:
            terms[key] = terms.get(key, 0.0) + value
        return Expression.of(terms)

    def __mul__(self, other: Expression) -> Expression | None:
        terms: dict[tuple[Atom, ...], float] = {}
        for one, left in self.terms:
            for two, right in other.terms:
                key = tuple(sorted((*one, *two), key=repr))
                terms[key] = terms.get(key, 0.0) + left * right
        return Expression.of(terms) if len(terms) <= _LIMIT else None

    def function(self, name: str, *parameters: Any) -> Expression:
        """The function `name` of this expression."""
        return Expression.of({(Atom(name, parameters, self),): 1.0})

    @property
    def line(self) -> tuple[float, float] | None:
        """(s, t) if this is s u + t, else None."""
        terms = dict(self.terms)
        constant, slope = terms.pop((), 0.0), terms.pop((_U,), 0.0)
        return None if terms else (slope, constant)


_U = Atom()
PLAIN = Expression.of({(_U,): 1.0})
"""The pre-activation itself."""


def constant(value: float) -> Expression:
    """A number."""
    return Expression.of({(): value})


def quotient(above: Expression, below: Expression) -> Expression | None:
    """u / (1 + |u|), the only quotient that is an activation; None for any other."""
    return PLAIN.function("softsign") if (above, below) == (PLAIN, PLAIN.function("abs") + constant(1.0)) else None


@dataclass(frozen=True)
class Recognised:
    """The expression is outer[0] * activation(inner[0] * u + inner[1]) + outer[1]."""

    activation: Activation
    inner: tuple[float, float]
    outer: tuple[float, float]


def recognise(found: Expression) -> Recognised | None:
    """The known activation of this form, or None."""
    terms = dict(found.terms)
    shift = terms.pop((), 0.0)
    for form in (_one_function, _times_u, _gelu, _gelu_tanh):
        known = form(terms)
        if known is not None:
            activation, inner, scale = known
            return Recognised(activation, inner, (scale, shift))
    return None


_Terms = dict[tuple[Atom, ...], float]
_Known = tuple[Activation, tuple[float, float], float]


def _one_function(terms: _Terms) -> _Known | None:
    """A single function of s u + t, times a number."""
    if len(terms) != 1:
        return None
    ((atoms, scale),) = terms.items()
    line = atoms[0].inner.line if len(atoms) == 1 and atoms[0].inner is not None else None
    if line is None:
        return None
    (atom,) = atoms
    if atom.name == "clip":
        low, high = atom.parameters
        if low == 0 and math.isinf(high):
            return RELU, line, scale
        if math.isinf(low) or math.isinf(high):
            return None
        return Activation("relu6") if (low, high) == (0, 6) else Activation("hardtanh", (low, high)), line, scale
    if atom.name not in ACTIVATIONS:  # erf and abs alone are not activations
        return None
    return Activation(atom.name, atom.parameters), line, scale


def _pair(terms: _Terms) -> tuple[Atom, float] | None:
    """The function f and the number a of the single term a u f."""
    if len(terms) != 1:
        return None
    ((atoms, scale),) = terms.items()
    others = [atom for atom in atoms if atom != _U]
    return (others[0], scale) if len(atoms) == 2 and len(others) == 1 else None


def _times_u(terms: _Terms) -> _Known | None:
    """SiLU, Mish and HardSwish: u times a function of u."""
    found = _pair(terms)
    if found is None or found[0].inner is None:
        return None
    atom, scale = found
    line = found[0].inner.line
    same = (1.0, 0.0)
    if atom.name == "sigmoid" and line is not None and _near(line[1], 0.0) and line[0]:
        return Activation("silu", (line[0],)), same, scale
    if atom.name == "hard_sigmoid" and atom.inner == PLAIN and _all_near(atom.parameters, (1 / 6, 0.5)):
        return Activation("hard_swish"), same, scale
    if (atom.name, atom.parameters) == ("clip", (0.0, 6.0)) and line is not None and _all_near(line, (1.0, 3.0)):
        return Activation("hard_swish"), same, 6.0 * scale
    if atom.name == "tanh" and line is None and len(atom.inner_terms) == 1:
        ((inner, factor),) = atom.inner_terms
        if _near(factor, 1) and len(inner) == 1 and inner[0].name == "softplus" and inner[0].inner == PLAIN:
            return Activation("mish"), same, scale
    return None


def _halves(terms: _Terms, name: str) -> tuple[Atom, float] | None:
    """The function f and the number a of a u + a u f, with f of this name."""
    rest = dict(terms)
    first = rest.pop((_U,), None)
    found = _pair(rest)
    if first is None or found is None or found[0].name != name or not _near(found[1], first):
        return None
    return found


def _gelu(terms: _Terms) -> _Known | None:
    """u (1 + erf(s u)) a = 2 a u P(Z < k u) = (2 a / k) gelu(k u), with k = s sqrt 2."""
    found = _halves(terms, "erf")
    line = None if found is None or found[0].inner is None else found[0].inner.line
    if found is None or line is None or not _near(line[1], 0.0) or not line[0]:
        return None
    k = line[0] * math.sqrt(2.0)
    k = 1.0 if _near(k, 1.0) else k
    return Activation("gelu"), (k, 0.0), 2.0 * found[1] / k


def _gelu_tanh(terms: _Terms) -> _Known | None:
    found = _halves(terms, "tanh")
    if found is None:
        return None
    inner = dict(found[0].inner_terms)
    first, third = inner.pop((_U,), 0.0), inner.pop((_U, _U, _U), 0.0)
    root = math.sqrt(2.0 / math.pi)
    if inner or not (_near(first, root) and _near(third, root * 0.044715)):
        return None
    return Activation("gelu_tanh"), (1.0, 0.0), 2.0 * found[1]


def _all_near(values: tuple[float, ...], wanted: tuple[float, ...]) -> bool:
    return all(_near(value, other) for value, other in zip(values, wanted, strict=True))


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _CLOSE * max(1.0, abs(wanted)) if wanted else abs(value) <= 1e-9
