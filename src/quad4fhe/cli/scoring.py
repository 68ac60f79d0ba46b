"""The command `score`, and `query` where the server is a folder: they parse, call the API and print."""

from __future__ import annotations

import contextlib
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe._files import shown
from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import FitFile, JsonFlag, app, at_work, print_json, print_table, say
from quad4fhe.cli.encrypted import csv_text

if TYPE_CHECKING:
    from quad4fhe import Plan
    from quad4fhe._arrays import Array
    from quad4fhe.he.keys import StoredKey
    from quad4fhe.he.predict import Prediction
    from quad4fhe.scoring.batches import Batch
    from quad4fhe.scoring.run import Problem, Score

_SHOWN = 20  # problems named on a terminal; --json and the folder name all


class EngineName(StrEnum):
    """Where workers run."""

    local = "local"
    ray = "ray"


class PayloadName(StrEnum):
    """Who reads and writes the files."""

    auto = "auto"
    files = "files"
    bytes = "bytes"


EngineOption = Annotated[
    EngineName, typer.Option(help="local: processes on this machine; ray: the cluster at RAY_ADDRESS, or one here.")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Worker processes; without it, one for each core (ray: each CPU).", min=1)
]


@app.command("score")
def score_command(
    fit_file: FitFile,
    requests: Annotated[Path, typer.Argument(metavar="IN", help="A folder of .request files.", show_default=False)],
    replies: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for .reply files.", show_default=False)],
    engine: EngineOption = EngineName.local,
    workers: WorkersOption = None,
    plan: Annotated[Path | None, typer.Option(help="The requests' plan; without it, plan.json in IN.")] = None,
    payload: Annotated[
        PayloadName,
        typer.Option(
            help="files: workers read IN and write OUT themselves; bytes: through this process, where they can't; "
            "auto: files where all workers are on this machine."
        ),
    ] = PayloadName.auto,
    json: JsonFlag = False,
) -> None:
    """Answer every encrypted request in IN by one reply in OUT; run again, it goes on where it ended.

    Damaged requests are named in OUT/quarantine and the rest goes on. No secret key is needed: requests are written,
    and replies read, by `query` with a folder as its URL.

    Example: quad4fhe score fit.safetensors batches replies --engine local

    Exit 1: some requests were damaged or failed; every other has its reply.
    """
    from quad4fhe import Fit, Plan, score

    given = None if plan is None else Plan.load(plan)
    with at_work() as progress:
        fitted = Fit.load(fit_file)
        found = score(
            fitted,
            requests,
            replies,
            engine=engine.value,
            workers=workers,
            plan=given,
            payload=payload.value,
            progress=progress,
        )
    if json:
        print_json(found.to_dict())
    else:
        _print_score(found, replies)
    if not found.complete:
        raise typer.Exit(1)


def _print_score(found: Score, replies: Path) -> None:
    from quad4fhe.circuit.forecast import readable_bytes, readable_seconds

    before = f", {found.answered_before} from runs before" if found.answered_before else ""
    lines = [("replies", f"{found.answered} now{before}, of {found.requests} requests")]
    if found.answered:
        rate = f"{found.per_second:.3g} requests/s of up to {found.per_request} samples"
        traffic = f"{readable_bytes(found.bytes_in)} in, {readable_bytes(found.bytes_out)} out"
        lines.append(("throughput", f"{rate}, {traffic} in {readable_seconds(found.seconds)}"))
    lost = f", {found.workers_lost} died and were replaced" if found.workers_lost else ""
    lines.append(("workers", f"{found.workers} ({found.engine}, payload {found.payload}){lost}"))
    if found.quarantined:
        lines.append(("quarantined", f"{len(found.quarantined)} damaged requests, see {replies / 'quarantine'}"))
    if found.failed:
        lines.append(("failed", f"{len(found.failed)} requests; run again to try them again"))
    print_table("score", lines)
    _name("quarantined", found.quarantined)
    _name("failed", found.failed)


def _name(what: str, problems: tuple[Problem, ...]) -> None:
    for problem in problems[:_SHOWN]:
        say(shown(f"{what}: {problem.file}: {problem.reason}"))
    if len(problems) > _SHOWN:
        say(f"and {len(problems) - _SHOWN} more; --json names them all")


