"""The activation of the hidden layer: which function it is, and its parameters.

A kind of activation is one line of `ACTIVATIONS`. Where floating point leaves a doubt, decisions are settled in
fractions for a piecewise rational kind, and in intervals (`activations.intervals`) for a transcendental one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._registry import Registry
from quad4fhe.activations.intervals import Interval
from quad4fhe.errors import InputError

Parameter = float | tuple[float, ...]
"""One number, or one for each hidden unit."""

_ROUNDED_SLOPE = Fraction(1, 2**40)  # a slope is the product of a few floats
LIBRARY = 2.0**-38
"""Accuracy that a float64 exp, tanh, erf or log1p is trusted to have, relative to |u| + 1; it is better than 2^-49."""


@dataclass(frozen=True)
class Kind:
    """One kind of activation.

    Parameters
    ----------
    name
        Its name in options and files: "leaky_relu".
    title
        Its name in sentences: "LeakyReLU".
    function
        The activation of an array u, with the parameters after it.
    slope
        The largest slope with these parameters: how far an error of u can move the activation, per unit of error.
    exact
        The activation of one fraction, in fractions; None for a transcendental kind.
    enclose
        An interval of width near 2^-bits around the activation of one fraction; None for a rational kind.
    parameters
        Names and defaults of the parameters.
    positive
        Whether the parameters must be positive.
    divides
        Whether the exact values are quotients, whose sums grow too long to be carried through several layers.
    """

    name: str
    title: str
    function: Callable[..., Array]
    slope: Callable[..., Any]
    exact: Callable[..., Fraction] | None = None
    enclose: Callable[..., Interval] | None = None
    parameters: tuple[tuple[str, float], ...] = ()
    positive: bool = False
    divides: bool = False


_PIECEWISE = ("relu", "leaky_relu", "relu6", "hardtanh", "hard_sigmoid", "hard_swish", "softsign")
_SMOOTH = ("sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "elu", "selu", "celu", "softplus", "mish")
ACTIVATIONS: Registry[Kind] = Registry(
    "activation",
    {name: f"quad4fhe.activations.piecewise:{name.upper()}" for name in _PIECEWISE}
    | {name: f"quad4fhe.activations.smooth:{name.upper()}" for name in _SMOOTH},
)


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters, in the order of its kind; each is a number, or one for each hidden unit."""

    name: str
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        kind = ACTIVATIONS.get(self.name)
        given = tuple(_parameter(value) for value in self.parameters)
        if len(given) > len(kind.parameters):
            raise InputError(f"{self.name} got {len(given)} parameters, wanted at most {len(kind.parameters)}")
        defaults = tuple(value for _, value in kind.parameters)
        object.__setattr__(self, "parameters", given + defaults[len(given) :])
        for (name, _), value in zip(kind.parameters, self.parameters, strict=True):
            if not np.isfinite(value).all():
                raise InputError(f"the {name} of {self.name} is {value}, wanted finite numbers")
            if kind.positive and not np.greater(value, 0).all():
                raise InputError(f"the {name} of {self.name} is {value}, wanted positive numbers")
        with np.errstate(over="ignore", divide="ignore"):
            slopes = [kind.slope(*(pick(np.abs(v)) for v in self.parameters)) for pick in (np.min, np.max)]
        if not np.isfinite(slopes).all():
            raise InputError(
                f"{self.name} has parameters {self.parameters}, and its slope overflows; choose ordinary numbers"
            )

    @classmethod
    def parse(cls, text: str) -> Activation:
        """Read an option: "gelu", or with parameters "leaky_relu:0.2" and "hardtanh:-2,2"."""
        name, _, rest = text.strip().lower().partition(":")
        try:
            values = tuple(float(part) for part in rest.split(",")) if rest else ()
        except ValueError:
            raise InputError(f"the activation is {text!r}, wanted a name and numbers, as in leaky_relu:0.2") from None
        return cls(name.replace("-", "_"), values)

    @property
    def kind(self) -> Kind:
        """Its entry in the registry."""
        return ACTIVATIONS.get(self.name)

    @property
    def is_exact(self) -> bool:
        """Whether decisions are settled in fractions, not in intervals."""
        return self.kind.exact is not None

    @property
    def is_default(self) -> bool:
        """Whether it is ReLU."""
        return self == RELU

    def __str__(self) -> str:
        shown = [_words(value) for value in self.parameters]
        return self.kind.title + (f"({', '.join(shown)})" if shown else "")

    def __call__(self, u: Array) -> Array:
        """The activation of u (n, m), or of any array if no parameter differs between units."""
        return self.kind.function(u, *self._arrays())

    def check(self, units: int) -> None:
        """Raise InputError for parameters of another number of hidden units."""
        for value in self.parameters:
            if isinstance(value, tuple) and len(value) != units:
                raise InputError(f"{self.name} has parameters for {len(value)} units, but the hidden layer has {units}")

    def error(self, u: Array, u_error: Array) -> Array:
        """A bound on |computed activation - activation of the exact u|, where u (n, m) is off by at most u_error."""
        slope = np.asarray(self.kind.slope(*self._arrays()), dtype=np.float64)
        rounding = 2.0**-48 if self.is_exact else LIBRARY
        out: Array = slope * u_error + rounding * (1.0 + slope) * (np.abs(u) + u_error + 1.0)
        return out

    def of_unit(self, unit: int) -> tuple[Fraction, ...]:
        """The parameters of one hidden unit, as fractions."""
        return tuple(Fraction(v[unit] if isinstance(v, tuple) else v) for v in self.parameters)

    def fraction(self, u: Fraction, unit: int) -> Fraction:
        """The exact activation of one pre-activation; only if `is_exact`."""
        assert self.kind.exact is not None
        return self.kind.exact(u, *self.of_unit(unit))

    def interval(self, u: Fraction, unit: int, bits: int) -> Interval:
        """An interval around the activation of one pre-activation; only if not `is_exact`."""
        assert self.kind.enclose is not None
        return self.kind.enclose(u, bits, *self.of_unit(unit))

    def around(self, u: Interval, unit: int, bits: int) -> Interval:
        """An interval around the activations of all numbers in u, from that of its middle and the largest slope."""
        middle, radius = (u.low + u.high) / 2, (u.high - u.low) / 2
        value = Interval.at(self.fraction(middle, unit)) if self.is_exact else self.interval(middle, unit, bits)
        slope = Fraction(float(self.kind.slope(*(float(each) for each in self.of_unit(unit)))))
        reach = slope * (1 + _ROUNDED_SLOPE) * radius
        return Interval(value.low - reach, value.high + reach)

    def plain(self) -> list[Any]:
        """Name and parameters for JSON."""
        return [self.name, *(list(v) if isinstance(v, tuple) else v for v in self.parameters)]

    @classmethod
    def from_plain(cls, document: Sequence[Any]) -> Activation:
        """Read what `plain` made."""
        name, *values = document
        return cls(name, tuple(values))

    def _arrays(self) -> list[Any]:
        return [np.asarray(v, dtype=np.float64) if isinstance(v, tuple) else v for v in self.parameters]


def _parameter(value: Any) -> Parameter:
    array = np.asarray(value, dtype=np.float64).reshape(-1)
    if array.size == 0:
        raise InputError("a parameter of the activation is empty; wanted a number, or one for each hidden unit")
    numbers = [float(each) for each in array]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _words(value: Parameter) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{min(value):.6g} to {max(value):.6g}"


RELU = Activation("relu")
