"""Work for the workers of `scale.py`; a module of its own, so that they can import it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np


def blas() -> Callable[[int], None]:
    """A worker whose task is a number of products of two matrices that stay in the cache."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(256, 256)), rng.normal(size=(256, 256))
    out = np.empty((256, 256))

    def work(repeats: int) -> None:
        for _ in range(repeats):
            np.matmul(A, B, out=out)

    return work


def scorer(make: Callable[[], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """A worker that scores, and says its process id when asked, so that its CPU time can be read."""
    answer = make()
    return lambda task: os.getpid() if task == "pid" else answer(task)


def nothing() -> Callable[[Any], None]:
    """A worker whose tasks are to receive what they are sent."""
    return _receive


def _receive(task: Any) -> None:
    return None
