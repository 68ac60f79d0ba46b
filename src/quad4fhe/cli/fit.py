"""`quad4fhe fit`: a polynomial model that keeps a classifier's decisions."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.cli.again import again
from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    DEGREES,
    FAMILIES,
    REGIMES,
    ActivationOption,
    BinaryFlag,
    CalibFile,
    JsonFlag,
    LabelOption,
    ModelFile,
    PoolOption,
    SplitOption,
    WorkersOption,
    choice,
    load_model,
)
from quad4fhe.cli.terminal import at_work, print_json, print_table, say
from quad4fhe.errors import InputError
from quad4fhe.fitting.families import SHARED

if TYPE_CHECKING:
    from quad4fhe import MLP, Fit
    from quad4fhe.names import Names


@app.command("fit")
def fit_command(
    context: typer.Context,
    model: ModelFile,
    calib: CalibFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the fit.")] = Path("fit.safetensors"),
    test: Annotated[Path | None, typer.Option(help="Test data: measured, never fitted.")] = None,
    label_column: LabelOption = None,
    family: Annotated[
        str, choice(FAMILIES, "One quadratic for all units, one per unit, a free head, or the best of these.")
    ] = "auto",
    degree: Annotated[
        str, choice(DEGREES, "Degree of the polynomial: more keeps more decisions and costs more.")
    ] = "2",
    cost: Annotated[
        float, typer.Option(help="With --degree auto: the largest server time, as a multiple of that of degree 2.")
    ] = 1.0,
    regime: Annotated[str, choice(REGIMES, "Try all regimes in turn, or only one.")] = "auto",
    threshold: Annotated[
        str, choice(("zero", "free"), "Keep the binary threshold at zero, or fit it as well.")
    ] = "zero",
    polish: Annotated[bool, typer.Option(help="Search near a soft fit for one that keeps more decisions.")] = True,
    target_agreement: Annotated[
        float | None, typer.Option(help="Exit with 1 and write nothing if the fit keeps less than this share.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the polish, the folds and the split.", min=0)] = 2026,
    holdout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SHARE", help="Rows for a promise about new inputs: a file, or a share of CALIB such as 0.1."
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="State that the model was not trained on the hold-out rows."),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of the promise.")] = 0.95,
    reliable: Annotated[
        float | None, typer.Option(help="Find the margin above which this share of decisions is kept, such as 0.995.")
    ] = None,
    activation: ActivationOption = None,
    binary: BinaryFlag = False,
    split: SplitOption = "auto",
    features_only: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Fit nothing: write the features of CALIB, from the feature part, as .npz."),
    ] = None,
    pool: PoolOption = None,
    workers: WorkersOption = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Limit for all processes together, such as 512MB; .npy and .parquet are read in parts."
        ),
    ] = None,
    insist: Annotated[
        bool, typer.Option("--insist", help="Fit the model even if it is no better than chance on the labels of CALIB.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Fit a polynomial model that keeps the decisions of MODEL.

    The decisions to keep are those of the model on CALIB, the calibration data. Labels in CALIB are not fitted, but
    they show how often the model is right; if that is no more than chance, `fit` stops (see --insist). The result is
    one file with the polynomial model and a certificate. The certificate is either lossless (the fit keeps every
    decision, exactly) or measured (it lists the lost decisions and, where no fit could keep them all, the samples that
    prove it). Where one quadratic for all hidden units loses decisions, larger families are tried. They often keep
    more, at the same cost under encryption; --family shared gives the paper's three numbers.

    --holdout together with --fresh adds a promise about new inputs: with the given confidence, at least this share of
    decisions is kept, overall and by class. The promise requires rows that the model was not trained on. --holdout 0.1
    sets a random tenth of CALIB aside before the fit; `verify` finds these rows in CALIB again. --reliable 0.995
    finds on the hold-out the margin above which that share of decisions is kept; `predict` and `query` then mark each
    decision that has this margin.

    Names of features and classes, from the model or from CALIB, are kept in the fit. Later commands take the columns
    of a table by name, in any order, and show the classes by name.

    If the front of an ONNX graph can't be part of the encrypted network (convolutions, attention, encoders), it becomes
    the feature part: it runs at the client, CALIB holds raw inputs, and the rest of the graph is fitted. --split names
    the tensor to cut at, and --features-only writes the features that come out of it. --split first is for residual,
    gated and other networks that begin with a Linear layer: the polynomial is fitted on that layer to the decisions of
    the whole graph, as onnxruntime computes them.

    Example: quad4fhe fit model.onnx calib.npz -o fit.safetensors --test test.npz
    quad4fhe fit model.npz calib.csv --target-agreement 0.99
    quad4fhe fit model.npz calib.csv --family unitwise --degree 4

    Exit 1: the target is not reached, or the regime has no solution; nothing is written
    """
    from quad4fhe import fit
    from quad4fhe.fitting.result import check_fit_path
    from quad4fhe.fitting.warnings import is_lossy

    if features_only is None:
        check_fit_path(out)  # fail before the work, not after it
    names: dict[str, Any] = {
        "family": family,
        "degree": int(degree) if degree != "auto" else degree,
        "regime": regime,
        "threshold": threshold,
        "pool": pool,
    }
    with at_work() as progress:
        mlp = load_model("fit", model, calib, test, activation=activation, binary=binary, split=split)
        if features_only is not None:
            _write_features(mlp, calib, features_only, json)
            return
        fitted = fit(
            mlp,
            calib,
            cost=cost,
            polish=polish,
            target_agreement=target_agreement,
            seed=seed,
            X_test=test,
            holdout=None if holdout is None else rows_or_share(holdout),
            confidence=confidence,
            fresh=fresh,
            reliable=reliable,
            workers=workers,
            memory=memory,
            label_column=label_column,
            insist=insist,
            progress=progress,
            **names,
        )
        fitted.save(out)
    if json:
        print_json({**fitted.to_dict(), "file": str(out), "model_notes": list(mlp.notes)})
        return
    print_table(
        "fit", [*(("model", note) for note in mlp.notes), *fitted.summary(), ("names", describe_names(fitted.names))]
    )
    if is_lossy(fitted.diagnostics.calibration):
        say(next_step(context, fitted))
    say(f"Written to {out}. Recheck it with: quad4fhe verify {quote(str(out))} {quote(str(calib))}")


