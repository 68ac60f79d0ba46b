"""Map a function over tasks in worker processes: the one place that knows how runs are spread over cores.

Decides how many processes, how many threads in each, and what happens when one dies. It knows nothing of experiments:
any engine that can map a picklable function over a list can take its place.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from quad4fhe.errors import InputError

T = TypeVar("T")
R = TypeVar("R")
Map = Callable[[Callable[[T], R], Sequence[T]], Iterator[tuple[T, R]]]

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def map_in_processes(function: Callable[[T], R], tasks: Sequence[T], workers: int = 2) -> Iterator[tuple[T, R]]:
    """Yield (task, result) as they are done, `workers` at a time in the order given, each process on one thread.

    An error of a task, or leaving the loop early, ends the processes at once. With one worker there is no process.
    """
    if workers <= 1:
        for task in tasks:
            yield task, function(task)
        return
    before = set(multiprocessing.active_children())
    kept = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # read by the BLAS of a new process when it is loaded
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(os.getpid(),))
    try:
        waiting = list(tasks)
        running: dict[Future[R], T] = {}
        while waiting or running:
            while waiting and len(running) < workers:
                task = waiting.pop(0)
                with _deaf_to_interrupts():
                    running[pool.submit(function, task)] = task
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        raise InputError(
            "a worker process was ended from outside (out of memory?); finished runs are kept: give the command again, "
            "with --workers 1 if memory is short"
        ) from None
    finally:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started in here leave Ctrl-C to their parent from the first moment, as they inherit its deafness."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start(parent: int) -> None:
    """In a new worker: leave Ctrl-C to the parent, and end when the parent is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
