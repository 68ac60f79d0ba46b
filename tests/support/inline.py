"""Workers without processes, for tests of what uses a pool; everything is pickled and encoded as it would be."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quad4fhe.workers.base import LONGEST, Deliver, Launcher, Work, attempt
from quad4fhe.workers.codec import Answered, Lost, decoded, encoded
from quad4fhe.workers.pool import Workers


class InlineWorkers(Workers):
    """One worker that does each task at once in this process; keeps the bytes that would have been sent.

    A task that `deadly` names costs the worker its life.
    """

    name = "inline"

    def __init__(
        self, workers: int | None = None, *, on_this_machine: bool = True, deadly: tuple[Any, ...] = ()
    ) -> None:
        self.workers = workers or 1
        self.on_this_machine = on_this_machine
        self.deadly = deadly
        self.sent: list[bytes] = []

    @contextmanager
    def launch(self) -> Iterator[Launcher]:
        yield self

    def start(self, make: bytes, deliver: Deliver, *, longest: int = LONGEST, probe: bool = False) -> _InlineWorker:
        return _InlineWorker(self, make, deliver)


class _InlineWorker:
    name = "inline"

    def __init__(self, owner: InlineWorkers, make: bytes, deliver: Deliver) -> None:
        self._owner, self._deliver = owner, deliver
        owner.sent.append(make)
        self._work: Work = pickle.loads(make)()
        deliver(Answered(None))

    def send(self, task: Any) -> None:
        if task in self._owner.deadly:
            self._deliver(Lost("it was killed"))
            return
        self._owner.sent.append(pickle.dumps(task))
        self._deliver(decoded(encoded(attempt(self._work, pickle.loads(self._owner.sent[-1])))))

    def kill(self) -> None: ...

    def join(self) -> None: ...
