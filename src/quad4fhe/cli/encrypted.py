"""Commands on the encrypted side: plan, predict, bench. They parse, call the API and print."""

from __future__ import annotations

import io
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import quad4fhe
from quad4fhe._files import check_place, write_atomically
from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import (
    CalibFile,
    FitFile,
    JsonFlag,
    ModelFile,
    app,
    print_json,
    print_table,
    say,
    write_text,
)
from quad4fhe.errors import InputError

if TYPE_CHECKING:
    from quad4fhe import Fit
    from quad4fhe.he import bench
    from quad4fhe.he.predict import Prediction


class LayoutName(StrEnum):
    """How samples lie in ciphertexts."""

    auto = "auto"
    batch = "batch"
    packed = "packed"


class PrecisionName(StrEnum):
    """What encryption may cost in decisions."""

    strict = "strict"
    fast = "fast"


LayoutOption = Annotated[LayoutName, typer.Option(help="batch: many samples at once; packed: one quick query.")]
PrecisionOption = Annotated[
    PrecisionName, typer.Option(help="strict: no calibration decision may change; fast: one in a thousand may.")
]
WidenOption = Annotated[
    float, typer.Option(help="Widen the input box by this share of each feature's range, on both sides.")
]
CalibOption = Annotated[
    Path | None, typer.Option(help="The fit's calibration data: sharper error forecasts, so cheaper parameters.")
]


def make_plan(
    fitted: Fit, samples: int, layout: LayoutName, precision: PrecisionName, widen: float, calib: Path | None
) -> quad4fhe.Plan:
    """A plan as the options of several commands ask for it."""
    from quad4fhe import read_samples
    from quad4fhe.circuit.domain import widened
    from quad4fhe.he.calibrate import calibrate

    if samples < 1:
        raise InputError(f"samples is {samples}, wanted at least 1")
    X_cal = None if calib is None else fitted.calibration_part(read_samples(calib, "calibration")[0])
    return quad4fhe.plan(
        fitted,
        samples=samples,
        layout=layout.value,
        precision=precision.value,
        X=X_cal,
        box=widened(fitted.box, widen),
        machine=calibrate(),
    )


@app.command("plan")
def plan_command(
    fit_file: FitFile,
    samples: Annotated[int, typer.Option(help="How many samples are to be scored together.")] = 2048,
    layout: LayoutOption = LayoutName.auto,
    precision: PrecisionOption = PrecisionName.strict,
    widen: WidenOption = 0.0,
    calib: CalibOption = None,
    json: JsonFlag = False,
) -> None:
    """Choose every encryption parameter for FIT, and say what it costs.

    Ring, primes, scales and layout follow from the fit's margins and the range of its inputs; time and bytes are
    forecast for this machine. With --calib the error is bounded on the samples themselves, which allows cheaper
    parameters. --json gives the plan that `keygen` and `serve` take.

    Example: quad4fhe plan fit.safetensors --samples 2048 --calib calib.npz
    quad4fhe plan fit.safetensors --layout packed --json > plan.json
    """
    from quad4fhe import Fit

    with Reporter() as progress:
        progress("plan", 0, 0)
        made = make_plan(Fit.load(fit_file), samples, layout, precision, widen, calib)
    if json:
        print_json(made.to_dict())
        return
    say(quad4fhe.describe(made))


