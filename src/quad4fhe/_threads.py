"""Count the cores this process may use, and limit the threads of the BLAS.

The products here are small, so BLAS threads mostly spin while they wait for each other: planning then takes about five
times the CPU time, and more wall time. The default is one thread: in functions of the library while they run, and in
the command line and worker processes from their start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OF_THE_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_CHOICES = (*_OF_THE_BLAS, "OMP_NUM_THREADS", "GOTO_NUM_THREADS")  # variables from which libraries read a number
_BUILD_LIMITS = (64, 128, 256)  # common build limits of OpenBLAS; on a larger machine it starts with one of them
_CGROUP = Path("/sys/fs/cgroup")

ONE_THREAD = dict.fromkeys((*_OF_THE_BLAS, "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""The environment of a worker process, because workers run in parallel. Libraries read it when they are loaded."""

_lock = threading.Lock()
_depth = 0  # blocks of one_thread that are open, in all threads of this process
_limits: list[Any] = []


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and the CPU quota of its container (cgroup v1, v2)."""
    cores = _affinity()
    quota, period = [*_words(_CGROUP / "cpu.max"), "", ""][:2]
    if not quota:
        v1 = _CGROUP / "cpu"
        quota, period = ("".join(_words(v1 / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    if quota.isdigit() and period.isdigit() and int(period) > 0:  # otherwise "max", "-1", or no such file
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def start_with_one_thread() -> None:
    """Let libraries that are loaded later start with one thread, unless the user has chosen a number."""
    if not _named():
        os.environ.update(dict.fromkeys(_OF_THE_BLAS, "1"))


@contextmanager
def few_threads() -> Iterator[None]:
    """Limit the BLAS to one thread, unless the user has chosen a number by the environment or by threadpoolctl."""
    if _depth == 0 and _chosen():
        yield
        return
    with one_thread():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit the BLAS to one thread, whatever the user chose, for sums that must not depend on the number of cores.

    The limit applies to the whole process, so it ends when the last thread leaves its block.
    """
    global _depth
    from threadpoolctl import threadpool_limits

    with _lock:
        _depth += 1
        # Set the limit in nested blocks too: a library may have been loaded since.
        _limits.append(threadpool_limits(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            while _depth == 0 and _limits:
                _limits.pop().restore_original_limits()


def _chosen() -> bool:
    if _named():
        return True
    from threadpoolctl import threadpool_info

    return any(not _untouched(library) for library in threadpool_info() if library["user_api"] == "blas")


def _named() -> bool:
    """Whether the environment names a number of threads."""
    return any(os.environ.get(name) for name in _CHOICES)


def _untouched(library: dict[str, Any]) -> bool:
    """Whether a library still has the number of threads it starts with: all cores, up to its build limit."""
    threads, cores = library["num_threads"], {os.cpu_count() or 1, _affinity()}
    if threads in cores or (threads in _BUILD_LIMITS and threads < max(cores)):
        return True
    return library["internal_api"] == "mkl" and 2 * threads in cores  # MKL does not count hyperthreads


def _affinity() -> int:
    """The number of cores the system lets this process run on, or PYTHON_CPU_COUNT; libraries see no quotas."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
