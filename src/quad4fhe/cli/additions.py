"""Commands of other packages, which name them as entry points of the group `quad4fhe.commands`.

`quad4fhe-reproduce` in this repository is such a package. Where it is not installed, its command says how to add it;
where a package can't be loaded, its command says so and every other command works.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from quad4fhe._files import one_line
from quad4fhe.cli.app import JsonFlag, app
from quad4fhe.errors import InputError, MissingExtraError, Quad4FHEError

GROUP = "quad4fhe.commands"
_REPRODUCE = "quad4fhe-reproduce"


def _add(point: EntryPoint) -> None:
    try:
        command = point.load()
    except Exception as error:  # whatever a package raises while it is imported
        package = "its package" if point.dist is None else point.dist.name
        _refuse(point.name, InputError(f"{package} can't be loaded ({one_line(error)}); install it again"))
        return
    app.command(point.name)(command)


def _refuse(name: str, error: Quad4FHEError) -> None:
    """Register a command that takes any words and raises an error."""

    def command(context: typer.Context, json: JsonFlag = False) -> None:
        raise error

    command.__doc__ = f"Not available here: `quad4fhe {name}` says why.\n\nExample: quad4fhe {name}"
    anything: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, hidden=True, context_settings=anything)(command)


_found = entry_points(group=GROUP)
for _point in _found:
    _add(_point)
if "reproduce" not in _found.names:
    _refuse("reproduce", MissingExtraError(_REPRODUCE, "train", "quad4fhe reproduce", _REPRODUCE))
