"""`quad4fhe score`: answer encrypted requests in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import FitFile, JsonFlag, PoolOption, WorkersOption, choice
from quad4fhe.cli.terminal import at_work, count, name_problems, print_json, print_table
from quad4fhe.workers.registry import DEFAULT

if TYPE_CHECKING:
    from quad4fhe.folders.run import Score

_PAYLOADS = ("auto", "files", "bytes")


@app.command("score")
def score_command(
    fit_file: FitFile,
    requests: Annotated[Path, typer.Argument(metavar="IN", help="A folder of .request files.", show_default=False)],
    replies: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for .reply files.", show_default=False)],
    pool: PoolOption = DEFAULT,
    workers: WorkersOption = None,
    plan: Annotated[Path | None, typer.Option(help="The plan of the requests; by default plan.json in IN.")] = None,
    payload: Annotated[
        str,
        choice(
            _PAYLOADS,
            "files: workers read IN and write OUT; bytes: this process does, for workers that can't; "
            "auto: files if all workers are on this machine.",
        ),
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """Answer every encrypted request in a folder.

    Writes one reply in OUT for each request in IN. Run it again to continue an interrupted run. Damaged requests are
    listed in OUT/quarantine, and the others are answered. No secret key is needed: `query` with a folder as its URL
    writes the requests and reads the replies.

    Example: quad4fhe score fit.safetensors batches replies

    Exit 1: some requests were damaged or failed; all others have a reply
    """
    from quad4fhe import Fit, Plan, score

    given = None if plan is None else Plan.load(plan)
    names: dict[str, Any] = {"pool": pool or DEFAULT, "payload": payload}
    with at_work() as progress:
        fitted = Fit.load(fit_file)
        found = score(fitted, requests, replies, workers=workers, plan=given, progress=progress, **names)
    if json:
        print_json(found.to_dict())
    else:
        _show(found, replies)
    if not found.complete:
        raise typer.Exit(1)


def _show(found: Score, replies: Path) -> None:
    from quad4fhe.planning.costs import readable_bytes, readable_seconds

    before = f", {found.answered_before} from earlier runs" if found.answered_before else ""
    lines = [("replies", f"{found.answered} now{before}, of {count(found.requests, 'request')}")]
    if found.answered:
        rate = f"{found.per_second:.3g} requests/s of up to {count(found.per_request, 'sample')}"
        traffic = f"{readable_bytes(found.bytes_in)} in, {readable_bytes(found.bytes_out)} out"
        lines.append(("throughput", f"{rate}, {traffic} in {readable_seconds(found.seconds)}"))
    lost = f", {found.workers_lost} died and were replaced" if found.workers_lost else ""
    lines.append(("workers", f"{found.workers} ({found.pool}, payload {found.payload}){lost}"))
    if found.quarantined:
        damaged = count(len(found.quarantined), "damaged request")
        lines.append(("quarantined", f"{damaged}, see {replies / 'quarantine'}"))
    if found.failed:
        lines.append(("failed", f"{count(len(found.failed), 'request')}; run again to retry"))
    print_table("score", lines)
    name_problems("quarantined", found.quarantined)
    name_problems("failed", found.failed)
