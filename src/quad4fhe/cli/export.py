"""`quad4fhe export`: the polynomial model for other tools."""

from __future__ import annotations

import hashlib
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import FitFile, JsonFlag, choice
from quad4fhe.cli.terminal import count, print_json, print_table
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place


@app.command("export")
def export_command(
    fit_file: FitFile,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .onnx, .pt (torch state dict) or .npz.")
    ] = Path("quadratic.onnx"),
    dtype: Annotated[
        str, choice(("float64", "float32"), "float64 decides as the fit does; many tools take float32 only.")
    ] = "float64",
    labels: Annotated[
        bool, typer.Option("--labels", help="Give the ONNX graph a second output: the decision.")
    ] = False,
    folded: Annotated[
        bool, typer.Option("--folded", help="Fold the linear term into the squares: affine, square, affine.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Fix the number of rows of the ONNX graph; HEIR needs 1.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Samples on which the exported numbers must decide as the fit does.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write only the feature part, which runs at the client, as .onnx."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the web page as one file instead; needs --server and --plan.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="With --page: the address of the server the page asks.")
    ] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="With --page: the plan that the server serves this fit with.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Export the polynomial model of FIT, or a web page for queries.

    The exported model has no ReLU: it is an affine map, a square and another affine map, in operations (Gemm, Mul, Add)
    that other compilers for encrypted inference support. Rounding to float32 can change decisions that are close to a
    tie; --check counts them. --folded saves other compilers a product: the same function, rounded differently; a free
    head gets two more units per class.

    The exported model takes features; the feature part, which computes them at the client, is not in it. --features
    writes that part.

    --page writes the page of `quad4fhe serve --page` as one file that people open from disk, and prints its SHA-256 for
    comparison. The page holds the plan and nothing of the model; it asks a server that runs with the same --plan and
    with --page-from-disk.

    Example: quad4fhe export fit.safetensors -o quadratic.onnx
    quad4fhe export fit.safetensors -o quadratic.pt --dtype float32
    quad4fhe export fit.safetensors -o heir.onnx --folded --batch 1
    quad4fhe export fit.safetensors --page ask.html --server URL --plan plan.json

    Exit 1: with --check: some decisions differ from the fit's; the file is written anyway
    """
    if page is not None or server is not None or plan_file is not None:
        _export_page(fit_file, page, server, plan_file, json)
        return
    if features is not None:
        _export_features(fit_file, features, json)
        return
    from quad4fhe import Fit
    from quad4fhe._arrays import samples
    from quad4fhe.exporters import changed_decisions, exporter_of
    from quad4fhe.io.columns import Columns
    from quad4fhe.raw import samples_for

    exporter = exporter_of(out)
    check_place(out)
    fitted = Fit.load(fit_file)
    columns = Columns(fitted.names.features)
    X = None if check is None else samples("X", samples_for(fitted.mlp, check, "test", columns)[0], fitted.mlp.features)
    fitted.export(out, dtype=dtype, labels=labels, folded=folded, batch=batch)
    document: dict[str, Any] = {"file": str(out), "bytes": out.stat().st_size, "dtype": dtype, "folded": folded}
    document |= {"family": fitted.family, "regime": str(fitted.regime), "quadratic_sha256": fitted.model.sha256}
    contents = exporter.contents(fitted.degree) + (", folded" if folded else "")
    contents += f", {count(batch, 'row')}" if batch else ""
    contents += "; and the decision as a second output" if labels else ""
    lines = [("file", str(out)), ("contents", contents), ("numbers", dtype)]
    lines += [("made from", f"family {fitted.family}, degree {fitted.degree}"), ("model", fitted.model.sha256)]
    changed = 0
    if X is not None:
        changed = changed_decisions(fitted.model, out, X, dtype)
        document |= {"checked": len(X), "changed": changed}
        checked = count(len(X), "decision")
        lines.append(("check", f"{changed} of {checked} differ from the fit's, computed in {dtype}"))
    if json:
        print_json(document)
    else:
        print_table("exported", lines)
    if changed:
        raise typer.Exit(1)


def _export_features(fit_file: Path, out: Path, json: bool) -> None:
    from quad4fhe import Fit

    part = Fit.load(fit_file).mlp.feature_part
    if part is None:
        raise InputError("the fit has no feature part, because all of the model is encrypted; leave --features out")
    part.save(out)
    if json:
        print_json({"file": str(out), "bytes": len(part.graph), "sha256": part.sha256})
    else:
        print_table("feature part", [("file", str(out)), ("SHA-256", part.sha256), ("takes", part.describe())])


def _export_page(fit_file: Path, page: Path | None, server: str | None, plan_file: Path | None, json: bool) -> None:
    from quad4fhe import Fit, Plan
    from quad4fhe.io.files import write_atomically
    from quad4fhe.planning.plan import require_model
    from quad4fhe.serve.page import one_file

    if page is None or server is None or plan_file is None:
        raise InputError(
            "a page needs --page FILE, --server URL and --plan FILE; make the plan with: "
            f"quad4fhe plan {quote(str(fit_file))} --json > plan.json"
        )
    plan = Plan.load(plan_file)
    if plan.feature_part is not None:
        raise InputError("the page as one file can't run the model's feature part; use quad4fhe serve --page instead")
    require_model(plan, Fit.load(fit_file))
    data = one_file(plan, server)
    write_atomically(check_place(page), data)
    digest = hashlib.sha256(data).hexdigest()
    if json:
        print_json({"file": str(page), "bytes": len(data), "sha256": digest, "plan_sha256": plan.sha256.hex()})
    else:
        lines = [("file", str(page)), ("asks", server), ("SHA-256", digest), ("plan", plan.sha256.hex())]
        print_table("exported", lines)
