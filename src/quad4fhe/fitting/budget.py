"""How a stated amount of memory is shared out among the driver and the workers of a fit.

Decides how much of their shards' statistics workers may keep in memory; the rest goes to their scratch files. Neither
the cuts nor any result depend on it.
"""

from __future__ import annotations

from quad4fhe._arrays import CHUNK_BYTES
from quad4fhe.errors import InputError
from quad4fhe.lift import row_bytes, shard_rows
from quad4fhe.mlp import MLP

_DRIVER = 16 * 2**20  # line searches, hulls, what arrives from workers
_DRIVER_ROW = 24  # margins and labels of every row, and their copies when the fit is written
_WORKER = 3 * 2**20


def store_bytes(memory: int | None, workers: int, mlp: MLP, n: int, held: int) -> int | None:
    """What each worker may keep of `memory` bytes, None without a limit; `held` is taken by samples read whole."""
    if memory is None:
        return None
    # A shard's statistics as they are made or read, a view of them, and the temporaries of a chunk.
    working = _WORKER + 2 * shard_rows(mlp.classes) * row_bytes(mlp.classes) + 2 * CHUNK_BYTES
    driver = _DRIVER + _DRIVER_ROW * n + held
    needed = driver + workers * working
    if memory < needed:
        fewer = ", or use fewer workers" if workers > 1 else ""
        raise InputError(
            f"memory is {memory / 1e6:.3g} MB, but {n} rows, {mlp.classes} classes and {workers} "
            f"worker{'s' if workers > 1 else ''} take at least {needed / 1e6:.0f} MB; allow that{fewer}"
        )
    return (memory - driver) // workers - working
