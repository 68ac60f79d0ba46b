"""What a command prints: results on standard output, progress on standard error.

Rich and msgspec are imported when something is printed: without them, `quad4fhe --help` takes a third less time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from quad4fhe.io.files import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from quad4fhe.folders.run import Problem

_PATIENCE = 2.0  # seconds before progress appears
_EVERY = 5.0  # seconds between two lines of progress where there is no terminal
_NAMED = 20  # problems that are named; --json names all


@contextmanager
def at_work() -> Iterator[Reporter]:
    """Show progress while the block runs.

    Standard output is for the result alone, so what libraries print in the meantime (Ray does) goes to standard error.
    """
    reporter = Reporter()
    try:
        with redirect_stdout(sys.stderr):
            yield reporter
    finally:
        reporter.close()


class Reporter:
    """A progress callback (what, done, total): silent for two seconds, then a bar, or lines without a terminal."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._start = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._stage = ("", self._start, 0)  # the current stage, when it began, and the count at that time

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far the work is."""
        now = time.monotonic()
        if what != self._stage[0]:
            self._stage = (what, now, done)
        if now - self._start < _PATIENCE:
            return
        if self._console.is_terminal:
            self._show(what, done, total)
        elif now - self._last >= _EVERY:
            self._last = now
            share = f" {done}/{total}{self._left(now, done, total)}" if total else ""
            self._console.print(f"{now - self._start:.0f}s  {what}{share}", markup=False)

    def _left(self, now: float, done: int, total: int) -> str:
        """The time left at the current pace, once there is one."""
        _, since, first = self._stage
        if done <= first or now <= since:
            return ""
        return f", about {(total - done) * (now - since) / (done - first):.0f}s left"

    def _show(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
            self._bar = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, transient=True
            )
            self._bar.add_task(what, total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=what, completed=done, total=total or None)


def console(**settings: Any) -> Console:
    """A console that colours nothing by itself."""
    from rich.console import Console

    return Console(highlight=False, **settings)


def print_table(title: str, lines: list[tuple[str, str]]) -> None:
    """Print (name, value) lines under a title."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    out = console()
    out.print(table)
    out.print()


def say(text: str) -> None:
    """Print a sentence."""
    console(soft_wrap=True).print(text, markup=False)


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 request`, `2 requests`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def name_problems(what: str, problems: Sequence[Problem]) -> None:
    """Print one line for each of the first problems."""
    for problem in problems[:_NAMED]:
        say(shown(f"{what}: {problem.file}: {problem.reason}"))
    if len(problems) > _NAMED:
        say(f"and {len(problems) - _NAMED} more; --json names them all")
