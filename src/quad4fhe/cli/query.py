"""`quad4fhe query`: encrypt here, have a server (or `score`, for requests in a folder) compute, decrypt here."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    Box,
    BoxOption,
    CaOption,
    ClipFlag,
    DataFile,
    JsonFlag,
    LabelOption,
    LayoutChoice,
    ModelOption,
    TokenOption,
    TrustFlag,
    WidenOption,
    connect,
    named_columns,
)
from quad4fhe.cli.predict import csv_columns, csv_text
from quad4fhe.cli.terminal import at_work, count, name_problems, print_json, print_table, say
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place, write_atomically, writing

if TYPE_CHECKING:
    from quad4fhe import Plan
    from quad4fhe._arrays import Array
    from quad4fhe.feature_part import FeaturePart
    from quad4fhe.folders.batches import Batch
    from quad4fhe.he.predict import Prediction
    from quad4fhe.serve.client import Answers

_SERVERS = ("http://", "https://")
_BILL = ("requests", "upload_bytes", "download_bytes", "clipped", "canaries", "seconds")


@app.command("query")
def query_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The server, such as https://host:port; or a folder of requests.", show_default=False
        ),
    ],
    data: DataFile,
    label_column: LabelOption = None,
    model: ModelOption = None,
    layout: LayoutChoice = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
    box: BoxOption = None,
    widen: WidenOption = None,
    clip: ClipFlag = False,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for one message, repeated attempts included.")
    ] = 120.0,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Accept only this plan; if URL is a folder, write encrypted requests there."),
    ] = None,
    replies: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="If URL is a folder of requests: read their replies from this folder."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight at the same time.", min=1)] = 2,
    canaries: Annotated[
        int,
        typer.Option(help="Hide this many samples of --known in each request (layout batch) and check them.", min=0),
    ] = 0,
    known: Annotated[
        Path | None,
        typer.Option(help="Calibration samples with logits (`predict FIT CALIB -o known.npz`), for --canaries."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model's feature part (`export --features`); else the server's is used."),
    ] = None,
    trust: TrustFlag = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write decisions and logits as CSV.")] = None,
    json: JsonFlag = False,
) -> None:
    """Encrypt DATA, have a server classify it, and decrypt the result.

    Never send the decrypted logits back to the server; SECURITY.md explains why. --plan pins the plan (see `quad4fhe
    models --save-plan`): samples outside its box are rejected before anything is sent. Without it the plan comes from
    the server, and all samples are sent before those outside the box are reported. --box FILE is a box of your own,
    which the samples must lie in as well. --canaries detects a server that computes something else.

    If the model has a feature part, DATA holds raw inputs. The part comes from --features or from the server, its hash
    must be the one in the plan, and it runs here, without access to files: only its features are encrypted and sent.
    Without --plan and --features the server alone vouches for it, which needs --trust.

    Without a server: write requests to a folder (--plan), answer them with `score`, and read the replies (--replies).
    The file FOLDER.index beside the folder holds what reads the replies: keep it as you keep the samples.

    Example: quad4fhe query http://127.0.0.1:8443 test.npz -o decisions.csv
    quad4fhe query https://host:8443 test.npz --plan plan.json --token-file token
    quad4fhe query https://host test.npz --plan p.json --canaries 9 --known k.npz
    quad4fhe query batches test.npz --plan plan.json
    quad4fhe query batches test.npz --replies replies

    Exit 1: with --replies: some requests have no reply yet, or a damaged one
    """
    import numpy as np

    from quad4fhe import Plan
    from quad4fhe.feature_part import FeaturePart
    from quad4fhe.he.canaries import Known
    from quad4fhe.planning.box import moved

    _check_places(url, data)
    if out is not None:
        check_place(out)
    choice = Box(box, widen, clip)
    folder = replies is not None or (plan_file is not None and not url.startswith(_SERVERS))
    if folder:
        _check_folder(url, plan_file, replies, box=choice, out=out, canaries=bool(canaries or known))
    elif Path(url).is_dir():
        raise InputError(f"{url} is a folder: add --plan to write requests there, or --replies to read the answers")
    part = None if features is None else FeaturePart.load(features)
    read = Reader(data, label_column, part)
    if replies is not None:
        read_folder(Path(url), read, replies, out=out, json=json)
        return
    pinned = None if plan_file is None else Plan.load(plan_file)
    if folder:
        assert pinned is not None
        write_folder(Path(url), read, pinned, box=choice, json=json)
        return
    # The server must not hear of samples that are unusable; only columns with names, and raw inputs whose feature part
    # the server has, may need its plan to be read.
    asked = read.early(pinned, url, trust=trust)
    if asked is not None and pinned is not None and asked.shape[1] != pinned.shape.features:
        raise InputError(
            f"{data} has {asked.shape[1]} columns, but the plan {plan_file} is for model {pinned.model_id[:12]}, which "
            f"takes {pinned.shape.features} features; give samples of that model, or another plan"
        )
    X = None if asked is None else choice.held(asked, None if pinned is None else pinned.names)
    pairs = None if known is None else Known.load(known)
    options: dict[str, Any] = {"model": model, "layout": layout, "token_file": token_file, "ca": ca}
    options |= {"plan": pinned, "patience": patience, "features": part}
    with at_work() as progress, connect(url, trust=trust, **options) as remote:
        plan, trusted = remote.plan, remote.pinned
        if asked is None or X is None:
            asked = replace(read, part=remote.feature_part).samples(plan)
            X = choice.held(asked, plan.names)
        elif remote.feature_part is not None:  # numbers in rows, which may be raw inputs as well
            X = asked = remote.feature_part(X)
        with _access_named(given_options({"--token-file": token_file, "--ca": ca})):
            how: dict[str, Any] = {"clip": clip, "known": pairs, "canaries": canaries, "concurrency": concurrency}
            found = remote.predict(X, progress=progress, **how)
        plan = remote.plan  # of the layout for so many rows
    found = replace(found, clipped=moved(asked, np.clip(X, *plan.domain.box)))
    if out is not None:
        write_atomically(out, csv_text(_prediction(found, plan)).encode())
    if json:
        document = {"model": plan.model_id, "layout": plan.layout, "plan": plan.sha256.hex(), "pinned": trusted}
        document |= {name: getattr(found, name) for name in _BILL}
        print_json(
            document | {name: value for name, value in _prediction(found, plan).to_dict().items() if name != "bill"}
        )
        return
    print_table("answers", _lines(found, plan))
    if not trusted:
        words = given_options({"--layout": plan.layout, "--token-file": token_file, "--ca": ca, "--model": model})
        say(f"To accept only this plan from now on: quad4fhe models {url} --save-plan plan.json{words}")
        say("then add --plan plan.json to this query.")
    if out is not None:
        say(f"Decisions and logits are in {out}.")


def given_options(options: Mapping[str, object]) -> str:
    """Options with a value, as they are typed."""
    return "".join(f" {name} {quote(str(value))}" for name, value in options.items() if value is not None)


def _check_places(url: str, data: Path) -> None:
    """Raise InputError if URL and DATA are swapped."""
    if not url.startswith(_SERVERS) and str(data).startswith(("http:", "https:")):  # a Path has lost one slash
        swapped = f"quad4fhe query {str(data).replace(':/', '://', 1)} {quote(url)}"
        raise InputError(f"the server comes first, then the data: {swapped}")


@contextlib.contextmanager
def _access_named(access: str) -> Iterator[None]:
    """Append the options of this query to a command in an error message, so that it can be pasted."""
    from quad4fhe.serve.http import ServiceError, UnknownPlanError

    try:
        yield
    except UnknownPlanError as error:
        raise ServiceError(f"{error}{access if error.command else ''}") from None


@dataclass(frozen=True)
class Reader:
    """How DATA is read: the column of its labels, and the feature part, if it is known."""

    data: Path
    label: str | None
    part: FeaturePart | None

    def early(self, agreed: Plan | None, url: str, *, trust: bool) -> Array | None:
        """The samples, if they can be read before the server is asked; else None."""
        from quad4fhe.io.samples import read_feature_names

        if agreed is not None:
            return self.samples(agreed) if agreed.feature_part is None or self.part is not None else None
        if trust or self.part is not None or read_feature_names(self.data, self.label) is not None:
            return None
        try:
            return self.samples(None)
        except InputError as error:
            raise InputError(
                f"{error}. If the model takes raw inputs, pin its plan first: "
                f"quad4fhe models {url} --save-plan plan.json, then add --plan plan.json"
            ) from None

    def samples(self, plan: Plan | None) -> Array:
        """The samples, with their columns in the order of the plan's names; features where the plan names a part."""
        from quad4fhe import read_samples
        from quad4fhe._arrays import tensor
        from quad4fhe.raw import samples_through

        named = named_columns(None if plan is None else plan.names, self.label)
        if plan is None or plan.feature_part is None:
            return tensor("X", read_samples(self.data, "test", named)[0], 2)
        if self.part is None:
            raise InputError(
                "the plan's model has a feature part, which is not here; write it with: "
                "quad4fhe export FIT --features part.onnx, and add --features part.onnx"
            )
        if self.part.sha256 != plan.feature_part:
            raise InputError(
                f"the feature part has SHA-256 {self.part.sha256[:16]}..., the plan names another: not used"
            )
        return samples_through(self.part, self.data, "test", named)[0]