def write_folder(folder: Path, data: Path, plan: Path, key: StoredKey, *, clip: bool, json: bool) -> None:
    """`query FOLDER DATA --plan`: encrypt into files that `score` answers elsewhere."""
    from quad4fhe import Plan, read_samples
    from quad4fhe.circuit.forecast import readable_bytes
    from quad4fhe.scoring.batches import write_requests

    with Reporter() as progress:
        X, _ = read_samples(data, "test")
        made = Plan.load(plan)
        found = write_requests(made, key, X, folder, clip=clip, progress=progress)
    if json:
        print_json({**vars(found), "index": str(found.index), "folder": str(folder), "model": made.model_id})
        return
    before = f", {found.before} of them from before" if found.before else ""
    lines = [("requests", f"{found.requests} files in {folder}{before}; {readable_bytes(found.request_bytes)} now")]
    if found.key_bytes:
        lines.append(("keys", f"{readable_bytes(found.key_bytes)} of evaluation keys, in the folder"))
    if found.clipped:
        lines.append(("clipped", f"{found.clipped} samples lay outside the box and were moved to its edge"))
    lines.append(("index", f"{found.index}: stays here, with the key"))
    print_table("encrypted", lines)
    say(f"Have the folder answered: quad4fhe score FIT {folder} REPLIES")
    say(f"Then read the answers:    quad4fhe query {folder} {data} --key KEY --replies REPLIES -o out.csv")


def read_folder(folder: Path, data: Path, replies: Path, key: StoredKey, *, out: Path | None, json: bool) -> None:
    """`query FOLDER DATA --replies`: decrypt what `score` answered; exit code 1 where a reply is missing."""
    import numpy as np

    from quad4fhe import read_samples
    from quad4fhe.mlp import decide
    from quad4fhe.scoring.batches import read_replies
    from quad4fhe.scoring.files import appearing
    from quad4fhe.scoring.run import Problem

    counts: Counter[int] = Counter()
    problems: list[Problem] = []
    kept: dict[str, list[Any]] = {"decisions": [], "logits": []}
    with Reporter() as progress, contextlib.ExitStack() as stack:
        X, _ = read_samples(data, "test")
        file = None if out is None else stack.enter_context(appearing(out))
        for batch in read_replies(key, X, folder, replies, progress=progress):
            decisions = None if batch.logits is None else decide(batch.logits)
            if decisions is None:
                problems.append(Problem(batch.file, batch.reason))
            else:
                counts.update(decisions.tolist())
            if file is not None:
                if file.tell() == 0:
                    file.write(csv_text(_prediction(np.empty((0, batch.outputs)), key.plan)).encode())
                file.write(_rows(batch, key.plan).encode())
            elif json:
                missing = [None] * (batch.rows.stop - batch.rows.start)
                kept["decisions"] += missing if decisions is None else decisions.tolist()
                kept["logits"] += missing if batch.logits is None else batch.logits.tolist()
                if key.plan.reliable is not None:
                    found = None if batch.logits is None else key.plan.is_reliable(batch.logits)
                    kept.setdefault("reliable", []).extend(missing if found is None else found.tolist())
    if json:
        document: dict[str, Any] = {"samples": len(X), "answered": counts.total()}
        document["missing"] = [vars(problem) for problem in problems]
        print_json(document | ({"out": str(out)} if out is not None else kept))
    else:
        shown = ", ".join(f"class {c}: {n}" for c, n in sorted(counts.items()))
        print_table("answers", [("decisions", f"{counts.total()} of {len(X)} samples; {shown or 'none'}")])
        _name("missing", tuple(problems))
        if out is not None:
            say(f"Decisions and logits are in {out}{', empty where a reply is missing' if problems else ''}.")
    if problems:
        raise typer.Exit(1)


def _prediction(logits: Array, plan: Plan) -> Prediction:
    from quad4fhe.he.predict import Prediction
    from quad4fhe.mlp import decide

    return Prediction(decide(logits), logits, reliable=plan.is_reliable(logits))


def _rows(batch: Batch, plan: Plan) -> str:
    """Lines of CSV, one a sample, with empty cells where there is no reply, so that every row keeps its place."""
    if batch.logits is None:
        count: int = batch.rows.stop - batch.rows.start
        return ("," * (batch.outputs + (plan.reliable is not None)) + "\n") * count
    return csv_text(_prediction(batch.logits, plan)).partition("\n")[2]
