"""The kinds of workers by name. A new kind is one module with a subclass of `Workers`, and one line here.

This module imports none of them, so that the command line lists the names quickly and Ray may be missing.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from quad4fhe._registry import Registry
from quad4fhe.errors import InputError

if TYPE_CHECKING:
    from quad4fhe.workers.pool import Workers

KINDS: Registry[type[Workers]] = Registry(
    "pool", {"local": "quad4fhe.workers.local:LocalWorkers", "ray": "quad4fhe.workers.ray:RayWorkers"}
)
HELP = "local: processes on this machine; ray: actors of Ray, on the cluster at RAY_ADDRESS or one started here"
DEFAULT = "local"


def choose(pool: str | Workers, workers: int | None = None) -> Workers:
    """Return the workers that a name and a number stand for; a `Workers` object is returned unchanged.

    Parameters
    ----------
    pool
        "local", "ray" or a `Workers` object.
    workers
        How many; by default one for each core this process may use, and on Ray one for each of its CPUs.
    """
    from quad4fhe.workers.pool import Workers

    if workers is not None and not _positive(workers):
        raise InputError(f"workers is {workers!r}, wanted a whole number, at least 1")
    if isinstance(pool, str):
        return KINDS.get(pool)(workers)
    if not isinstance(pool, Workers):
        raise InputError(f"the pool is of type {type(pool).__name__}, wanted a name such as {DEFAULT!r} or a Workers")
    if workers not in (None, pool.workers):
        raise InputError(f"workers is {workers}, but the given pool has {pool.workers}; leave out workers")
    return pool


def _positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1
