"""What a model costs under encryption, for modules that import no layout.

`quad4fhe.layouts` registers its forecast here, and `quad4fhe/__init__.py` imports it. So `fit(degree="auto")` can
compare degrees by the server time of each, and a server loads nothing of `fitting`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quad4fhe._arrays import Array
    from quad4fhe.polynomial import PolynomialModel

    ServerSeconds = Callable[[PolynomialModel, Array, Any, Array], float]

_forecast: list[ServerSeconds] = []


def use_forecast(forecast: ServerSeconds) -> None:
    """Let fits compare models by this function; see `server_seconds`."""
    _forecast[:] = [forecast]


def server_seconds(model: PolynomialModel, box: Array, X: Any, margins: Array) -> float:
    """Server time of a sample among many, strict; infinite if no plan fits.

    `box` (2, d) is the calibration range, `margins` (n,) are those of the model at X (n, d).
    """
    if not _forecast:
        raise AssertionError("no forecast is registered: import quad4fhe.layouts")
    return _forecast[0](model, box, X, margins)
