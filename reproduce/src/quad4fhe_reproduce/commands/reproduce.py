"""`quad4fhe reproduce`: the paper's experiments beside the published figures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from quad4fhe.cli.options import JsonFlag, PoolOption
from quad4fhe.cli.terminal import at_work, print_json, say
from quad4fhe.errors import FitError

_DATA = Path(os.environ.get("QUAD4FHE_DATA", "data"))


def reproduce_command(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="mlp, binary, diagnostics, smallpool, frozen, widths, families, encrypted, ckks, seeds, classes, "
            "margins; all of them by default.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of data sets; $QUAD4FHE_DATA by default.")
    ] = _DATA,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where to write runs, RESULTS.md and pictures.")
    ] = Path("results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a trial on the two small data sets, in a minute or two.")
    ] = False,
    pool: PoolOption = None,
    workers: Annotated[int, typer.Option(help="Number of processes, one thread each.", min=1)] = 2,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch data sets that are missing from their public source.")
    ] = False,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out data sets whose file is missing.")
    ] = False,
    render: Annotated[bool, typer.Option("--render", help="Only write RESULTS.md again, from finished runs.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run the paper's experiments beside the published figures.

    Run it again to continue an interrupted run.

    Example: quad4fhe reproduce --quick --data DATA --out results
    quad4fhe reproduce mlp binary --data DATA --out results

    Exit 1: some runs failed; finished runs are kept, and the tables are written from them
    """
    import msgspec

    from quad4fhe_reproduce.figures import require_matplotlib
    from quad4fhe_reproduce.results import write_results
    from quad4fhe_reproduce.runner import Reproduced, obtain, reproduce
    from quad4fhe_reproduce.schedule import tasks

    require_matplotlib()
    wanted = tasks(tables or (), quick=quick)
    done, left_out = Reproduced(0, 0, ()), list[str]()
    with at_work() as progress:
        if not render:
            wanted, left_out = obtain(wanted, data, download=download, skip_missing=skip_missing, progress=progress)
            done = reproduce(wanted, data, out, workers=workers, pool=pool, progress=progress)
        progress("writing tables and pictures", 0, 0)
        written = write_results(out)
    if json:
        print_json({**msgspec.to_builtins(done), "left_out": left_out, "results": str(written)})
        raise typer.Exit(1 if done.failed else 0)
    for each in left_out:
        say(f"Left out: {each}.")
    say(f"{done.done} runs done, {done.found} found finished. Tables and pictures: {written}")
    if done.failed:
        raise FitError(f"{len(done.failed)} runs failed (see {out / 'failed'}); the first: {done.failed[0]}")
