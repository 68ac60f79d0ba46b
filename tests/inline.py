"""An engine without processes for tests of what is built on engines; everything is sent as it would be."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from quad4fhe.engines import Done, Work, codec


class InlineEngine:
    """Does tasks one by one in this process, and keeps the bytes that would have been sent to workers."""

    name = "inline"
    workers = 1
    here = True
    lost = 0

    def __init__(self, *, here: bool = True) -> None:
        self.here = here
        self.sent: list[bytes] = []
        self._work: Work | None = None

    def open(self, make: Callable[[], Work]) -> InlineEngine:
        self.sent.append(pickle.dumps(make))
        self._work = pickle.loads(self.sent[-1])()
        return self

    def stream(self, tasks: Iterable[Any], *, ahead: int = 0) -> Iterator[Done]:
        assert self._work is not None
        for index, task in enumerate(tasks):
            self.sent.append(pickle.dumps(task))
            try:
                result = codec.decode(codec.encode(self._work(pickle.loads(self.sent[-1]))))
            except Exception as error:
                yield Done(index, task, error=error)
            else:
                yield Done(index, task, result=result)

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def close(self) -> None:
        self._work = None

    def __enter__(self) -> InlineEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