@app.command("predict")
def predict_command(
    fit_file: FitFile,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Samples: .npz (X, optional y), .npy, .csv or .parquet.")
    ],
    encrypted: Annotated[
        bool, typer.Option("--encrypted", help="Really encrypt, evaluate and decrypt (CKKS).")
    ] = False,
    layout: LayoutOption = LayoutName.auto,
    precision: PrecisionOption = PrecisionName.strict,
    widen: WidenOption = 0.0,
    clip: Annotated[
        bool, typer.Option("--clip", help="Move samples outside the box to its edge and count them.")
    ] = False,
    calib: CalibOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write decisions and logits as CSV; with X for `query --known`: .npz."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Decide DATA with the polynomial model of FIT, in the clear or encrypted.

    With --encrypted the samples are really encrypted, evaluated and decrypted, all on this machine. Encrypted inputs
    must lie in the box of the calibration data: --widen makes it larger, --clip moves what lies outside to its edge and
    says how many decisions that changed.

    Example: quad4fhe predict fit.safetensors test.npz -o decisions.csv
    quad4fhe predict fit.safetensors test.npz --encrypted --widen 0.5 --clip
    """
    import numpy as np

    from quad4fhe import Fit, read_samples
    from quad4fhe._arrays import samples as checked_samples
    from quad4fhe.he.predict import Prediction, predict_encrypted
    from quad4fhe.proof.reliable import is_above

    if out is not None:
        check_place(out)
    if not encrypted and (clip or widen or calib is not None):
        raise InputError("--clip, --widen and --calib are about encryption; add --encrypted, or leave them out")
    archive = out is not None and out.suffix == ".npz"
    if encrypted and archive:
        raise InputError("an .npz holds exact logits, for canaries: leave --encrypted out, or write a .csv")
    with Reporter() as progress:
        fitted = Fit.load(fit_file)
        X, y = read_samples(data, "test")
        checked_samples("X", X, fitted.mlp.features)
        if encrypted:
            made = make_plan(fitted, max(1, len(X)), layout, precision, widen, calib)
            prediction = predict_encrypted(fitted, made, X, clip=clip, progress=progress)
        else:
            logits = fitted.model.logits(X)
            promised = None if fitted.guarantee is None else fitted.guarantee.reliable
            reliable = None if promised is None else is_above(logits, promised.threshold)
            prediction = Prediction(fitted.predict(X), logits, reliable=reliable)
    if out is not None and archive:
        buffer = io.BytesIO()
        np.savez(buffer, X=X, decisions=prediction.decisions, logits=prediction.logits)
        write_atomically(out, buffer.getvalue())
    elif out is not None:
        write_text(out, csv_text(prediction))
    if json:
        print_json(prediction.to_dict())
        return
    lines = prediction.summary()
    if y is not None and y.dtype.kind not in "biuf":
        lines.append(("accuracy", f"not measured: the labels in {data.name} are not class ids"))
    elif y is not None:
        lines.append(("accuracy", f"{np.mean(prediction.decisions == y):.2%} on the labels in {data.name}"))
    agreement = float(np.mean(prediction.decisions == fitted.mlp.decide(X))) if len(X) else 1.0
    lines.append(("agreement", f"{agreement:.2%} of the ReLU model's own decisions"))
    print_table("prediction", lines)
    if out is not None:
        say(f"Decisions and logits are in {out}.")


def csv_text(prediction: Prediction) -> str:
    """Decisions, logits and where known whether they are reliable, one sample a line."""
    outputs = prediction.logits.shape[1]
    names = ["score"] if outputs == 1 else [f"logit_{c}" for c in range(outputs)]
    reliable = prediction.reliable
    lines = [",".join(["decision", *names, *([] if reliable is None else ["reliable"])])]
    marks = [[]] * prediction.decisions.size if reliable is None else [[str(int(mark))] for mark in reliable]
    rows = zip(prediction.decisions.tolist(), prediction.logits.tolist(), marks, strict=True)
    for decision, logits, mark in rows:
        lines.append(",".join([str(decision), *(repr(value) for value in logits), *mark]))
    return "\n".join(lines) + "\n"


@app.command("bench")
def bench_command(
    model: ModelFile,
    calib: CalibFile,
    test: Annotated[Path, typer.Option(help="Test data (X, optional y) to run encrypted.")],
    samples: Annotated[int, typer.Option(help="How many test samples to run in each configuration.", min=1)] = 32,
    sweep: Annotated[bool, typer.Option(help="Precision sweep: log2(scale) from 25 to 45.")] = True,
    minimum: Annotated[bool, typer.Option(help="Minimum feasible configuration, down to N = 2^12.")] = True,
    json: JsonFlag = False,
) -> None:
    """Run the paper's encrypted experiments on MODEL.

    The paper's circuit for Square, Quad and Remez, and our folded one: how precise each is at which scale, and the
    smallest parameters at which it works. Minutes, not seconds; --samples bounds it.

    Example: quad4fhe bench model.onnx calib.npz --test test.npz --samples 8 --no-sweep
    """
    import numpy as np

    from quad4fhe import MLP, fit, read_samples
    from quad4fhe._arrays import samples as checked_samples
    from quad4fhe.he import bench

    if not (sweep or minimum):
        raise InputError("--no-sweep and --no-minimum together leave nothing to run; drop one of them")
    with Reporter() as progress:
        mlp = MLP.load(model)
        X_cal, _ = read_samples(calib, "calibration")
        X_test, y_test = read_samples(test, "test")
        checked_samples("X_test", X_test, mlp.features)
        X, y = np.asarray(X_test[:samples], dtype=np.float64), None if y_test is None else y_test[:samples]
        fitted = fit(mlp, X_cal, polish=False, progress=progress)
        shown = bench.schemes(mlp, (fitted.alpha, fitted.beta, fitted.eta), X_cal)
        outcomes: dict[str, list[bench.Outcome]] = {}
        if sweep:
            outcomes["sweep"] = bench.precision_sweep(mlp, shown, X, y, progress=progress)
        if minimum:
            found = bench.minimum_configuration(mlp, shown, X, y, progress=progress)
            box = np.stack([np.minimum(fitted.box[0], X.min(axis=0)), np.maximum(fitted.box[1], X.max(axis=0))])
            outcomes["minimum"] = found + bench.minimum_plan(fitted, X, y, X_cal, box)
    if json:
        print_json({name: [outcome.to_dict() for outcome in rows] for name, rows in outcomes.items()})
        return
    titles = {"sweep": "Precision sweep, the paper's circuit", "minimum": "Minimum feasible configuration"}
    for name, rows in outcomes.items():
        say(f"{titles[name]}, {len(X)} test samples\n\n{bench.table(rows)}\n")
