"""Work for worker processes to do in tests; a module of its own, so that the workers can import it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quad4fhe.errors import InputError, MissingExtraError


def made(log: str | None = None) -> Callable[[Any], Any]:
    """A worker that does what its tasks say; writes a line to `log` when it is set up."""
    if log is not None:
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()}\n")
    memory: list[Any] = []

    def work(task: Any) -> Any:
        return ACTIONS[task[0]](*task[1:], memory)

    return work


def half(number: int) -> int:
    if number % 2:
        raise InputError(f"{number} is odd")
    return number // 2


def refusing() -> Callable[[Any], Any]:
    raise InputError("nothing can be set up here")


def dying() -> Callable[[Any], Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Stubborn(Exception):
    """An error that pickle can't carry."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"stubborn {one} {two}")


def _square(value: int, memory: list[Any]) -> int:
    return value * value


def _pid(seconds: float, memory: list[Any]) -> int:
    time.sleep(seconds)
    return os.getpid()


def _wait_for(flag: str, memory: list[Any]) -> None:
    """Wait until a file is there, but not forever."""
    end = time.monotonic() + 60
    while not Path(flag).exists() and time.monotonic() < end:
        time.sleep(0.01)


def _raise(message: str, memory: list[Any]) -> None:
    raise InputError(message)


class _Locked:
    """Like an object of SEAL whose memory pool ran out of memory: freeing it takes forever."""

    def __del__(self) -> None:
        time.sleep(60)


def _exhaust(memory: list[Any]) -> None:
    locked = _Locked()
    raise MemoryError(f"no room beside {type(locked).__name__}")


def _stubborn(memory: list[Any]) -> None:
    raise Stubborn(1, 2)


def _missing(memory: list[Any]) -> None:
    raise MissingExtraError("onnx", "onnx", "this")


def _die(memory: list[Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_until(flag: str, memory: list[Any]) -> int:
    """Die at the first attempt, answer at the second."""
    place = Path(flag)
    if not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def _remember(value: Any, memory: list[Any]) -> tuple[int, list[Any]]:
    memory.append(value)
    return os.getpid(), list(memory)


def _lambda(memory: list[Any]) -> Any:
    return lambda: None


def _print(memory: list[Any]) -> str:
    sys.stdout.write("noise\n" * 1000)
    sys.stdout.flush()
    os.write(1, b"more noise\n")
    return "said"


def _threads(memory: list[Any]) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}


def _sigint(memory: list[Any]) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    return "still here"


def _echo(data: bytes, memory: list[Any]) -> bytes:
    return data


class _Touch:
    """A pickle that makes a file where it is read."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self._mark),)


def _hijack(mark: str, memory: list[Any]) -> None:
    """Write a pickle to every pipe there is, framed as an answer."""
    data = pickle.dumps(_Touch(mark))
    for pipe in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(pipe, struct.pack("<Q", len(data)) + data)
    time.sleep(0.5)


ACTIONS: dict[str, Callable[..., Any]] = {
    "square": _square,
    "pid": _pid,
    "wait for": _wait_for,
    "raise": _raise,
    "exhaust": _exhaust,
    "stubborn": _stubborn,
    "missing": _missing,
    "die": _die,
    "die until": _die_until,
    "remember": _remember,
    "lambda": _lambda,
    "print": _print,
    "threads": _threads,
    "sigint": _sigint,
    "echo": _echo,
    "hijack": _hijack,
}
