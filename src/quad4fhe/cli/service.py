"""Commands of the service: keygen, serve, query. They parse, call the API and print.

What the optional packages give is imported inside the commands, so that the others work without them.
"""

from __future__ import annotations

import logging
import ssl
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe._files import check_place, opened, parsing
from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import JsonFlag, app, print_json, print_table, say, write_text
from quad4fhe.cli.encrypted import LayoutName, PrecisionName, PrecisionOption, WidenOption, csv_text, make_plan
from quad4fhe.cli.scoring import EngineName
from quad4fhe.errors import InputError
from quad4fhe.he.secrecy import private_line

if TYPE_CHECKING:
    from quad4fhe import Plan
    from quad4fhe.he import keys


class ServedLayout(StrEnum):
    """In which layouts a model is served."""

    both = "both"
    batch = "batch"
    packed = "packed"


class QueryLayout(StrEnum):
    """Which of a server's layouts is asked for."""

    batch = "batch"
    packed = "packed"


PassphraseFile = Annotated[
    Path | None, typer.Option(help="Your own file (mode 600); its first line is the passphrase.")
]
AskPassphrase = Annotated[bool, typer.Option("--ask-passphrase", help="Ask for the key's passphrase.")]
TokenOption = Annotated[Path | None, typer.Option(help="A file that holds the API token.")]
CaOption = Annotated[Path | None, typer.Option(help="Trust this certificate authority (PEM) instead of the system's.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model's id; another one is not trusted.")]
LayoutChoice = Annotated[QueryLayout | None, typer.Option(help="Which of the server's layouts to use.")]


@app.command("keygen")
def keygen_command(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="The key file to write.", show_default=False)],
    plan: Annotated[Path | None, typer.Option(help="Make it for this plan (from `quad4fhe plan --json`).")] = None,
    server: Annotated[str | None, typer.Option(help="Make it for the plan of this server.")] = None,
    model: ModelOption = None,
    layout: LayoutChoice = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Replace KEY by a new one; the old is kept, dated.")] = False,
    passphrase_file: PassphraseFile = None,
    ask_passphrase: AskPassphrase = False,
    token_file: TokenOption = None,
    ca: CaOption = None,
    json: JsonFlag = False,
) -> None:
    """Make a secret key, for its owner's eyes only; it stays on this machine.

    A key belongs to one plan, which the file keeps: `query --key` uses that plan and no other. Say which with --plan,
    or take the server's with --server and compare its hash with the one that the model's owner tells you. An existing
    key is never overwritten; --rotate puts a new one in its place and keeps the old under a dated name.

    Example: quad4fhe keygen own.key --server https://host:8443 --token-file token --ask-passphrase
    quad4fhe keygen own.key --plan plan.json
    """
    from quad4fhe import Plan
    from quad4fhe.he import keys

    if [plan is not None, server is not None, rotate].count(True) != 1:
        raise InputError("say what the key is for: one of --plan FILE, --server URL or --rotate")
    passphrase = _passphrase(passphrase_file, ask_passphrase, confirm=not rotate)
    kept: Path | None = None
    if rotate:
        made, kept = keys.rotate(key, passphrase)
    else:
        if plan is not None:
            wanted = Plan.load(plan)
        else:
            with _remote(str(server), None, None, model, layout, token_file, ca, 60.0) as remote:
                wanted = remote.plan
        made = keys.generate(wanted)
        keys.save(made, key, passphrase)
    if json:
        names = {"key_id": made.key_id.hex(), "plan": made.plan.sha256.hex(), "model": made.plan.model_id}
        print_json(names | {"file": str(key), "kept": None if kept is None else str(kept)})
        return
    lines = [("key", str(key)), ("id", made.key_id.hex()), ("ring", f"N = {made.chain.ring}")]
    lines += [("plan", made.plan.sha256.hex()), ("model", made.plan.model_id)]
    print_table("secret key", lines + ([] if kept is None else [("old key", str(kept))]))


