"""What a model costs the server: for `fit(degree="auto")`, which compares degrees by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe._box import default_share, widened
from quad4fhe.errors import InputError
from quad4fhe.layouts import LAYOUTS
from quad4fhe.planning.target import Question
from quad4fhe.polynomial import PolynomialModel

_LAYOUT = "batch"  # for many samples
_SAMPLES = 2**13  # fill every ring


def server_seconds(model: PolynomialModel, box: Array, X: Any, margins: Array) -> float:
    """Server time of a sample among many, in the strict plan that `plan` would make; infinite if there is none.

    `box` (2, d) is the calibration range, `margins` (n,) are those of the model at X (n, d).
    """
    points = np.asarray(X, dtype=np.float64)
    try:
        wide = widened(box, default_share(model.degree))
        question = Question(model, wide, margins, points, "strict", _SAMPLES)
        found = LAYOUTS.get(_LAYOUT).search(question)
    except InputError:
        return math.inf
    if not found:
        return math.inf
    best = min(found, key=lambda choice: (choice.missed, choice.cost.seconds))
    return best.cost.server_seconds / _SAMPLES
