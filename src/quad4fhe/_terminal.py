"""Progress for a person: on standard error, only for work that takes over two seconds, gone when it is done."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_PATIENCE = 2.0  # seconds of silence before progress shows
_EVERY = 5.0  # seconds between two lines where there is no terminal


class Reporter:
    """A progress callable (what, done, total) that is also a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._start = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._stage = ("", self._start, 0)  # what is done now, since when, and how far it was then

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
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
        """How long it will take at the pace so far, once there is one."""
        _, since, first = self._stage
        if done <= first or now <= since:
            return ""
        return f", about {(total - done) * (now - since) / (done - first):.0f}s left"

    def _show(self, what: str, done: int, total: int) -> None:
        if self._bar is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
            self._bar = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console, transient=True
            )
            self._bar.add_task(what, total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=what, completed=done, total=total or None)
