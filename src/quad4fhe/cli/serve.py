"""`quad4fhe serve`: answer encrypted requests over HTTP."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    Box,
    BoxOption,
    JsonFlag,
    PlanClipFlag,
    PoolOption,
    PrecisionOption,
    RepliesOption,
    SamplesOption,
    WidenOption,
    choice,
    make_plan,
)
from quad4fhe.cli.terminal import at_work, print_json, print_table
from quad4fhe.errors import InputError
from quad4fhe.layouts import LAYOUTS
from quad4fhe.workers.registry import DEFAULT

if TYPE_CHECKING:
    from quad4fhe import Fit, Plan
    from quad4fhe.serve.run import HostedModel


log = logging.getLogger("quad4fhe.serve")


@app.command("serve")
def serve_command(
    fits: Annotated[
        list[Path], typer.Argument(metavar="FIT", help="Fit files made by `quad4fhe fit`.", show_default=False)
    ],
    plans: Annotated[
        list[Path] | None, typer.Option("--plan", help="Use this plan (from `quad4fhe plan --json`); may be repeated.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="What clients may call the model, one for each FIT; by default the name of its file."
        ),
    ] = None,
    layout: Annotated[
        str, choice(("all", *LAYOUTS.names()), "The layouts to offer for a fit without a --plan.")
    ] = "all",
    samples: SamplesOption = 2048,
    precision: PrecisionOption = "strict",
    replies: RepliesOption = "private",
    box: BoxOption = None,
    widen: WidenOption = None,
    clip: PlanClipFlag = False,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8443,
    workers: Annotated[int, typer.Option(help="Number of worker processes.", min=1)] = 2,
    queue: Annotated[int, typer.Option(help="Requests that may wait; further requests get 429.", min=1)] = 8,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="Time for a request, upload included.")] = 60.0,
    numbers_per_day: Annotated[
        int | None,
        typer.Option(
            help="Numbers that a token is told of a model each day (UTC): rows of a request x outputs.", min=1
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(help="Open connections; at the limit, a new one replaces the oldest idle one.", min=1)
    ] = 512,
    per_address: Annotated[
        int, typer.Option(help="Open connections per address; raise it behind a reverse proxy.", min=1)
    ] = 64,
    worker_memory: Annotated[
        int | None,
        typer.Option(
            metavar="MIB", help="Memory limit of a worker; 0: none. By default the most its plans need.", min=0
        ),
    ] = None,
    pool: PoolOption = DEFAULT,
    spool: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for waiting requests; all workers must see it. By default a temporary one."
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="Accept only these bearer tokens, one per line.")] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Accept everyone without a token, also from other machines.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Also serve a web page that encrypts in the browser, at /page/.")
    ] = False,
    page_from_disk: Annotated[
        bool, typer.Option("--page-from-disk", help="Answer pages that `quad4fhe export --page` wrote.")
    ] = False,
    onnxruntime: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --page: onnxruntime-web's module, to run models' feature parts in the browser."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None,
    json: JsonFlag = False,
) -> None:
    """Serve encrypted predictions for one or more fits.

    The server decrypts nothing. Its replies are private: they tell a client the answers, and nothing else about the
    weights. --replies plain is faster, and gives the weights away. By default only this machine can reach it; with
    another --host it requires tokens. Ctrl-C or SIGTERM stops it: it takes no new requests and answers the accepted
    ones.

    With --pool ray, workers are Ray actors, on this machine or on others that share the folder --spool. Use it only
    in a network you trust: Ray opens ports of its own, whatever --host is, and authenticates nobody.

    Example: quad4fhe serve fit.safetensors
    quad4fhe serve fit.safetensors --host 0.0.0.0 --token-file tokens
    """
    from quad4fhe.serve.run import Address, Limits, read_tokens, serve

    address = Address(host=host, port=port, certificate=tls_cert, certificate_key=tls_key)
    if spool is not None and not spool.is_dir():
        raise InputError(f"--spool {spool} is not a folder; create it, or name a folder in which requests can wait")
    limits = Limits(
        workers=workers,
        queue=queue,
        deadline=deadline,
        numbers_per_day=numbers_per_day,
        memory=None if worker_memory is None else worker_memory * 2**20,
        connections=max_connections,
        per_address=per_address,
    )
    tokens = () if token_file is None else read_tokens(token_file)
    layouts = LAYOUTS.names() if layout == "all" else (layout,)
    called = _names(fits, names or [])
    hosted = _hosted(fits, called, plans or [], layouts, samples, precision, Box(box, widen, clip), replies)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # it logs ordinary events under this name as well
    for each in hosted:
        if each.plans[0].plain:
            log.warning("plain replies: any client learns the weights of %s from a few of them", each.name)
    serve(
        hosted,
        address=address,
        limits=limits,
        tokens=tokens,
        open_to_all=open_to_all,
        folder=spool,
        pool=pool or DEFAULT,
        page=page,
        page_from_disk=page_from_disk,
        onnxruntime=onnxruntime,
        ready=lambda url: _ready(url, hosted, json, page),
    )


def _names(fits: list[Path], given: list[str]) -> list[str]:
    """The models' names in the order of their files."""
    from quad4fhe.serve.directory import is_name, name_from

    if given and len(given) != len(fits):
        raise InputError(f"{len(given)} --name for {len(fits)} fits; give one name for each FIT, in the same order")
    for name in given:
        if not is_name(name):
            raise InputError(f"--name {name!r}: wanted up to 64 letters, digits, . - and _, a letter or digit first")
    return given or [name_from(file.stem) for file in fits]


def _hosted(
    fits: list[Path],
    names: list[str],
    plans: list[Path],
    layouts: Sequence[str],
    samples: int,
    precision: str,
    box: Box,
    replies: str,
) -> list[HostedModel]:
    """Each fit with the plans given for it, or else with a new plan for each layout."""
    from quad4fhe import Fit, Plan
    from quad4fhe.serve.run import HostedModel

    given = [Plan.load(file) for file in plans]
    hosted: list[HostedModel] = []
    with at_work() as progress:
        for file, name in zip(fits, names, strict=True):
            progress("plan", len(hosted), len(fits))
            fit = Fit.load(file)
            own = [plan for plan in given if plan.model_id == fit.model_id]
            own = own or _plans(fit, samples, layouts, precision, box, replies)
            hosted.append(HostedModel(fit, tuple(own), name))
    models = {each.model_id for each in hosted}
    for file, plan in zip(plans, given, strict=True):
        if plan.model_id not in models:
            make = f"quad4fhe plan {quote(str(fits[0]))} --json > {quote(str(file))}"
            raise InputError(f"the plan {file} belongs to none of the fits; for the first fit, make it again: {make}")
    return hosted


def _plans(fit: Fit, samples: int, layouts: Sequence[str], precision: str, box: Box, replies: str) -> list[Plan]:
    """A plan for each layout; layouts that do not suit the model or the replies are left out if another does."""
    found, errors = [], []
    for layout in layouts:
        try:
            found.append(make_plan(fit, samples, layout, precision, box, replies=replies))
        except InputError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def _ready(url: str, hosted: list[HostedModel], json: bool, page: bool) -> None:
    models = [each.to_dict() for each in hosted]
    if json:
        print_json({"url": url, "models": models} | ({"page": f"{url}/page/"} if page else {}))
        return
    lines = [(model["name"], f"{model['id']}, layouts {', '.join(model['layouts'])}") for model in models]
    if page:
        lines.append(("page", f"{url}/page/"))
    print_table(f"serving on {url}", lines)
