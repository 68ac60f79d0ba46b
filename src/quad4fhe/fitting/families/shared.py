"""The shared family: one quadratic replaces every ReLU. The cascade solves it; it has nothing to learn here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.fitting.families.base import Curves, Family
from quad4fhe.mlp import MLP

if TYPE_CHECKING:
    from quad4fhe.fitting.result import Fit


class Shared(Family):
    """alpha, beta and eta (and tau, if the threshold is free)."""

    name = "shared"
    replaced = "one quadratic in place of every ReLU"
    drawn = "the one quadratic that replaces it"
    remark = "It need not be close to ReLU: only the decisions count, and they fix neither scale nor offset."

    def numbers(self, mlp: MLP) -> int:
        """Three, whatever the model."""
        return 3

    def formula(self, mlp: MLP) -> str:
        """The activation."""
        return "Every ReLU becomes q(u) = alpha u² + beta u + eta."

    def coefficients(self, fit: Fit) -> str:
        """All of them."""
        tau = f", tau {fit.tau:.6g}" if fit.tau else ""
        return f"alpha {fit.alpha:.6g}, beta {fit.beta:.6g}, eta {fit.eta:.6g}{tau}"

    def values(self, fit: Fit) -> dict[str, float | Array]:
        """Floats; tau only if there is one."""
        values: dict[str, float | Array] = {"alpha": fit.alpha, "beta": fit.beta, "eta": fit.eta}
        return values | ({"tau": fit.tau} if fit.tau else {})

    def curves(self, fit: Fit) -> Curves:
        """One curve."""
        alpha, beta, eta = np.array([[fit.alpha], [fit.beta], [fit.eta]], dtype=np.float64)
        return Curves(alpha, beta, eta, np.ones(1))


FAMILY = Shared()
