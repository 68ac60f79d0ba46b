"""What every peer's program shares: the task it reads, CPU times, and the line of JSON it prints.

Runs in the peer's own environment, so it needs NumPy alone.
"""

from __future__ import annotations

import inspect
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class Task:
    """One network, its polynomial replacement and the rows to score.

    The replacement is S (y*y) + T y + c with y = W1 x + b1. Folded, the same function is V (z*z) + k with z = W x + b.
    `logits` are those of the replacement in the clear, `relu` the decisions of the trained network.
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as z:
            self.arrays = {name: z[name] for name in z.files}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.arrays:
            raise AttributeError(name)
        return self.arrays[name]


def cpu(step: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one call, all threads of the process together, and what it returned."""
    start = time.process_time()
    out = step()
    return time.process_time() - start, out


def decisions(logits: np.ndarray) -> np.ndarray:
    """Decisions (n,) of logits (n, K): the sign for K = 1."""
    return (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)


def compared(found: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """How far decrypted logits are from those in the clear."""
    return {
        "samples": len(found),
        "changed": int((decisions(found) != decisions(wanted)).sum()),
        "max_error": float(np.abs(found - wanted).max()),
    }


def lines_of(*functions: Callable[..., Any]) -> int:
    """Lines of code that a user writes: the bodies of these functions, without docstrings and blank lines."""
    total = 0
    for function in functions:
        body = inspect.getsource(function).splitlines()[1:]
        total += sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in body)
    return total


def report(**fields: Any) -> None:
    """Print one result as the last line of the output."""
    fields["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print("RESULT " + json.dumps(fields), flush=True)


def arguments() -> tuple[Task, str, int]:
    """The task, the form that is asked for ("one" or "many"), and the number of repeats."""
    return Task(sys.argv[1]), sys.argv[2], int(sys.argv[3])
