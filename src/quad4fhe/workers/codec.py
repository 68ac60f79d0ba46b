"""The outcomes of tasks, as bytes that hold data and nothing else.

A worker computes on clients' ciphertexts, so the driver never unpickles what it sends. A worker may send numbers, text,
bytes, arrays, tuples, lists, dictionaries, and those dataclasses and exceptions of this package that the driver has
imported. The driver fills them field by field and runs no constructor.
"""

from __future__ import annotations

import builtins
import dataclasses
import math
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from quad4fhe.errors import Quad4FHEError
from quad4fhe.io.files import one_line

_PACKAGE = "quad4fhe"
_KINDS = "biufcSU"  # of NumPy dtypes; never objects
_DEEPEST = 100


class WorkError(Quad4FHEError):
    """Stands for an error that can't be sent between processes; it has the name and message of the original."""


@dataclass(frozen=True, eq=False)
class Answered:
    """The task returned this value."""

    value: Any


@dataclass(frozen=True, eq=False)
class Failed:
    """The task raised this error."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """The worker ended before it answered; `idle` if it ended before it got the task."""

    why: str
    idle: bool = False


Outcome = Answered | Failed | Lost


def traced(error: Exception) -> Exception:
    """Add the worker's traceback to an error, as a note."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    return error


def encoded(outcome: Answered | Failed) -> bytes:
    """Encode an outcome in a worker; a value that can't be sent is an error of its task."""
    if isinstance(outcome, Answered):
        try:
            return encode(["answered", outcome.value])
        except Exception as error:  # reading the attributes of a class can raise anything
            outcome = Failed(traced(error))
    return encode(["failed", outcome.error])


def decoded(data: bytes) -> Answered | Failed:
    """Decode what a worker sent; anything other than an outcome is an error of its task."""
    try:
        match decode(data):
            case ["answered", value]:
                return Answered(value)
            case ["failed", Exception() as error]:
                return Failed(error)
    except WorkError as error:
        return Failed(error)
    return Failed(WorkError("a worker sent something that is not the outcome of a task"))


def encode(value: Any) -> bytes:
    """Encode a value; raises TypeError if it holds anything but data."""
    return msgspec.msgpack.encode(_packed(value, _DEEPEST))


def decode(data: bytes) -> Any:
    """Decode what `encode` made; raises WorkError on anything else."""
    try:
        return _value(msgspec.msgpack.decode(data), _DEEPEST)
    except Exception as error:  # bytes of a hostile worker can raise anything
        raise WorkError(f"a worker sent bytes that can't be read: {one_line(error)}") from None


def error_fields(error: Exception) -> list[Any]:
    """Return an exception as plain data: class, arguments, message and notes."""
    name = f"{type(error).__module__}:{type(error).__qualname__}"
    args = [arg for arg in error.args if arg is None or isinstance(arg, str | int)]
    return [name, args, str(error), [str(note) for note in getattr(error, "__notes__", [])]]


def _rebuilt(name: Any, args: Any, message: Any, notes: Any) -> Exception:
    """Return the error itself if its class is known here and gives the same message; otherwise a WorkError."""
    module, _, kind = str(name).partition(":")
    found = getattr(builtins, kind, None) if module == "builtins" else _class(module, kind)
    base = Exception if module == "builtins" else Quad4FHEError
    error: Exception = WorkError(f"{kind}: {one_line(WorkError(message))}")
    if isinstance(found, type) and issubclass(found, base):
        made = found.__new__(found, *args)
        if module == "builtins" and isinstance(made, OSError):
            made = OSError(*args)
        if str(made) == message:
            error = made
    for note in notes:
        error.add_note(str(note))
    return error


def _class(module: str, name: str) -> Any:
    """Return a class of this package that this process has imported already, or None."""
    if module != _PACKAGE and not module.startswith(f"{_PACKAGE}."):
        return None
    return getattr(sys.modules.get(module), name, None)


def _packed(value: Any, deep: int) -> Any:
    """Return plain types unchanged, and every other one, lists too, as a list that begins with its kind."""
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes) or (kind is int and -(2**63) <= value < 2**63):
        return value
    if deep == 0:
        raise TypeError("a result is nested too deeply to be sent")
    if (pack := _PACKERS.get(kind)) is not None:
        return pack(value, deep - 1)
    if isinstance(value, np.ndarray):  # including memory maps
        return _pack_array(np.asarray(value), deep - 1)
    if isinstance(value, np.generic):
        return ["scalar", *_pack_array(np.asarray(value), deep - 1)[1:]]
    if isinstance(value, Exception):
        return ["error", *error_fields(value)]
    fields = _fields(kind)
    if fields is None or _class(kind.__module__, kind.__qualname__) is not kind:
        raise TypeError(f"a worker can't send a {kind.__name__}; return numbers, text, bytes, arrays or tuples")
    return ["object", kind.__module__, kind.__qualname__, [_packed(getattr(value, f), deep - 1) for f in fields]]