@app.command("serve")
def serve_command(
    fits: Annotated[
        list[Path], typer.Argument(metavar="FITS", help="Fit files made by `quad4fhe fit`.", show_default=False)
    ],
    plans: Annotated[
        list[Path] | None, typer.Option("--plan", help="Use this plan (from `quad4fhe plan --json`); repeatable.")
    ] = None,
    layout: Annotated[ServedLayout, typer.Option(help="In which layouts, where no plan is given.")] = ServedLayout.both,
    samples: Annotated[int, typer.Option(help="Plan for this many samples at once.")] = 2048,
    precision: PrecisionOption = PrecisionName.strict,
    widen: WidenOption = 0.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8443,
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 2,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are told to come back.", min=1)] = 8,
    deadline: Annotated[float, typer.Option(help="Seconds for a request, upload included.")] = 60.0,
    max_keys: Annotated[int, typer.Option(help="Clients whose evaluation keys are kept.", min=1)] = 64,
    max_connections: Annotated[
        int, typer.Option(help="Open connections; at the limit the oldest idle one is closed for a new one.", min=1)
    ] = 512,
    per_address: Annotated[
        int, typer.Option(help="Open connections of one address; raise it behind a reverse proxy.", min=1)
    ] = 64,
    worker_memory: Annotated[
        int | None, typer.Option(help="MiB a worker may use; 0: no limit. Default: what its plans can need.", min=0)
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(help="local: processes of the server's own; ray: the cluster at RAY_ADDRESS, or one here."),
    ] = EngineName.local,
    spool: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which requests wait; all workers have to see it. Default: the system's for temporary files."
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="Let in only who has a token; one a line.")] = None,
    open_to_all: Annotated[bool, typer.Option("--open", help="Let everyone in, also from other machines.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM) for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None,
    json: JsonFlag = False,
) -> None:
    """Answer encrypted requests for the models in FITS until stopped.

    Nothing is ever decrypted here. Without --host only this machine can reach it; beyond it, tokens are asked for.
    Ctrl-C or SIGTERM end it: nothing new is taken, and what was accepted is answered.

    With --engine ray workers are actors of Ray, on this machine or on others that share the folder --spool. Use it
    only in a network you trust: Ray opens ports of its own, whatever --host is, and asks nobody who they are.

    Example: quad4fhe serve fit.safetensors
    quad4fhe serve fit.safetensors --host 0.0.0.0 --token-file tokens --tls-cert cert.pem --tls-key key.pem
    """
    from quad4fhe import Fit, Plan
    from quad4fhe.serve.run import Address, Hosted, Limits, read_tokens, serve

    address = Address(host=host, port=port, certificate=tls_cert, certificate_key=tls_key)
    if spool is not None and not spool.is_dir():
        raise InputError(f"{spool} is not a folder; requests wait in it, so make it or name another")
    most = None if worker_memory is None else worker_memory * 2**20
    limits = Limits(
        workers=workers,
        queue=queue,
        deadline=deadline,
        keys=max_keys,
        memory=most,
        connections=max_connections,
        per_address=per_address,
    )
    tokens = () if token_file is None else read_tokens(token_file)
    given = [Plan.load(file) for file in plans or []]
    hosted: list[Hosted] = []
    with Reporter() as progress:
        for file in fits:
            progress("plan", len(hosted), len(fits))
            fit = Fit.load(file)
            own = [one for one in given if one.model_id == fit.model.sha256]
            if not own:
                names = ["batch", "packed"] if layout is ServedLayout.both else [layout.value]
                own = [make_plan(fit, samples, LayoutName(name), precision, widen, None) for name in names]
            hosted.append(Hosted(fit, tuple(own)))
    if len(given) != sum(one in given for two in hosted for one in two.plans):
        raise InputError("a plan belongs to none of the fits; make it again with: quad4fhe plan FIT --json")

    def ready(url: str) -> None:
        models = [one.to_dict() for one in hosted]
        if json:
            print_json({"url": url, "models": models})
            return
        lines = [(one["id"][:12], f"{one['id']}, layouts {', '.join(one['layouts'])}") for one in models]
        print_table(f"serving on {url}", lines)

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    serve(
        hosted,
        address=address,
        limits=limits,
        tokens=tokens,
        open_to_all=open_to_all,
        folder=spool,
        engine=engine.value,
        ready=ready,
    )


@app.command("query")
def query_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="The server, as https://host:port; or a folder for files.", show_default=False
        ),
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Samples: .npz (X), .npy, .csv or .parquet.", show_default=False)
    ],
    model: ModelOption = None,
    layout: LayoutChoice = None,
    key: Annotated[Path | None, typer.Option(help="A kept key (keygen); otherwise one for this call alone.")] = None,
    passphrase_file: PassphraseFile = None,
    ask_passphrase: AskPassphrase = False,
    token_file: TokenOption = None,
    ca: CaOption = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Move samples outside the box to its edge and count them.")
    ] = False,
    patience: Annotated[float, typer.Option(help="Seconds one message may take, attempts included.")] = 120.0,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Use this plan and no other; for a folder: write encrypted requests there."),
    ] = None,
    replies: Annotated[
        Path | None, typer.Option(help="URL is a folder of requests: read their replies from this one.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests in flight at once.", min=1)] = 2,
    canaries: Annotated[
        int,
        typer.Option(help="Hide this many samples of --known in each request (layout batch) and check them.", min=0),
    ] = 0,
    known: Annotated[
        Path | None, typer.Option(help="Samples with their logits (`predict FIT DATA -o known.npz`), for --canaries.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write decisions and logits as CSV.")] = None,
    json: JsonFlag = False,
) -> None:
    """Encrypt DATA here, let the server at URL decide, decrypt here.

    Never send the decrypted logits back to the server: SECURITY.md says why. A key (`keygen`) or --plan pins the plan:
    samples outside its box are refused before anything is sent. A plan that is not pinned is the server's own, and
    everything is sent before samples outside are reported. --canaries finds out a server that computes something else.
    Without a server: write requests into a folder (--plan), have it answered (`score`), read the replies (--replies).

    Example: quad4fhe query http://127.0.0.1:8443 test.npz -o decisions.csv
    quad4fhe query https://host:8443 test.npz --key own.key --token-file token
    quad4fhe query https://host:8443 test.npz --key own.key --canaries 32 --known known.npz
    quad4fhe query batches test.npz --plan plan.json --key own.key
    quad4fhe query batches test.npz --replies replies --key own.key
    """
    from quad4fhe import Plan, read_samples
    from quad4fhe._arrays import tensor
    from quad4fhe.circuit.forecast import readable_bytes, readable_seconds
    from quad4fhe.he import keys
    from quad4fhe.he.canaries import Known
    from quad4fhe.he.predict import Prediction, reliable_line

    if out is not None:
        check_place(out)
    if replies is not None or (plan_file is not None and not url.startswith(("http://", "https://"))):
        if canaries or known is not None:
            raise InputError("--canaries and --known are for a server; leave them out for requests in a folder")
        _query_folder(url, data, plan_file, replies, key, passphrase_file, ask_passphrase, clip, out, json)
        return
    if Path(url).is_dir():
        raise InputError(f"{url} is a folder: add --plan to write requests there, or --replies to read the answers")
    stored = None if key is None else keys.load(key, _passphrase(passphrase_file, ask_passphrase, confirm=False))
    pinned = None if plan_file is None else Plan.load(plan_file)
    X = tensor(
        "X", read_samples(data, "test")[0], 2
    )  # before the server hears of it: NaN in a sample is no news for it
    pairs = None if known is None else Known.load(known)
    with Reporter() as progress, _remote(url, pinned, stored, model, layout, token_file, ca, patience) as remote:
        found = remote.predict(X, clip=clip, known=pairs, canaries=canaries, concurrency=concurrency, progress=progress)
        plan, trusted = remote.plan, remote.pinned
    prediction = Prediction(found.decisions, found.logits, reliable=found.reliable)
    if out is not None:
        write_text(out, csv_text(prediction))
    if json:
        bill = {
            name: getattr(found, name)
            for name in ("requests", "upload_bytes", "download_bytes", "key_bytes", "clipped", "canaries", "seconds")
        }
        print_json(
            {"model": plan.model_id, "layout": plan.layout, "plan": plan.sha256.hex(), "pinned": trusted, **bill}
            | {name: value for name, value in prediction.to_dict().items() if name != "bill"}
        )
        return
    lines = [prediction.summary()[0], ("model", plan.model_id)]
    lines += [] if found.reliable is None else [reliable_line(found.reliable)]
    lines.append(("how", f"encrypted with CKKS, layout {plan.layout}, ring N = {plan.chain.ring}"))
    if found.clipped:
        lines.append(
            ("clipped", f"{found.clipped} samples lay outside the box and were decided at its edge, not as given")
        )
    if found.canaries:
        lines.append(("canaries", f"{found.canaries} in each request, all with the logits that were known"))
    keyed = f", {readable_bytes(found.key_bytes)} of keys once" if found.key_bytes else ""
    traffic = f"{readable_bytes(found.upload_bytes)} up, {readable_bytes(found.download_bytes)} down"
    lines.append(("traffic", f"{traffic} in {found.requests} requests{keyed}"))
    lines.append(("time", readable_seconds(found.seconds)))
    print_table("answers", lines)
    if not trusted:
        given = {"--layout": plan.layout, "--token-file": token_file, "--ca": ca, "--model": model}
        options = "".join(f" {name} {value}" for name, value in given.items() if value is not None)
        say(f"To accept one plan only from now on: quad4fhe keygen own.key --server {url}{options}")
        say("then add --key own.key to this query.")
    if out is not None:
        say(f"Decisions and logits are in {out}.")


