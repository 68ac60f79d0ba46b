"""How each family of replacement is checked: one rule per family, recomputed without the code that fits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array, IntArray
from quad4fhe._registry import Registry
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.mlp import MLP
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.regime import Kind

if TYPE_CHECKING:
    from quad4fhe.proof.certificate import Certified


@dataclass(frozen=True)
class Rule:
    """What a fit of a family can say of itself.

    `check` raises CertificateError if the coefficients that a fit shows are not those of its model. `regimes` are the
    kinds of regime that the family can have, `higher` those above degree 2. `is_shared` says that evidence against
    every shared quadratic is evidence against a lossless fit of this family, and `has_threshold` that tau may differ
    from zero.
    """

    check: Callable[[Certified], None]
    regimes: frozenset[Kind]
    higher: frozenset[Kind] = frozenset({"kl"})
    is_shared: bool = False
    has_threshold: bool = False


_ROUNDED = 2.0**-6
"""How far a rounded first layer may be from the model's, relative to each unit's largest weight."""


def is_rounded_layer(model: PolynomialModel, mlp: MLP) -> bool:
    """Whether each unit of a model of higher degree is one of `mlp` times a power of two, rounded and shifted.

    In a free head one may stand several times, with a polynomial each, or not at all. The decisions are checked with
    the model's own numbers, so nothing rests on how coarse the rounding is.
    """
    if model.W1.shape[1] != mlp.W1.shape[1]:
        return False
    return _is_rounded(model.W1, mlp.W1[units_of(model, mlp)])


def units_of(model: PolynomialModel, mlp: MLP) -> IntArray:
    """Which hidden unit of `mlp` each unit of a model of higher degree stands for, (r,): the most similar one."""
    if model.units == mlp.units and _is_rounded(model.W1, mlp.W1):
        return np.arange(mlp.units)
    sizes = np.linalg.norm(mlp.W1, axis=1)
    out: IntArray = np.argmax(model.W1 @ (mlp.W1 / np.where(sizes > 0, sizes, 1.0)[:, None]).T, axis=1)
    return out


def _is_rounded(rounded: Array, W1: Array) -> bool:
    """Whether each row is that of W1 times a power of two, but for a small share of the largest weight."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(rounded).max(axis=1) / np.abs(W1).max(axis=1)
        exponent = np.rint(np.log2(np.where(ratio > 0, ratio, 1.0)))
    off = np.abs(rounded - np.ldexp(1.0, exponent.astype(int))[:, None] * W1).max(axis=1)
    return bool((off <= float(np.abs(rounded).max()) * _ROUNDED).all())


def _check_higher(fit: Certified, pooled: bool) -> None:
    """A polynomial per unit under a rounded head; one for all units if they are pooled."""
    model, mlp = fit.model, fit.mlp
    if model.V is None or model.a is None:
        raise CertificateError(f"the family {fit.family!r} of degree {model.degree} has one polynomial for each unit")
    if not (fit.alpha is None and fit.beta is None and fit.eta is None):
        raise CertificateError(f"a fit of degree {model.degree} has no alpha, beta and eta, and this one shows some")
    if model.units != mlp.units:
        raise CertificateError(f"the family {fit.family!r} has one polynomial for each hidden unit, this model more")
    if pooled and not (model.a == model.a[:, :1]).all():
        raise CertificateError("the family is said to be shared, and the polynomials of its units differ")
    if np.abs(model.V - mlp.W2).max(initial=0.0) > _ROUNDED * np.abs(mlp.W2).max(initial=0.0):
        raise CertificateError("the head of the replacement is not the model's, rounded")


def _check_shared(fit: Certified) -> None:
    if fit.model.degree > 2:
        _check_higher(fit, pooled=True)
        return
    coefficients = (fit.alpha, fit.beta, fit.eta, fit.tau)
    if not all(isinstance(value, float) and np.isfinite(value) for value in coefficients):
        raise CertificateError(
            "the family is said to be shared: wanted four finite numbers as alpha, beta, eta and tau"
        )
    if PolynomialModel.shared(fit.mlp, *coefficients).sha256 != fit.model.sha256:
        raise CertificateError(
            f"alpha={fit.alpha!r}, beta={fit.beta!r}, eta={fit.eta!r}, tau={fit.tau!r} are not the coefficients "
            "behind S, T and c"
        )


def _check_unitwise(fit: Certified) -> None:
    if fit.model.degree > 2:
        _check_higher(fit, pooled=False)
        return
    try:
        expected = PolynomialModel.unitwise(fit.mlp, fit.alpha, fit.beta, fit.eta)
    except InputError as error:
        raise CertificateError(f"the unitwise coefficients can't be those behind S, T and c: {error}") from None
    if expected.sha256 != fit.model.sha256:
        raise CertificateError("the unitwise alpha, beta and eta are not the coefficients behind S, T and c")


def _check_head(fit: Certified) -> None:
    if fit.model.degree > 2 and fit.model.V is None:
        raise CertificateError(f"a head of degree {fit.model.degree} is made of polynomials of units, this one is not")
    if not (fit.alpha is None and fit.beta is None and fit.eta is None):
        raise CertificateError("a free head has no alpha, beta and eta, and this one shows some")


SHARED = Rule(
    _check_shared,
    frozenset({"hard", "rch", "soft"}),
    frozenset({"hard", "rch", "soft", "kl"}),
    is_shared=True,
    has_threshold=True,
)
UNITWISE = Rule(_check_unitwise, frozenset({"kl"}))
HEAD = Rule(_check_head, frozenset({"kl"}))

RULES: Registry[Rule] = Registry(
    "family", {name: f"quad4fhe.proof.families:{name.upper()}" for name in ("shared", "unitwise", "head")}
)
"""The rules by the name of their family."""


def rule_of(family: str) -> Rule:
    """The rule of a family; raises CertificateError if there is none."""
    if family not in RULES:
        raise CertificateError(f"the family {family!r} is unknown, so nothing ties its coefficients to S, T and c")
    return RULES.get(family)