def _prediction(found: Answers, plan: Plan) -> Prediction:
    from quad4fhe.he.predict import Prediction

    names = plan.names
    return Prediction(found.decisions, found.logits, reliable=found.reliable, names=names)


def _lines(found: Answers, plan: Plan) -> list[tuple[str, str]]:
    """The answers and their cost in words."""
    from quad4fhe.he.predict import reliable_line
    from quad4fhe.planning.costs import readable_bytes, readable_seconds

    lines = [_prediction(found, plan).summary()[0], ("model", plan.model_id)]
    lines += [] if found.reliable is None else [reliable_line(found.reliable)]
    lines.append(("how", f"encrypted with CKKS, layout {plan.layout}, ring N = {plan.chain.ring}"))
    if found.clipped:
        outside = count(found.clipped, "sample")
        lines.append(("clipped", f"{outside} outside the box: decided at its edge, not as given"))
    if found.canaries:
        lines.append(("canaries", f"{found.canaries} in each request, all with the known logits"))
    traffic = f"{readable_bytes(found.upload_bytes)} up, {readable_bytes(found.download_bytes)} down"
    lines.append(("traffic", f"{traffic} in {count(found.requests, 'request')}"))
    return [*lines, ("time", readable_seconds(found.seconds))]


# --- requests in a folder ---------------------------------------------------------------------------------------


