"""A source of samples of one's own, in a module that worker processes can import."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quad4fhe import Rows


class Cubes(Rows):
    """Rows that are made when they are read."""

    def __init__(self, n: int) -> None:
        self.shape = (n, 4)

    def read(self, start: int, stop: int) -> NDArray[np.float64]:
        index = np.arange(4 * start, 4 * stop, dtype=np.float64).reshape(-1, 4)
        return np.modf(np.sin(index) * 1e4)[0]