def _query_folder(
    folder: str,
    data: Path,
    plan: Path | None,
    replies: Path | None,
    key: Path | None,
    passphrase_file: Path | None,
    ask_passphrase: bool,
    clip: bool,
    out: Path | None,
    json: bool,
) -> None:
    from quad4fhe.cli.scoring import read_folder, write_folder
    from quad4fhe.he import keys

    if folder.startswith(("http://", "https://")):
        raise InputError("--replies is for requests in a folder; leave it out for a server")
    if key is None:
        raise InputError("requests in files are read back later, so their key is kept: add --key (see keygen --plan)")
    stored = keys.load(key, _passphrase(passphrase_file, ask_passphrase, confirm=False))
    if replies is not None:
        if plan is not None or clip:
            raise InputError("--plan and --clip belong to writing requests; leave them out to read --replies")
        read_folder(Path(folder), data, replies, stored, out=out, json=json)
        return
    assert plan is not None
    if out is not None:
        raise InputError("--out belongs to reading --replies; there are no answers yet when requests are written")
    write_folder(Path(folder), data, plan, stored, clip=clip, json=json)


def _remote(
    url: str,
    plan: Plan | None,
    key: keys.StoredKey | None,
    model: str | None,
    layout: QueryLayout | None,
    token_file: Path | None,
    ca: Path | None,
    patience: float,
) -> Any:
    from quad4fhe.serve.client import Remote
    from quad4fhe.serve.wire import client_context

    token = None if token_file is None else _first_line(token_file, "token")
    trust: bool | ssl.SSLContext = True
    if ca is not None:
        with opened(ca), parsing("the certificate", "give a PEM file"):
            trust = client_context(str(ca))
    chosen = None if layout is None else layout.value
    return Remote(url, plan=plan, key=key, model=model, layout=chosen, token=token, verify=trust, patience=patience)


def _first_line(file: Path, what: str) -> str:
    with opened(file), parsing(f"the {what}", "write it as one line of text"):
        lines = file.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].strip():
        raise InputError(f"{file}: its first line, the {what}, is empty")
    return lines[0].strip()


def _passphrase(file: Path | None, ask: bool, *, confirm: bool) -> str | None:
    if file is not None:
        return private_line(file, "passphrase")
    if not ask:
        return None
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask for the passphrase on; write it to a file for --passphrase-file")
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return typed