def _check_folder(
    url: str, plan: Path | None, replies: Path | None, *, box: Box, out: Path | None, canaries: bool
) -> None:
    """Reject options that do not belong to requests in a folder."""
    if canaries:
        raise InputError("--canaries and --known are for a server; leave them out for requests in a folder")
    if url.startswith(_SERVERS):
        raise InputError("--replies is for requests in a folder; leave it out for a server")
    if replies is not None and (plan is not None or box):
        raise InputError("--plan, --box, --widen and --clip belong to writing requests; leave them out with --replies")
    if box.file is not None and box.clip:
        raise InputError("--clip moves samples to the edge of the plan's box here; leave --box out, or --clip")
    if replies is None and out is not None:
        raise InputError("--out belongs to reading --replies; there are no answers yet when requests are written")


def write_folder(folder: Path, read: Reader, plan: Plan, *, box: Box, json: bool) -> None:
    """`query FOLDER DATA --plan`: encrypt into files that `score` answers elsewhere."""
    from quad4fhe.folders.batches import write_requests
    from quad4fhe.planning.costs import readable_bytes

    with at_work() as progress:
        X = read.samples(plan)
        found = write_requests(plan, box.held(X, plan.names), folder, clip=box.clip, progress=progress)
    if json:
        print_json({**vars(found), "index": str(found.index), "folder": str(folder), "model": plan.model_id})
        return
    before = f", {found.before} of them from an earlier run" if found.before else ""
    written = f"{count(found.requests, 'file')} in {folder}{before}; {readable_bytes(found.request_bytes)} now"
    lines = [("requests", written)]
    if found.clipped:
        lines.append(("clipped", f"{count(found.clipped, 'sample')} outside the box: moved to its edge"))
    lines.append(("index", f"{found.index}: stays here; who has it reads the requests"))
    print_table("encrypted", lines)
    say(f"Answer the requests with: quad4fhe score FIT {folder} REPLIES")
    say(f"Then read the answers:    quad4fhe query {folder} {read.data} --replies REPLIES -o out.csv")


