"""The command that reproduces the paper's tables. It parses, calls the API and prints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import JsonFlag, app, print_json, say
from quad4fhe.errors import FitError

_DATA = Path(os.environ.get("QUAD4FHE_DATA", "../shared/data"))


@app.command("reproduce")
def reproduce_command(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Which tables; all of them by default.")
    ] = None,
    data: Annotated[Path, typer.Option(help="The folder of data sets (default: $QUAD4FHE_DATA).")] = _DATA,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs and results are written.")] = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="A trial on the small sets, in a minute or two.")] = False,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.", min=1)] = 2,
    json: JsonFlag = False,
) -> None:
    """Run the paper's experiments beside the published figures; an interrupted command goes on where it stopped."""
    from quad4fhe.experiments.runner import reproduce
    from quad4fhe.experiments.schedule import tasks

    wanted = tasks(tables or (), quick=quick)
    with Reporter() as progress:
        done = reproduce(wanted, data, out, workers=workers, progress=progress)
    if json:
        print_json({**msgspec.to_builtins(done), "out": str(out)})
        raise typer.Exit(1 if done.failed else 0)
    say(f"{done.done} runs done, {done.found} found finished, in {out}.")
    if done.failed:
        raise FitError(f"{len(done.failed)} runs failed (see {out / 'failed'}); the first: {done.failed[0]}")
