"""Do the runs that are still missing, and say how long it will take.

Decides what is pending (by the hash of each run's inputs) and what is reported. A killed command loses only the runs
it was in the middle of: each finished run is a file of its own.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError
from quad4fhe.io.files import one_line
from quad4fhe.workers.pool import Workers, each
from quad4fhe.workers.registry import DEFAULT, choose
from quad4fhe_reproduce.data.fetch import can_fetch, fetch
from quad4fhe_reproduce.data.prepared import file_hash, how_to_get
from quad4fhe_reproduce.records import Task
from quad4fhe_reproduce.runs import run
from quad4fhe_reproduce.schedule import weight
from quad4fhe_reproduce.store import Store
from quad4fhe_reproduce.train import require_packages


@dataclass(frozen=True)
class Reproduced:
    """What a command did: runs found finished, runs done now, and runs that failed, each with its reason."""

    found: int
    done: int
    failed: tuple[str, ...]


def obtain(
    tasks: Sequence[Task], data: Path, *, download: bool, skip_missing: bool, progress: Progress = silent
) -> tuple[list[Task], list[str]]:
    """Fetch what is missing if asked to, and leave out what is still missing if asked to; says what was left out."""
    sets = {task.name: task.recipe.data for task in tasks}
    missing = [each for each in sets.values() if not (data / each.file).is_file()]
    if download:
        for each in missing:
            if can_fetch(each) or not skip_missing:
                fetch(each, data, progress)
    if not skip_missing:
        return list(tasks), []
    gone = {each.name: each for each in missing if not (data / each.file).is_file()}
    words = [f"{each.title}, as {data / each.file} is missing; {how_to_get(each)}" for each in gone.values()]
    if len(gone) == len(sets):
        raise InputError(f"{data} holds none of the data sets; name another folder with --data, or add --download")
    return [task for task in tasks if task.name not in gone], words


def pending(tasks: Sequence[Task], data: Path, store: Store) -> list[Task]:
    """The tasks without a finished run; every data file is checked before any work is begun."""
    hashes = {name: file_hash(task.recipe.data, data)[0] for name, task in {t.name: t for t in tasks}.items()}
    return [task for task in tasks if store.read(task, task.key(hashes[task.name])) is None]


def reproduce(
    tasks: Sequence[Task],
    data: Path,
    out: Path,
    *,
    workers: int = 2,
    pool: str | Workers | None = None,
    progress: Progress = silent,
) -> Reproduced:
    """Do every task that is not done yet with `workers` of `pool`, each with one thread.

    One worker without a `pool` is this process itself. Workers on other machines need `data` and `out` under the same
    names.
    """
    store = Store(out)
    store.make()
    with store.alone():
        left = pending(tasks, data, store)
        if left:
            require_packages()
        total = sum(weight(task) for task in left)
        done, started = 0.0, time.monotonic()
        progress(f"{len(left)} runs to do, {len(tasks) - len(left)} found finished", 0, 0)
        failed = []
        for finished, (task, error) in enumerate(_spread(left, data, out, workers, pool), start=1):
            if error:
                failed.append(f"{task.label}: {error}")
            done += weight(task)
            remaining = (time.monotonic() - started) * (total - done) / done
            progress(f"{task.label} done; about {_words(remaining)} left", finished, len(left))
    return Reproduced(len(tasks) - len(left), len(left) - len(failed), tuple(failed))


def _spread(
    left: Sequence[Task], data: Path, out: Path, workers: int, pool: str | Workers | None
) -> Iterator[tuple[Task, str]]:
    """Every task and what went wrong with it, as they are done."""
    work = partial(run_one, data=data.absolute(), out=out.absolute())
    if workers == 1 and pool is None:
        for task in left:
            yield task, work(task)
    elif left:
        for done in each(choose(pool or DEFAULT, workers), work, left):
            yield done.task, done.result if done.error is None else one_line(done.error)


def run_one(task: Task, data: Path, out: Path) -> str:
    """What a worker does: one run, which it writes itself; returns what went wrong with it, or nothing.

    One run that fails does not stop the others; its traceback is kept under `out`/failed.
    """
    store = Store(out)
    try:
        run(task, data, store)
    except Exception as error:
        store.write_failure(task, traceback.format_exc())
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def _words(seconds: float) -> str:
    minutes = seconds / 60
    if minutes >= 90:
        return f"{minutes / 60:.1f} h"
    return f"{minutes:.0f} min" if minutes >= 1.5 else f"{seconds:.0f} s"
