"""The torch module of a polynomial model: linear layers and one square, nothing else."""

from __future__ import annotations

from typing import Any

import torch


class QuadraticNet(torch.nn.Module):
    """logits = squares(y * y) + linear(y) with y = hidden(x).

    At the top of a module of its own, so that whole modules can be pickled, exported with torch.export and compiled.
    """

    def __init__(self, features: int, units: int, outputs: int, dtype: Any = None) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(features, units, dtype=dtype)
        self.squares = torch.nn.Linear(units, outputs, dtype=dtype)
        self.linear = torch.nn.Linear(units, outputs, bias=False, dtype=dtype)

    def forward(self, x: Any) -> Any:
        """Logits (n, K) of samples (n, d)."""
        y = self.hidden(x)
        return self.squares(y * y) + self.linear(y)
