"""`quad4fhe verify`: recheck a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import ActivationOption, CalibFile, FitFile, JsonFlag, LabelOption, PoolOption, WorkersOption
from quad4fhe.cli.terminal import at_work, count, print_json, print_table

if TYPE_CHECKING:
    from quad4fhe import Fit, Verified

_MEANING = {"lossless": "every calibration decision is kept, exactly", "measured": "the mismatches are as listed"}


@app.command("verify")
def verify_command(
    fit_file: FitFile,
    calib: CalibFile,
    model: Annotated[Path | None, typer.Option(help="Also check that the fit belongs to this model.")] = None,
    activation: ActivationOption = None,
    holdout: Annotated[
        Path | None, typer.Option(help="The hold-out rows: also recount the promise about new inputs.")
    ] = None,
    label_column: LabelOption = None,
    pool: PoolOption = None,
    workers: WorkersOption = None,
    json: JsonFlag = False,
) -> None:
    """Recheck the certificate of FIT exactly, without the solvers.

    CALIB must be the data that the fit was made on; the certificate names its SHA-256. Decisions that floating point
    can't settle are settled in integer arithmetic, so the result does not depend on the machine. Every printed figure
    is computed by the check. What the file states about how it was made (regime, seed, diagnostics) is neither checked
    nor printed.

    Example: quad4fhe verify fit.safetensors calib.npz --model model.onnx

    Exit 1: the certificate does not hold for this data or model, or the file was changed
    """
    import msgspec

    from quad4fhe import MLP, Fit, verify

    with at_work() as progress:
        fitted = Fit.load(fit_file)
        whole = fitted.mlp.network is not None and model is not None and model.suffix.lower() == ".onnx"
        mlp = None if model is None else MLP.load(model, activation=activation, split="first" if whole else "auto")
        options: dict[str, Any] = {"pool": pool, "workers": workers, "label_column": label_column}
        verified = verify(fitted, mlp, calib, progress, X_holdout=holdout, **options)
    if json:
        print_json(msgspec.to_builtins(verified))
        return
    print_table("certificate holds", describe_verified(verified, fitted))


def describe_verified(verified: Verified, fitted: Fit) -> list[tuple[str, str]]:
    """A successful check of a fit in words."""
    from quad4fhe.fitting.summary import is_contradicted

    needed = count(verified.rational, "decision")
    meaning = _MEANING[verified.statement]
    if verified.settled.measured:
        meaning = meaning.replace(", exactly", ", as onnxruntime measured it")
    lines = [
        ("statement", f"{verified.statement}: {meaning}"),
        ("kept", f"{verified.samples - verified.mismatches} of {count(verified.samples, 'decision')} kept"),
        ("smallest margin", f"{verified.margin:.6g}"),
        ("how", f"{needed} needed exact arithmetic; an error bound settles the others"),
        ("settled", f"the model's own decisions: {verified.settled.sentence()}"),
    ]
    if is_contradicted(fitted):
        rows = len(verified.weights)
        lines.append(("impossible", f"{rows} rows contradict each other exactly, so some decision must be lost"))
    return lines + ([] if verified.guarantee is None else verified.guarantee.lines())
