"""Read a trained model from a file or a framework into an `MLP`.

A format is one file of this package and one line of `IMPORTERS`; other packages add formats by the entry-point group
`quad4fhe.importers`. No importer runs code of a model file: no pickle, no graph execution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from quad4fhe._registry import Registry
from quad4fhe.errors import InputError
from quad4fhe.io.formats import format_of
from quad4fhe.mlp import MLP


@dataclass(frozen=True)
class Importer:
    """One source of trained models.

    Parameters
    ----------
    words
        What it reads, for messages: "an ONNX graph".
    suffixes
        Suffixes of the files that `read_file` takes.
    packages
        Top-level packages of the objects that `read_object` takes; only their names are compared.
    extra
        The extra of quad4fhe that it needs, if any.
    read_file
        Reads a file; raises InputError if it holds no model that quad4fhe supports.
    read_object
        Converts an object of the framework.
    options
        The options of `load` that both take as keywords: "activation", "binary", "split", "example".
    """

    words: str
    suffixes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    extra: str | None = None
    read_file: Callable[..., MLP] | None = None
    read_object: Callable[..., MLP] | None = None
    options: tuple[str, ...] = ()


IMPORTERS: Registry[Importer] = Registry(
    "importer",
    {
        "arrays": "quad4fhe.importers.arrays:IMPORTER",
        "onnx": "quad4fhe.importers.onnx:IMPORTER",
        "torch": "quad4fhe.importers.torch:IMPORTER",
        "sklearn": "quad4fhe.importers.sklearn:IMPORTER",
    },
)


_OPTIONS = {"activation": None, "binary": False, "split": "auto", "example": None}
_CONVERT = "import joblib, quad4fhe; quad4fhe.MLP.from_sklearn(joblib.load({!r})).save({!r})"
_PICKLES = (".joblib", ".pkl", ".pickle")


def load(source: str | Path | Any, **options: Any) -> MLP:
    """Read a model file in the format of its suffix, or convert an object of a framework; see `MLP.load`."""
    given = {name: value for name, value in options.items() if value is not None and value != _OPTIONS[name]}
    if not isinstance(source, str | Path):
        return _converted(source, given)
    if Path(source).suffix.lower() in _PICKLES:
        raise InputError(
            f"{source}: a pickle can run any code when it is opened, so it is never read. If you trust it, convert "
            f"it: python -c {_quoted(_CONVERT.format(str(source), str(Path(source).with_suffix('.safetensors'))))}"
        )
    found = format_of(source, IMPORTERS, "a model file", "save or export the model as one of these")
    assert found.read_file is not None, "an importer with suffixes reads files"
    return found.read_file(source, **_accepted(found, given))


def _quoted(program: str) -> str:
    """A program as one word of a shell; in double quotes if possible, because it contains single quotes."""
    return quote(program) if set(program) & set('"$`\\!') else f'"{program}"'


def _accepted(entry: Importer, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; raises InputError for one that the importer does not take."""
    for name in given:
        if name not in entry.options:
            hint = ", ".join(f"--{each}" for each in entry.options if each != "example") or "none"
            raise InputError(f"--{name} does not apply to {entry.words}; leave it out (it takes {hint})")
    return given


def _converted(source: Any, given: dict[str, Any]) -> MLP:
    packages = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    for entry in IMPORTERS:
        if entry.read_object is not None and packages & set(entry.packages):
            return entry.read_object(source, **_accepted(entry, given))
    wanted = ", ".join(entry.words for entry in IMPORTERS)
    raise InputError(f"the model is a {type(source).__name__}, wanted a path or one of: {wanted}; export it to ONNX")
