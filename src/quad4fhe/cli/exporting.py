"""The command export: the polynomial model for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from quad4fhe._files import check_place
from quad4fhe.cli.app import FitFile, JsonFlag, app, print_json, print_table

_WHAT = {
    ".onnx": "an ONNX graph (opset 13): Gemm, Mul, Gemm, Gemm, Add",
    ".pt": "a torch state dict: hidden, squares, linear",
    ".npz": "arrays W1, b1, S, T, c",
}


class DtypeName(StrEnum):
    """The types in which numbers can be exported."""

    float64 = "float64"
    float32 = "float32"


@app.command("export")
def export_command(
    fit_file: FitFile,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write: .onnx, .pt (torch state dict) or .npz.")
    ] = Path("quadratic.onnx"),
    dtype: Annotated[
        DtypeName, typer.Option(help="float64 decides as the fit does; float32 is what many tools take.")
    ] = DtypeName.float64,
    labels: Annotated[
        bool, typer.Option("--labels", help="Give the ONNX graph a second output: the decision.")
    ] = False,
    check: Annotated[
        Path | None, typer.Option(help="Samples on which the exported numbers must decide as the fit does.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write the polynomial model of FIT for other tools.

    The ReLU is gone from what is written: an affine map, one square, an affine map, in operations (Gemm, Mul, Add)
    plain enough for other compilers of encrypted inference. Rounding to float32 can turn decisions that are nearly
    ties; --check counts them.

    Example: quad4fhe export fit.safetensors -o quadratic.onnx
    quad4fhe export fit.safetensors -o quadratic.pt --dtype float32 --check test.npz

    Exit 1: with --check: some decisions differ from the fit's (the file is written all the same)
    """
    from quad4fhe import Fit, read_samples
    from quad4fhe._arrays import samples
    from quad4fhe.exporters import changed_decisions, suffix_of

    suffix = suffix_of(out)
    check_place(out)
    fitted = Fit.load(fit_file)
    X = None if check is None else samples("X", read_samples(check, "test")[0], fitted.mlp.features)
    fitted.export(out, dtype=dtype.value, labels=labels)
    document: dict[str, Any] = {"file": str(out), "bytes": out.stat().st_size, "dtype": dtype.value}
    document |= {"family": fitted.family, "regime": str(fitted.regime), "quadratic_sha256": fitted.model.sha256}
    holds = _WHAT[suffix] + ("; and the decision as a second output" if labels else "")
    lines = [("file", str(out)), ("holds", holds), ("numbers", dtype.value)]
    lines += [("made from", f"family {fitted.family}"), ("model", fitted.model.sha256)]
    changed = 0
    if X is not None:
        changed = changed_decisions(fitted.model, out, X, dtype.value)
        document |= {"checked": len(X), "changed": changed}
        lines.append(("check", f"{changed} of {len(X)} decisions differ from the fit's, computed in {dtype.value}"))
    if json:
        print_json(document)
    else:
        print_table("exported", lines)
    if changed:
        raise typer.Exit(1)
