"""The torch modules of polynomial models: linear layers, and a square or a polynomial by Horner's rule.

The classes are at the top level of a module, so that torch can pickle, export and compile their objects.
"""

from __future__ import annotations

from typing import Any

import torch


class FoldedNet(torch.nn.Module):
    """logits = squares(y * y) with y = hidden(x): affine, square, affine, as other compilers expect it."""

    def __init__(self, features: int, units: int, outputs: int, dtype: Any = None) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(features, units, dtype=dtype)
        self.squares = torch.nn.Linear(units, outputs, dtype=dtype)

    def forward(self, x: Any) -> Any:
        """Logits (n, K) of samples (n, d)."""
        y = self.hidden(x)
        return self.squares(y * y)


class QuadraticNet(FoldedNet):
    """logits = squares(y * y) + linear(y) with y = hidden(x)."""

    def __init__(self, features: int, units: int, outputs: int, dtype: Any = None) -> None:
        super().__init__(features, units, outputs, dtype)
        self.linear = torch.nn.Linear(units, outputs, bias=False, dtype=dtype)

    def forward(self, x: Any) -> Any:
        """Logits (n, K) of samples (n, d)."""
        y = self.hidden(x)
        return self.squares(y * y) + self.linear(y)


class PolynomialNet(torch.nn.Module):
    """logits = head(g(y)) with y = hidden(x) and g_j(y) = a_1j y + ... + a_pj y^p, a the (p, units) `coefficients`."""

    def __init__(self, features: int, units: int, outputs: int, degree: int, dtype: Any = None) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(features, units, dtype=dtype)
        self.coefficients = torch.nn.Parameter(torch.zeros(degree, units, dtype=dtype))
        self.head = torch.nn.Linear(units, outputs, dtype=dtype)

    def forward(self, x: Any) -> Any:
        """Logits (n, K) of samples (n, d)."""
        y = self.hidden(x)
        g = self.coefficients[-1] * y
        for k in range(self.coefficients.shape[0] - 2, -1, -1):
            g = (g + self.coefficients[k]) * y
        return self.head(g)
