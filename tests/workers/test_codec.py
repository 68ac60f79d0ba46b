"""Workers can send data and nothing else: it arrives unchanged, and no bytes decode to anything but data."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.fitting.sweeps import Tally
from quad4fhe.folders.worker import ReplyFolderError, TaskResult
from quad4fhe.workers import choose, codec
from quad4fhe.workers.codec import Answered, Failed, WorkError, decoded, encoded
from support import tasks

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.fractions(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
        | st.sets(st.text())
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


@given(PLAIN)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    assert same(codec.decode(codec.encode(value)), value)


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<i8", "<u4", "|b1", "<c16", "<U5", "|S3", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_to_the_last_bit_in_their_order(dtype: str, order: Any) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype)) if order == "F" else np.zeros((2, 0, 3), dtype)
    for each in (array, array[..., :2], np.array(array.ravel()[:1])[()] if array.size else array):
        back = codec.decode(codec.encode(each))
        assert type(back) is type(each)
        assert back.dtype == each.dtype
        assert back.tobytes() == each.tobytes()
        if isinstance(each, np.ndarray) and each is array:
            assert back.flags.f_contiguous == array.flags.f_contiguous
            assert back.flags.writeable


def test_exact_integers_and_this_packages_own_data_come_back() -> None:
    big = np.array([[10**40, -(10**30)], [0, 1]], dtype=object)
    assert (codec.decode(codec.encode(big)) == big).all()
    answer = TaskResult("ab", 3, b"xyz")
    assert codec.decode(codec.encode(("x", answer))) == ("x", answer)
    tally = Tally(3, 0.5)
    back = codec.decode(codec.encode(tally))
    assert type(back) is Tally
    assert back == tally
    assert codec.decode(codec.encode(slice(1, None))) == slice(1, None)
    assert codec.decode(codec.encode(Fraction(1, 3))) == Fraction(1, 3)


@pytest.mark.parametrize(
    "error",
    [InputError("no"), ReplyFolderError("full"), FileNotFoundError(2, "No such file"), KeyError("x"), ValueError()],
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    error.add_note("a note")
    back = codec.decode(codec.encode(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__notes__ == ["a note"]
    if isinstance(error, OSError):
        assert (back.errno, back.strerror) == (error.errno, error.strerror)


def test_errors_of_other_classes_are_named() -> None:
    assert str(codec.decode(codec.encode(tasks.Stubborn(1, 2)))) == "Stubborn: stubborn 1 2"
    missing = codec.decode(codec.encode(MissingExtraError("onnx", "onnx", "this")))
    assert "pip install 'quad4fhe[onnx]'" in str(missing)


@pytest.mark.parametrize("value", [print, object(), lambda: 0, sys, Path("x"), Counter("ab"), tasks.Stubborn])
def test_what_is_not_data_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="can't send"):
        codec.encode([value])


MARK = Path(tempfile.gettempdir()) / "quad4fhe-should-not-exist"


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARK}",)


HOSTILE = [
    pickle.dumps(Bomb()),
    b"",
    b"\xc1",
    msgspec.msgpack.encode(["object", "os", "system", ["id"]]),
    msgspec.msgpack.encode(["object", "quad4fhe.workers.local", "LocalWorkers", [1, 2]]),
    msgspec.msgpack.encode(["object", "quad4fhe.workers.codec", "sys", []]),
    msgspec.msgpack.encode(["object", "quad4fhe.folders.worker", "TaskResult", ["x"]]),
    msgspec.msgpack.encode(["object", "quad4fhe.not.imported", "TaskResult", []]),
    msgspec.msgpack.encode(["array", "|O", [1], "C", b"12345678"]),
    msgspec.msgpack.encode(["array", "<f8", [2**40], "C", b"12345678"]),
    msgspec.msgpack.encode(["array", "<f8", [-1], "C", b""]),
    msgspec.msgpack.encode(["array", "|V8", [1], "C", b"12345678"]),
    msgspec.msgpack.encode(["objects", [2**40], [1]]),
    msgspec.msgpack.encode(["fraction", 1, 0]),
    msgspec.msgpack.encode(["dict", ["list"], 1]),
    msgspec.msgpack.encode(["no such kind"]),
    msgspec.msgpack.encode([]),
    msgspec.msgpack.encode({"a": 1}),
    b"\x91" * 100_000,
    msgspec.msgpack.encode(["error", "builtins:print", ["x"], "x", []]),
    msgspec.msgpack.encode(["error", "os:system", ["id"], "id", []]),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_bytes_are_one_error_and_run_nothing(data: bytes) -> None:
    outcome = decoded(data)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WorkError)
    assert not MARK.exists()


def test_damaged_outcomes_are_errors_of_their_task() -> None:
    chance = random.Random(3)
    good = encoded(Answered((np.arange(5.0), {"a": [1, 2]}, TaskResult("x", 1, None), InputError("y"))))
    for _ in range(20_000):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert isinstance(
            decoded(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])), Answered | Failed
        )


def test_outcomes_come_back() -> None:
    back = decoded(encoded(Answered([1, "two"])))
    assert isinstance(back, Answered)
    assert back.value == [1, "two"]
    assert isinstance(decoded(codec.encode(["lost", "it ended", True])), Failed)  # only the driver may say this
    failed = decoded(encoded(Answered(lambda: 0)))
    assert isinstance(failed, Failed)
    assert "can't send a function" in str(failed.error)


def test_a_worker_that_answers_with_a_pickle_runs_nothing_in_the_driver(tmp_path: Path) -> None:
    """The attack itself: a compromised worker writes a pickle to the driver's pipe."""
    mark = tmp_path / "mark"
    with choose("local", 1).open(tasks.made) as pool:
        (done,) = pool.stream([("hijack", str(mark))])
    assert not mark.exists()
    assert done.error is not None


def test_no_module_that_reads_workers_can_unpickle() -> None:
    program = "from quad4fhe.workers import codec as c; print('pickle' in vars(c))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False"]
