"""How many threads the BLAS takes: the one place that decides it.

The products here are small, so threads of the BLAS mostly spin while they wait for each other: planning takes about
five times the CPU, and longer. One thread is the default, for functions of the library while they run and for the
command line and worker processes from their start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

_OF_THE_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_CHOICES = (*_OF_THE_BLAS, "OMP_NUM_THREADS", "GOTO_NUM_THREADS")  # what libraries read a number of threads from
_BUILD_LIMITS = (64, 128, 256)  # that OpenBLAS is commonly built with; a larger machine starts with so many threads

ONE_THREAD = dict.fromkeys((*_OF_THE_BLAS, "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""The environment of a worker process: parallelism is between workers. Libraries read it when they are loaded."""

_lock = threading.Lock()
_depth = 0  # calls of one_thread that have not ended, in all threads of this process
_limits: list[Any] = []


def start_with_one_thread(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let libraries that are loaded later start with one thread, unless the user has chosen a number."""
    if not _chosen_by(environment):
        environment.update(dict.fromkeys(_OF_THE_BLAS, "1"))


@contextmanager
def few_threads() -> Iterator[None]:
    """One thread of the BLAS, unless the user has chosen a number by the environment or by threadpoolctl."""
    if _depth == 0 and _chosen():
        yield
        return
    with one_thread():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of the BLAS whatever the user has chosen, for sums that must not depend on the number of cores.

    The limit is the whole process's, so it ends when the last of several threads that asked for it is done.
    """
    global _depth
    from threadpoolctl import threadpool_limits

    with _lock:
        _depth += 1
        # Also where there is a limit already: another library may have been loaded since.
        _limits.append(threadpool_limits(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            while _depth == 0 and _limits:
                _limits.pop().restore_original_limits()


def _chosen() -> bool:
    if _chosen_by(os.environ):
        return True
    from threadpoolctl import threadpool_info

    return any(not _untouched(library) for library in threadpool_info() if library["user_api"] == "blas")


def _chosen_by(environment: MutableMapping[str, str]) -> bool:
    return any(environment.get(name) for name in _CHOICES)


def _untouched(library: dict[str, Any]) -> bool:
    """Whether a library has the number of threads it starts with: all cores, up to what it was built for."""
    threads, cores = library["num_threads"], {os.cpu_count() or 1, _usable()}
    if threads in cores or (threads in _BUILD_LIMITS and threads < max(cores)):
        return True
    return library["internal_api"] == "mkl" and 2 * threads in cores  # MKL does not count hyperthreads


def _usable() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
