"""The process that runs one feature part, with nothing of its client in reach. See `feature_process`, which starts it.

It runs as a script and imports no other module of quad4fhe, because it has to stay small: first it loads numpy and
onnxruntime, then it gives up every right that it can, and only then it reads the graph. Messages are a JSON header and
raw bytes in both directions, so neither side runs code of the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import struct
import sys
import time
from typing import IO, TYPE_CHECKING, Any

resource: Any = None
with contextlib.suppress(ImportError):  # Windows does not have it; here, since later no file can be opened
    resource = importlib.import_module("resource")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FRAME = struct.Struct("<QQ")
"""The bytes of a message's JSON header, and of what follows it."""

# A graph with one MatMul (opset 13, IR 7). Running it loads everything that onnxruntime reads late, such as the list of
# processors; afterwards the process can't open files.
_FIRST = (
    b'\x08\x07\x12\x00:@\n\x11\n\x01x\n\x01x\x12\x01y"\x06MatMul\x12\x01gZ\x13\n\x01x\x12\x0e\n\x0c\x08\x01\x12\x08'
    b"\n\x02\x08\x01\n\x02\x08\x01b\x13\n\x01y\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\r"
)

# linux/landlock.h: the numbers are the same on every architecture but alpha.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_ASK_VERSION = 1
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of linux/prctl.h


def main() -> None:
    """Load the libraries, give up all rights, read the graph, then answer one call after the other."""
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that prints of a library can't garble the answers
    start, graph = receive(stdin)
    sys.path[:] = start["path"]
    import numpy as np
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.disable_telemetry_events()  # for Windows; elsewhere the environment has said so
    warm_up()
    send(stdout, {"confined": confine(start["memory"], landlock=start["landlock"])})
    try:
        limit_time(start["seconds"])
        session = session_of(bytes(graph))
        inputs = [[each.name, each.type, list(each.shape[1:])] for each in session.get_inputs()]
    except Exception as error:  # onnxruntime has no common base class of its errors
        send(stdout, {"error": str(error)})
        return
    del graph
    send(stdout, {"inputs": inputs})
    while True:
        try:
            call, data = receive(stdin)
        except EOFError:
            return
        try:
            limit_time(call["seconds"])
            out = run(session, feed_of(call["inputs"], data), by_row=call["by_row"])
            send(stdout, {"shape": out.shape}, np.ascontiguousarray(out))
        except Exception as error:
            send(stdout, {"error": str(error)})


def warm_up() -> None:
    """Run a small graph."""
    import numpy as np

    session_of(_FIRST).run(None, {"x": np.ones((1, 1), np.float32)})


def session_of(graph: bytes) -> Any:
    """The graph in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # the same sums everywhere, and no idle threads beside numpy's
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run(session: Any, feed: dict[str, Any], *, by_row: bool) -> Array:
    """The first output; row by row if that is asked for, or if the graph was exported for a batch of one."""
    import numpy as np

    first = [session.get_outputs()[0].name]
    n = len(next(iter(feed.values()), ()))
    if by_row:
        return _each(session, first, feed, n)
    try:
        return np.asarray(session.run(first, feed)[0], dtype=np.float64)
    except Exception as error:
        if n < 2:
            raise
        try:
            return _each(session, first, feed, n)
        except Exception:
            raise error from None  # says more


def _each(session: Any, first: list[str], feed: dict[str, Any], n: int) -> Array:
    import numpy as np

    rows = (session.run(first, {name: each[i : i + 1] for name, each in feed.items()})[0] for i in range(n))
    return np.concatenate([np.asarray(row, dtype=np.float64).reshape(1, -1) for row in rows])


def feed_of(inputs: list[dict[str, Any]], data: memoryview) -> dict[str, Any]:
    """The arrays of a call: numbers are raw bytes one after the other, text is in the header."""
    import numpy as np

    feed, at = {}, 0
    for each in inputs:
        if "text" in each:
            values = np.array(each["text"], dtype=object)
        else:
            dtype = np.dtype(each["dtype"])
            count = math.prod(each["shape"])
            values = np.frombuffer(data, dtype, count, at)
            at += count * dtype.itemsize
        feed[each["name"]] = values.reshape(each["shape"])
    return feed


# --- giving up rights -------------------------------------------------------------------------------------------


def confine(memory: int, *, landlock: bool = True) -> list[str]:
    """Give up files, network, programs and memory for good; returns what the system granted.

    Each layer is tried by itself, and what counts in the end is the attempt to open a file.
    """
    layers = []
    if sys.platform == "linux" and landlock:
        layers += _landlock()
    layers += _limits(memory)
    try:
        os.close(os.open("/", os.O_RDONLY))
    except OSError:
        layers.append("no files")
    return layers


def _landlock() -> list[str]:
    """Forbid what the kernel's Landlock can forbid, without a rule that allows anything: files, TCP, signals.

    It needs no rights. Kernels before 5.13 do not have it, and some are built or started without it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return []
    version = libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 1:
        return ["no new privileges"]
    files = 13 + (version >= 2) + (version >= 3) + (version >= 5)  # how many kinds of access this version knows
    words = [(1 << files) - 1]
    words += [0b11] if version >= 4 else []  # TCP: bind, connect
    words += [0b11] if version >= 6 else []  # abstract sockets and signals to other processes
    rules = (ctypes.c_uint64 * len(words))(*words)
    ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
    if ruleset < 0:
        return ["no new privileges"]
    done = libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return ["no new privileges", *(["landlock"] if done else [])]


def _limits(memory: int) -> list[str]:
    """POSIX limits: no further descriptor, so no file and no socket; nothing written, no process, no dump."""
    if resource is None:
        return []
    layers = []
    # Linux counts private memory in RLIMIT_DATA. RLIMIT_AS would count address space, which libraries only reserve.
    wanted = {"DATA": memory, "FSIZE": 0, "CORE": 0, "NPROC": 0, "NOFILE": 0}
    for name, value in wanted.items():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            layers.append(f"limit {name}")
    return layers


def limit_time(seconds: int) -> None:
    """End this process if it uses more seconds of processor time from now on; a later call replaces the limit."""
    if resource is None:
        return
    end, most = math.ceil(time.process_time()) + seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (end if most == resource.RLIM_INFINITY else min(end, most), most))


# --- messages ---------------------------------------------------------------------------------------------------


def receive(stream: IO[bytes]) -> tuple[Any, memoryview]:
    """The next message: its header and its bytes."""
    head, body = FRAME.unpack(_exactly(stream, FRAME.size))
    header = json.loads(_exactly(stream, head))
    return header, memoryview(_exactly(stream, body))


def send(stream: IO[bytes], header: dict[str, Any], *parts: Any) -> None:
    """Write one message, whose bytes are those of the parts, one after the other."""
    head = json.dumps(header).encode()
    body = [memoryview(part).cast("B") if memoryview(part).nbytes else b"" for part in parts]
    stream.write(FRAME.pack(len(head), sum(map(len, body))) + head)
    for part in body:
        stream.write(part)
    stream.flush()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


if __name__ == "__main__":
    main()
