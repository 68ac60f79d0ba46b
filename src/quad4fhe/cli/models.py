"""`quad4fhe models`: list what a server offers."""

from __future__ import annotations

from typing import Annotated

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import CaOption, JsonFlag, TokenOption, trusted
from quad4fhe.cli.terminal import at_work, count, print_json, print_table


@app.command("models")
def models_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as https://host:port.")],
    token_file: TokenOption = None,
    ca: CaOption = None,
    json: JsonFlag = False,
) -> None:
    """List the models of a server.

    `query` and `keygen` take a name, an id or the first digits of an id as --model.

    Example: quad4fhe models http://127.0.0.1:8443
    """
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
