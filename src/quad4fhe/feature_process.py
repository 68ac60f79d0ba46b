"""Starts the process that runs a feature part, and talks to it. What the process gives up is in `feature_child`.

A graph may come from a server or from a stranger's file, so its process is trusted with nothing: it starts in an empty
folder, with no descriptor but its pipes and with almost no environment, its answers are checked, and its time and
memory are limited. A process that ends is replaced with the next call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe._threads import ONE_THREAD
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.feature_child import FRAME, send
from quad4fhe.io.files import one_line

_PROGRAM = Path(__file__).with_name("feature_child.py")
# onnxruntime 1.31 for Linux and macOS tells its maker which models run, unless it is told not to.
_SILENT = {"ORT_DISABLE_TELEMETRY": "1"}
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")  # what an interpreter may need to start

START, CALL, ROW = 60, 10, 2
"""Seconds of processor time to open a graph, for each call, and for each row of a call besides."""
WAITING = 4  # the wall time is so many times the processor time, for busy machines
MEMORY = 2**32  # bytes, or half of this machine's memory if that is less
_LONGEST_HEADER, _LONGEST = 2**20, 2**30  # bytes of an answer


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The header of an answer; which fields are there depends on what it answers."""

    error: str | None = None
    confined: list[str] = []
    inputs: list[tuple[str, str, list[int | str | None]]] = []
    shape: list[int] = []


class GraphError(Exception):
    """What onnxruntime says of a graph that does not take its inputs."""


class _EndedError(Exception):
    """The process ended, or said something that is no answer."""


class GraphProcess:
    """A graph in a process of its own; calls from several threads wait for each other."""

    def __init__(self, graph: bytes) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise MissingExtraError("onnxruntime", "features", "the model's feature part")
        self._graph = graph
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self.inputs = self._started().inputs

    def run(self, feed: Mapping[str, NDArray[Any]], *, by_row: bool) -> Array:
        """The first output in float64, of the shape that the graph gives it; with `by_row`, (n, d).

        Raises GraphError if the graph does not take the inputs, and InputError if the process was ended.
        """
        seconds = CALL + ROW * len(next(iter(feed.values()), ()))
        header = {"seconds": seconds, "by_row": by_row, "inputs": [_header(*each) for each in feed.items()]}
        body = [np.ascontiguousarray(each) for each in feed.values() if each.dtype != object]
        with self._lock:
            answer, data = self._started().ask(header, body, seconds)
        if answer.error is not None:
            raise GraphError(answer.error)
        if min(answer.shape, default=0) < 0 or 8 * math.prod(answer.shape) != len(data):
            raise InputError(
                "the feature part gives values of another number than their shape says; export the model again"
            )
        return np.frombuffer(data, np.float64).reshape(answer.shape)

    def _started(self) -> _Child:
        """The process that runs, or a new one after it ended; a forked process can't use its parent's."""
        if self._child is None or not self._child.is_usable:
            self._child = _Child(self._graph)
        return self._child


def _header(name: str, values: NDArray[Any]) -> dict[str, Any]:
    """What the process has to know of an input; text is part of it, numbers follow as bytes."""
    header: dict[str, Any] = {"name": name, "shape": values.shape}
    return header | ({"text": values.ravel().tolist()} if values.dtype == object else {"dtype": values.dtype.str})


class _Child:
    """One process, from its start to its end."""

    def __init__(self, graph: bytes) -> None:
        self._owner = os.getpid()
        folder = tempfile.mkdtemp(prefix="quad4fhe-")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=ONE_THREAD | _SILENT | {"HOME": folder} | _kept(),
            start_new_session=True,  # Ctrl-C is for the caller
        )
        self._end = weakref.finalize(self, _end, self._process, folder, self._owner)
        # Only folders that are named in full: the process starts elsewhere.
        start = {"path": [each for each in sys.path if os.path.isabs(each)], "memory": _memory(), "seconds": START}
        self.layers = self.ask(start | {"landlock": True}, [graph], START)[0].confined
        with contextlib.suppress(OSError):  # Windows keeps it until the process ends
            os.rmdir(folder)
        if os.name == "posix" and "no files" not in self.layers:
            self._end()
            raise InputError(
                "the feature part was not run: its process could not give up access to files on this system"
            )
        opened = self.ask(None, [], START)[0]
        if opened.error is not None:
            self._end()
            reason = one_line(Exception(opened.error))
            raise InputError(f"onnxruntime can't run the feature part ({reason}); export the model again")
        self.inputs = opened.inputs

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and this process started it."""
        return self._end.alive and os.getpid() == self._owner and self._process.poll() is None

    def ask(self, header: dict[str, Any] | None, body: Sequence[Any], seconds: int) -> tuple[_Answer, bytes]:
        """Send a message, if there is one, and wait for the next answer; any failure ends the process."""
        late = threading.Timer(WAITING * seconds, self._process.kill)
        late.daemon = True
        late.start()
        try:
            return self._exchange(header, body)
        except (OSError, _EndedError, msgspec.MsgspecError):
            raise InputError(f"the feature part was ended: {self._how_it_ended(seconds)}") from None
        except BaseException:  # such as Ctrl-C: what comes next belongs to no call
            self._end()
            raise
        finally:
            late.cancel()

    def _exchange(self, header: dict[str, Any] | None, body: Sequence[Any]) -> tuple[_Answer, bytes]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if header is not None:
            send(stdin, header, *body)
        head, length = FRAME.unpack(_exactly(stdout, FRAME.size))
        if head > _LONGEST_HEADER or length > _LONGEST:
            raise _EndedError
        answer = msgspec.json.decode(_exactly(stdout, head), type=_Answer)
        return answer, _exactly(stdout, length)

    def _how_it_ended(self, seconds: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.poll()
        self._end()
        if code is not None and -code in [getattr(signal, name, None) for name in ("SIGKILL", "SIGXCPU")]:
            return (
                f"it may use {seconds} seconds of processor time here and {_memory() / 2**30:.1f} GiB of memory, and "
                "needed more; use a smaller one"
            )
        if code is None:
            return "it gave an answer that can't be read; export the model again"
        return f"its process failed (exit code {code}); export the model again"


def _exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise _EndedError
    return data


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    """End the process and take away what is left of it; a forked process leaves its parent's alone."""
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _kept() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _memory() -> int:
    """Bytes that the process may use."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return min(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return MEMORY
