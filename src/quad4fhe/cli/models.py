"""`quad4fhe models`: list what a server offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import CaOption, JsonFlag, LayoutChoice, ModelOption, TokenOption, connect, trusted
from quad4fhe.cli.terminal import at_work, count, print_json, print_table
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place


@app.command("models")
def models_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as https://host:port.")],
    save_plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the server's plan of a model, for `query --plan`.")
    ] = None,
    model: ModelOption = None,
    layout: LayoutChoice = None,
    token_file: TokenOption = None,
    ca: CaOption = None,
    json: JsonFlag = False,
) -> None:
    """List the models of a server.

    `query` takes a name, an id or the first digits of an id as --model. Compare the hash of a saved plan with the one
    you get from the model's owner: `query --plan` then accepts this plan and no other.

    Example: quad4fhe models http://127.0.0.1:8443
    quad4fhe models http://127.0.0.1:8443 --save-plan plan.json
    """
    if save_plan is not None:
        _save_plan(url, save_plan, model=model, layout=layout, token_file=token_file, ca=ca, json=json)
        return
    if model is not None or layout is not None:
        raise InputError("--model and --layout choose a plan: add --save-plan FILE, or leave them out")
    from quad4fhe.serve.directory import read_list
    from quad4fhe.serve.http import HttpClient

    token, trust = trusted(token_file, ca)
    with at_work(), HttpClient(url, token, trust, patience=30.0) as http:
        entries = read_list(http)
    if json:
        print_json({"models": entries})
        return
    for entry in entries:
        shape = f"{count(entry.features, 'feature')}, {count(max(entry.outputs, 2), 'class', 'classes')}"
        lines = [("id", entry.id), ("shape", shape), ("layouts", ", ".join(entry.layouts))]
        lines += [(f"plan, {layout}", entry.plans[layout]) for layout in entry.layouts if layout in entry.plans]
        print_table(entry.name, lines)


def _save_plan(
    url: str,
    file: Path,
    *,
    model: str | None,
    layout: str | None,
    token_file: Path | None,
    ca: Path | None,
    json: bool,
) -> None:
    check_place(file)
    with at_work(), connect(url, model=model, layout=layout, token_file=token_file, ca=ca) as remote:
        plan = remote.plan
    plan.save(file)
    if json:
        print_json({"file": str(file), "plan": plan.sha256.hex(), "model": plan.model_id, "layout": plan.layout})
        return
    print_table("plan", [("file", str(file)), ("hash", plan.sha256.hex()), ("model", plan.model_id)])
