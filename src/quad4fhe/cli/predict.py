"""`quad4fhe predict`: classify samples on this machine, in the clear or encrypted."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    Box,
    BoxOption,
    CalibOption,
    ClipFlag,
    DataFile,
    FitFile,
    JsonFlag,
    LabelOption,
    LayoutOption,
    PrecisionOption,
    WidenOption,
    make_plan,
    named_columns,
)
from quad4fhe.cli.terminal import at_work, print_json, print_table, say
from quad4fhe.errors import InputError
from quad4fhe.io.files import check_place, write_atomically

if TYPE_CHECKING:
    from quad4fhe import Fit
    from quad4fhe.he.predict import Prediction
    from quad4fhe.names import Names


@app.command("predict")
def predict_command(
    fit_file: FitFile,
    data: DataFile,
    label_column: LabelOption = None,
    encrypted: Annotated[bool, typer.Option("--encrypted", help="Encrypt, evaluate and decrypt with CKKS.")] = False,
    layout: LayoutOption = "auto",
    precision: PrecisionOption = "strict",
    box: BoxOption = None,
    widen: WidenOption = None,
    clip: ClipFlag = False,
    calib: CalibOption = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Encrypt with this plan (from `quad4fhe plan --json`).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write decisions and logits: .csv, or .npz (with X) for `query --known`."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Classify DATA with FIT, in the clear or encrypted.

    --encrypted encrypts, evaluates and decrypts the samples, all on this machine. Encrypted inputs must lie inside the
    plan's box: the calibration range, widened by half of it on both sides. --widen and --box choose another box, and
    --clip moves the samples outside it to its edge and reports how many decisions that changed. --plan takes a plan
    that was made before, with its box.

    Example: quad4fhe predict fit.safetensors test.npz -o decisions.csv
    quad4fhe predict fit.safetensors test.npz --encrypted --clip
    quad4fhe predict fit.safetensors test.npz --encrypted --plan plan.json
    """
    from quad4fhe import Fit, Plan
    from quad4fhe._arrays import samples as checked_samples
    from quad4fhe.he.predict import predict_encrypted
    from quad4fhe.raw import samples_for

    if out is not None:
        check_place(out)
    choice = Box(box, widen, clip)
    if not encrypted and (choice or calib is not None or plan_file is not None):
        raise InputError(
            "--box, --widen, --clip, --calib and --plan are about encryption; add --encrypted, or leave them out"
        )
    if plan_file is not None and (Box(box, widen) or calib is not None or (layout, precision) != ("auto", "strict")):
        raise InputError(
            "--plan has its own box, layout and precision; leave --box, --widen, --calib, --layout and --precision out"
        )
    if encrypted and out is not None and out.suffix == ".npz":
        raise InputError("an .npz is for canaries and holds exact logits; leave --encrypted out, or write a .csv")
    with at_work() as progress:
        fitted = Fit.load(fit_file)
        X, y = samples_for(fitted.mlp, data, "test", named_columns(fitted.names, label_column))
        checked_samples("X", X, fitted.mlp.features)
        if encrypted:
            if plan_file is not None:
                made = Plan.load(plan_file)
            else:
                made = make_plan(fitted, max(1, len(X)), layout, precision, choice, calib)
            prediction = predict_encrypted(fitted, made, X, clip=clip, progress=progress)
        else:
            prediction = _in_the_clear(fitted, X)
    if out is not None:
        _write(out, prediction, X)
    if json:
        print_json(prediction.to_dict())
        return
    print_table("prediction", prediction.summary() + _measured(prediction, fitted, X, y, data.name))
    if out is not None:
        say(f"Decisions and logits are in {out}.")


def _in_the_clear(fitted: Fit, X: Any) -> Prediction:
    from quad4fhe.he.predict import Prediction
    from quad4fhe.proof.guarantee import is_above

    logits = fitted.model.logits(X)
    promised = None if fitted.guarantee is None else fitted.guarantee.reliable
    reliable = None if promised is None else is_above(logits, promised)
    return Prediction(fitted.predict(X), logits, reliable=reliable, names=fitted.names)


def _write(out: Path, prediction: Prediction, X: Any) -> None:
    import numpy as np

    if out.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, X=X, decisions=prediction.decisions, logits=prediction.logits)
        write_atomically(out, buffer.getvalue())
    else:
        write_atomically(out, csv_text(prediction).encode())


def _measured(prediction: Prediction, fitted: Fit, X: Any, y: Any, name: str) -> list[tuple[str, str]]:
    """Accuracy and agreement in words."""
    import numpy as np

    from quad4fhe.names import class_ids, strange_label

    lines = []
    ids = None if y is None else class_ids(y, fitted.names, fitted.mlp.classes)
    if ids is not None:
        lines.append(("accuracy", f"{np.mean(prediction.decisions == ids):.2%} on the labels in {name}"))
    elif y is not None:
        lines.append(("accuracy", f"not measured: {strange_label(y, fitted.names)}"))
    if fitted.names.features is None:
        lines.append(("columns", "taken in their order: the fit has no feature names"))
    agreement = float(np.mean(prediction.decisions == fitted.mlp.decide(X))) if len(X) else 1.0
    return [*lines, ("agreement", f"{agreement:.2%} of the model's own decisions")]


def csv_text(prediction: Prediction, *, header: bool = True) -> str:
    """Decisions, logits and, if known, class names and whether a decision is reliable; one line per sample."""
    outputs, classes = prediction.logits.shape[1], prediction.names.classes
    names = csv_columns(prediction.names, outputs, reliable=prediction.reliable is not None)
    columns = [[str(value) for value in prediction.decisions.tolist()]]
    if classes is not None:
        columns.append([_cell(classes[label]) for label in prediction.decisions.tolist()])
    columns += [[repr(value) for value in column] for column in prediction.logits.T.tolist()]
    if prediction.reliable is not None:
        columns.append([str(int(mark)) for mark in prediction.reliable])
    rows = [*([names] if header else []), *zip(*columns, strict=True)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def csv_columns(names: Names, outputs: int, *, reliable: bool) -> list[str]:
    """The header of the decisions that `csv_text` writes."""
    each = range(outputs) if names.classes is None else names.classes
    logits = ["score"] if outputs == 1 else [f"logit_{c}" for c in each]
    return ["decision", *([] if names.classes is None else ["class"]), *logits, *(["reliable"] if reliable else [])]


def _cell(name: str) -> str:
    """A name that a spreadsheet does not take for a formula; names of a plan may come from a server."""
    return f"'{name}" if name[0] in "=+-@" else name
