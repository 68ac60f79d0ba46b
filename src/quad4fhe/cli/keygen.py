"""`quad4fhe keygen`: a secret key in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    AskPassphrase,
    CaOption,
    JsonFlag,
    LayoutChoice,
    ModelOption,
    PassphraseFile,
    TokenOption,
    connect,
    read_passphrase,
)
from quad4fhe.cli.terminal import print_json, print_table
from quad4fhe.errors import InputError


@app.command("keygen")
def keygen_command(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="The key file to write.", show_default=False)],
    plan: Annotated[Path | None, typer.Option(help="Make the key for this plan (from `quad4fhe plan --json`).")] = None,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Make the key for the plan of this server.")] = None,
    model: ModelOption = None,
    layout: LayoutChoice = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Replace KEY with a new key; keep the old one under a dated name.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    ask_passphrase: AskPassphrase = False,
    token_file: TokenOption = None,
    ca: CaOption = None,
    json: JsonFlag = False,
) -> None:
    """Create a secret key, which stays on this machine.

    A key belongs to one plan, and its file keeps the plan: `query --key` uses that plan and no other. Name the plan
    with --plan, or take the server's with --server and compare its hash with the one you get from the model's owner. An
    existing key is never overwritten; --rotate writes a new key in its place and keeps the old one under a dated name.

    Example: quad4fhe keygen own.key --plan plan.json
    quad4fhe keygen own.key --server https://host:8443 --ask-passphrase
    """
    from quad4fhe import Plan
    from quad4fhe.he import keys

    if [plan is not None, server is not None, rotate].count(True) != 1:
        raise InputError("say what the key is for: one of --plan FILE, --server URL or --rotate")
    passphrase = read_passphrase(passphrase_file, ask_passphrase, confirm=not rotate)
    kept: Path | None = None
    if rotate:
        made, kept = keys.rotate(key, passphrase)
    else:
        if plan is not None:
            wanted = Plan.load(plan)
        else:
            with connect(str(server), model=model, layout=layout, token_file=token_file, ca=ca) as remote:
                wanted = remote.plan
        made = keys.generate(wanted)
        keys.save(made, key, passphrase)
    if json:
        names = {"key_id": made.key_id.hex(), "plan": made.plan.sha256.hex(), "model": made.plan.model_id}
        print_json(names | {"file": str(key), "kept": None if kept is None else str(kept)})
        return
    lines = [("key", str(key)), ("id", made.key_id.hex()), ("ring", f"N = {made.plan.chain.ring}")]
    lines += [("plan", made.plan.sha256.hex()), ("model", made.plan.model_id)]
    print_table("secret key", lines + ([] if kept is None else [("old key", str(kept))]))