def _fields(kind: type) -> list[str] | None:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind._fields) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def _pack_array(array: np.ndarray[Any, Any], deep: int) -> list[Any]:
    if array.dtype.kind == "O":
        return ["objects", list(array.shape), [_packed(each, deep) for each in array.ravel().tolist()]]
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"a worker can't send an array of {array.dtype}; return numbers or text")
    # Keep the memory order: the last bits of sums over an array depend on it.
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return ["array", array.dtype.str, list(array.shape), order, array.tobytes(order)]  # type: ignore[arg-type]


def _pack_all(kind: str) -> Callable[[Iterable[Any], int], list[Any]]:
    return lambda values, deep: [kind, *(_packed(each, deep) for each in values)]


_PACKERS: dict[type, Callable[[Any, int], Any]] = {
    int: lambda value, deep: ["int", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)],
    list: _pack_all("list"),
    tuple: _pack_all("tuple"),
    set: _pack_all("set"),
    frozenset: _pack_all("frozenset"),
    dict: lambda value, deep: ["dict", *(_packed(each, deep) for pair in value.items() for each in pair)],
    Fraction: lambda value, deep: ["fraction", _packed(value.numerator, deep), _packed(value.denominator, deep)],
    slice: lambda value, deep: ["slice", *(_packed(each, deep) for each in (value.start, value.stop, value.step))],
}


def _value(packed: Any, deep: int) -> Any:
    if not isinstance(packed, list):
        if packed is None or isinstance(packed, bool | int | float | str | bytes):
            return packed
        raise TypeError(f"a {type(packed).__name__} where a value was expected")
    if deep == 0:
        raise TypeError("nested too deeply")
    kind, *parts = packed
    return _READERS[kind](parts, deep - 1)


def _values(parts: list[Any], deep: int) -> list[Any]:
    return [_value(part, deep) for part in parts]


def _array(parts: list[Any], deep: int) -> np.ndarray[Any, Any]:
    name, shape, order, data = parts
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS or dtype.itemsize == 0 or len(data) != math.prod(shape) * dtype.itemsize:
        raise TypeError("an array whose type, shape and bytes do not agree")
    return np.frombuffer(bytearray(data), dtype=dtype).reshape(shape, order=order)


def _objects(parts: list[Any], deep: int) -> np.ndarray[Any, Any]:
    shape, values = parts
    if len(values) != math.prod(shape):
        raise TypeError("an array whose shape and number of entries do not agree")
    out = np.empty(len(values), dtype=object)
    out[:] = _values(values, deep)
    return out.reshape(shape)


def _object(parts: list[Any], deep: int) -> Any:
    module, name, values = parts
    kind = _class(str(module), str(name))
    fields = _fields(kind) if isinstance(kind, type) else None
    if kind is None or fields is None or len(fields) != len(values):
        raise TypeError("an object whose class is not a dataclass or named tuple of this package")
    found = _values(values, deep)
    if issubclass(kind, tuple):
        return tuple.__new__(kind, found)
    out = object.__new__(kind)
    for field, each in zip(fields, found, strict=True):
        object.__setattr__(out, field, each)  # also for frozen dataclasses
    return out


def _pairs(parts: list[Any], deep: int) -> dict[Any, Any]:
    values = _values(parts, deep)
    return dict(zip(values[::2], values[1::2], strict=True))


_READERS: dict[str, Callable[[list[Any], int], Any]] = {
    "int": lambda parts, deep: int.from_bytes(parts[0], "little", signed=True),
    "list": _values,
    "tuple": lambda parts, deep: tuple(_values(parts, deep)),
    "set": lambda parts, deep: set(_values(parts, deep)),
    "frozenset": lambda parts, deep: frozenset(_values(parts, deep)),
    "dict": _pairs,
    "fraction": lambda parts, deep: Fraction(*_values(parts, deep)),
    "slice": lambda parts, deep: slice(*_values(parts, deep)),
    "array": _array,
    "scalar": lambda parts, deep: _array(parts, deep)[()],
    "objects": _objects,
    "object": _object,
    "error": lambda parts, deep: _rebuilt(*parts),
}