def next_step(context: typer.Context, fitted: Fit) -> str:
    """What to try where many decisions are lost, with the command that does it."""
    lost = f"{100 * (1 - fitted.diagnostics.calibration.agreement):.1f}% of the decisions are lost"
    if fitted.family == SHARED and context.params["family"] == SHARED:
        return f"{lost}. Other families keep more at the same cost: {again(context, drop=('family', 'regime'))}"
    higher = next((degree for degree in (4, 6, 8) if degree > fitted.degree), None)
    if higher is None:
        return f"{lost}. This is the highest degree: more calibration rows may keep more."
    command = again(context, drop=("regime", "threshold", "cost", "target_agreement"), degree=higher)
    return f"{lost}. More calibration rows may keep more, and so does a higher degree, at a higher cost: {command}"


def describe_names(names: Names) -> str:
    """Which names the fit holds, in words."""
    features = "columns by name" if names.features is not None else "no feature names: the order of columns counts"
    if names.classes is None:
        return f"{features}; classes by number"
    shown = ", ".join(names.classes[:6]) + (", ..." if len(names.classes) > 6 else "")
    return f"{features}; classes {shown}"


def _write_features(mlp: MLP, calib: Path, out: Path, json: bool) -> None:
    from quad4fhe.raw import samples_for, write_features

    if mlp.feature_part is None:
        raise InputError("the model has no feature part, because all of it can be encrypted; leave --features-only out")
    features, y = samples_for(mlp, calib, "calibration")
    write_features(out, features, y)
    n, d = features.shape
    if json:
        print_json({"file": str(out), "samples": n, "features": d, "feature_part": mlp.feature_part.sha256})
        return
    say(f"{n} samples with {d} features each are in {out}; every command takes it instead of the raw inputs.")


def rows_or_share(text: str) -> Path | float:
    """The value of --holdout: a share such as 0.1, or a file."""
    try:
        return float(text)
    except ValueError:
        return Path(text)