def read_folder(folder: Path, read: Reader, replies: Path, *, out: Path | None, json: bool) -> None:
    """`query FOLDER DATA --replies`: decrypt what `score` answered; exit code 1 if a reply is missing."""
    from quad4fhe.folders.batches import index_plan, read_replies
    from quad4fhe.folders.run import Problem
    from quad4fhe.mlp import decide

    counts: Counter[int] = Counter()
    problems: list[Problem] = []
    plan = index_plan(folder)
    kept: dict[str, list[Any]] = {"decisions": [], "logits": []}
    with at_work() as progress, contextlib.ExitStack() as stack:
        X = read.samples(plan)
        file = None if out is None else stack.enter_context(writing(out))
        for batch in read_replies(X, folder, replies, progress=progress):
            if batch.logits is None:
                problems.append(Problem(batch.file, batch.reason))
            else:
                counts.update(decide(batch.logits).tolist())
            if file is not None:
                file.write(_csv_rows(batch, plan, X, head=file.tell() == 0).encode())
            elif json:
                _keep(kept, batch, plan, X)
    if json:
        document: dict[str, Any] = {"samples": len(X), "answered": counts.total()}
        document["missing"] = [vars(problem) for problem in problems]
        print_json(document | ({"out": str(out)} if out is not None else kept))
    else:
        names = plan.names
        shown = ", ".join(f"{names.decided(c)}: {n}" for c, n in sorted(counts.items()))
        print_table("answers", [("decisions", f"{counts.total()} of {count(len(X), 'sample')}; {shown or 'none'}")])
        name_problems("missing", problems)
        if out is not None:
            say(f"Decisions and logits are in {out}{', empty where a reply is missing' if problems else ''}.")
    if problems:
        raise typer.Exit(1)


def _decided(logits: Array, plan: Plan, X: Any = None) -> Prediction:
    from quad4fhe.he.predict import Prediction
    from quad4fhe.mlp import decide

    return Prediction(decide(logits), logits, reliable=plan.is_reliable(logits, X), names=plan.names)


def _keep(kept: dict[str, list[Any]], batch: Batch, plan: Plan, X: Any) -> None:
    """Append a batch to the columns of the JSON document, None where there is no reply."""
    missing = [None] * (batch.rows.stop - batch.rows.start)
    found = None if batch.logits is None else _decided(batch.logits, plan, X[batch.rows])
    kept["decisions"] += missing if found is None else found.decisions.tolist()
    kept["logits"] += missing if found is None else found.logits.tolist()
    if plan.reliable is not None:
        marks = None if found is None else found.reliable
        kept.setdefault("reliable", []).extend(missing if marks is None else marks.tolist())


def _csv_rows(batch: Batch, plan: Plan, X: Any, *, head: bool) -> str:
    """One line of CSV per sample, with empty cells where there is no reply, so that every row keeps its place."""
    import numpy as np

    if batch.logits is None:
        empty = _decided(np.empty((0, batch.outputs)), plan)
        width = len(csv_columns(empty.names, batch.outputs, reliable=plan.reliable is not None))
        rows: int = batch.rows.stop - batch.rows.start
        return (csv_text(empty) if head else "") + ("," * (width - 1) + "\n") * rows
    return csv_text(_decided(batch.logits, plan, X[batch.rows]), header=head)
