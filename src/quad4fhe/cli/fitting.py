"""Commands on plaintext: fit, verify, compare, demo. They parse, call the API and print."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

import quad4fhe
from quad4fhe._files import check_place
from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import (
    CalibFile,
    FitFile,
    JsonFlag,
    ModelFile,
    app,
    at_work,
    print_json,
    print_table,
    say,
    write_text,
)


class EngineName(StrEnum):
    """Where work can be shared out."""

    local = "local"
    ray = "ray"


EngineOption = Annotated[
    EngineName | None, typer.Option(help="Share the work out among processes: local, or on Ray.", show_default=False)
]
WorkersOption = Annotated[
    int | None, typer.Option(help="How many processes; as many as there are cores if not given.", min=1)
]


class FamilyName(StrEnum):
    """The families that can be asked for."""

    shared = "shared"
    unitwise = "unitwise"
    head = "head"
    auto = "auto"


class RegimeName(StrEnum):
    """The regimes that can be asked for."""

    auto = "auto"
    hard = "hard"
    rch = "rch"
    soft = "soft"


class ThresholdName(StrEnum):
    """Where a binary decision may be taken."""

    zero = "zero"
    free = "free"


@app.command("fit")
def fit_command(
    model: ModelFile,
    calib: CalibFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the fit.")] = Path("fit.safetensors"),
    test: Annotated[Path | None, typer.Option(help="Test data, measured but never fitted.")] = None,
    family: Annotated[
        FamilyName, typer.Option(help="One quadratic for all, one per hidden unit, a free head, or the best of them.")
    ] = FamilyName.shared,
    regime: Annotated[RegimeName, typer.Option(help="The cascade, or one regime of it.")] = RegimeName.auto,
    threshold: Annotated[ThresholdName, typer.Option(help="Keep zero as the binary threshold, or free it.")] = (
        ThresholdName.zero
    ),
    polish: Annotated[bool, typer.Option(help="Let a soft fit trade hinge loss for kept decisions.")] = True,
    target_agreement: Annotated[
        float | None, typer.Option(help="Exit 1, and write nothing, if less than this share is kept.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the polish, the folds and the split.", min=0)] = 2026,
    holdout: Annotated[
        str | None,
        typer.Option(help="Rows for a promise about new inputs: a file, or the share of CALIB to set aside, as 0.1."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Your word that the ReLU model has not seen the hold-out rows, or without any, CALIB."
        ),
    ] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of the promise.")] = 0.95,
    reliable: Annotated[
        float | None, typer.Option(help="Find the margin above which this share of decisions is kept, such as 0.995.")
    ] = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Stay within this, such as 512MB, in all processes; .npy and .parquet are read by parts."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Replace the ReLU of MODEL by a quadratic that keeps its decisions.

    The decisions to keep are the model's own on CALIB, the calibration data; labels in it are not used. The result is
    one file with the polynomial model, how it was found, and a certificate: lossless (every decision is kept, exactly),
    or measured (which ones are lost, and where none could do better, the samples that prove it). --family auto goes
    beyond one shared quadratic and often keeps more, at the same cost under encryption.

    --holdout with --fresh adds a promise about new inputs: at least so many decisions are kept, with the confidence
    given, overall and by class. It holds only for rows that the ReLU model was not trained on. --holdout 0.1 sets a
    tenth of CALIB aside before the fit, by a plain random split; verify finds these rows in CALIB by itself. --fresh
    alone says that the model was not trained on CALIB: then a hard fit makes a promise without a hold-out.
    --reliable 0.995 finds on the hold-out the margin above which that share of decisions is kept; `predict` and `query`
    then say of each decision whether it has it.

    Example: quad4fhe fit model.onnx calib.npz -o fit.safetensors --test test.npz
    quad4fhe fit model.npz calib.csv --family auto --target-agreement 0.99

    Exit 1: the target is not reached, or the regime that was asked for has no solution; nothing is written
    """
    from quad4fhe import MLP, fit
    from quad4fhe.fitting.result import check_fit_path

    check_fit_path(out)  # before the work, not after it
    with at_work() as progress:
        mlp = MLP.load(model)
        fitted = fit(
            mlp,
            calib,
            family=family.value,
            regime=regime.value,
            threshold=threshold.value,
            polish=polish,
            target_agreement=target_agreement,
            seed=seed,
            X_test=test,
            holdout=None if holdout is None else rows_or_share(holdout),
            confidence=confidence,
            fresh=fresh,
            reliable=reliable,
            engine=engine,
            workers=workers,
            memory=memory,
            progress=progress,
        )
        fitted.save(out)
    if json:
        print_json({**fitted.to_dict(), "file": str(out)})
        return
    print_table("fit", fitted.summary())
    say(f"Written to {out}. Recheck it with: quad4fhe verify {out} {calib}")


@app.command("verify")
def verify_command(
    fit_file: FitFile,
    calib: CalibFile,
    model: Annotated[Path | None, typer.Option(help="Also check that the fit was made for this model.")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="Also recount the promise about new inputs on its hold-out rows.")
    ] = None,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    json: JsonFlag = False,
) -> None:
    """Recheck the certificate of FIT, exactly and without the solvers.

    CALIB must be the data the fit was made on: the certificate names its SHA-256. What floating point can't settle is
    decided in whole numbers, so the answer does not depend on the machine. Every figure that is printed was computed by
    the check; what a file says of its own making (regime, seed, diagnostics) is not checked and not printed.

    Example: quad4fhe verify fit.safetensors calib.npz --model model.onnx

    Exit 1: the certificate does not hold for this data or model, or the file was changed
    """
    from quad4fhe import MLP, Fit

    with at_work() as progress:
        fitted = Fit.load(fit_file)
        mlp = None if model is None else MLP.load(model)
        verified = quad4fhe.verify(fitted, mlp, calib, progress, X_holdout=holdout, engine=engine, workers=workers)
    if json:
        print_json(msgspec.to_builtins(verified))
        return
    print_table("certificate holds", describe_verified(verified))


@app.command("compare")
def compare_command(
    model: ModelFile,
    calib: CalibFile,
    test: Annotated[Path, typer.Option(help="Test data (X, optional y) on which everything is measured.")],
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Also fit the family that cross-validates best.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the polish.")] = 2026,
    json: JsonFlag = False,
) -> None:
    """Show what each way of replacing ReLU keeps of MODEL, and its cost.

    One row for each of Square, least squares, Remez, OLA, Precise and the fitted quadratics: agreement with the ReLU
    model, accuracy where there are labels, degree and depth.

    Example: quad4fhe compare model.onnx calib.npz --test test.npz --csv table.csv
    """
    from quad4fhe import MLP, read_samples
    from quad4fhe.polynomials import comparison_table

    if csv is not None:
        check_place(csv)
    with Reporter() as progress:
        mlp = MLP.load(model)
        X_cal, _ = read_samples(calib, "calibration")
        X_test, y_test = read_samples(test, "test")
        comparison = quad4fhe.compare(mlp, X_cal, X_test, y_test, auto=auto, seed=seed, progress=progress)
    if csv is not None:
        write_text(csv, comparison.to_csv())
    if json:
        print_json(comparison.to_dict())
        return
    Console(highlight=False).print(comparison_table(comparison))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demo writes its files.")] = Path("demo"),
    json: JsonFlag = False,
) -> None:
    """Train a small classifier, replace its ReLU, verify, predict encrypted, write a page about it.

    The data comes with scikit-learn. Model, data, fit and page are left in a folder for further commands.

    Example: quad4fhe demo
    """
    from quad4fhe.demo import run_demo
    from quad4fhe.fitting.words import verdict

    with Reporter() as progress:
        shown = run_demo(folder, progress)
    if json:
        document = {"fit": shown.fit.to_dict(), "verified": msgspec.to_builtins(shown.verified)}
        accuracy = {"relu": shown.relu_accuracy, "encrypted": shown.encrypted_accuracy}
        encrypted = {"plan": shown.plan.to_dict(), "prediction": shown.prediction.to_dict()}
        print_json(
            {**document, **encrypted, "accuracy": accuracy, "files": {k: str(v) for k, v in shown.files.items()}}
        )
        return
    say("A classifier with 64 ReLU units was trained on the breast-cancer data; each ReLU became one quadratic.\n")
    chain, words = shown.plan.chain, dict(shown.prediction.summary())
    accuracies = (shown.relu_accuracy, shown.encrypted_accuracy)
    lines = [
        ("fit", verdict(shown.fit, shown.fit.diagnostics.test)),
        ("certificate", f"{shown.verified.statement}, rechecked exactly and without the solvers"),
        (
            "encryption",
            f"CKKS, layout {shown.plan.layout}, ring N = {chain.ring}, {chain.bits} bits (128-bit security)",
        ),
        ("encrypted run", f"{words['changed']} ({shown.prediction.decisions.size} test samples)"),
        ("accuracy", "{:.2%} with ReLU in the clear, {:.2%} encrypted with the quadratic".format(*accuracies)),
        ("traffic", words["traffic"]),
        ("CPU time", words["CPU time"]),
    ]
    print_table("demo", lines)
    files = shown.files
    say(f"Try it yourself: quad4fhe fit {files['model']} {files['calibration']} --test {files['test']}")
    say(f"             or: quad4fhe predict {files['fit']} {files['test']} --encrypted --widen 0.5 --clip")
    say(f"\nThe page that explains it all is {files['report']}: open it in a browser.")


def rows_or_share(text: str) -> Path | float:
    """What --holdout names: a share such as 0.1, or a file."""
    try:
        return float(text)
    except ValueError:
        return Path(text)


def describe_verified(verified: quad4fhe.Verified) -> list[tuple[str, str]]:
    """A successful check in words."""
    kept = f"{verified.samples - verified.mismatches} of {verified.samples} decisions kept"
    meaning = {"lossless": "every calibration decision is kept, exactly", "measured": "the mismatches are as listed"}
    exact = f"{verified.rational} decisions needed exact arithmetic, the others are certain by an error bound"
    lines = [("statement", f"{verified.statement}: {meaning[verified.statement]}"), ("kept", kept)]
    lines += [("smallest margin", f"{verified.margin:.6g}"), ("how", exact)]
    if verified.impossible:
        rows = len(verified.weights)
        lines.append(("impossible", f"{rows} rows contradict each other exactly, so some decision must be lost"))
    return lines + ([] if verified.guarantee is None else verified.guarantee.lines())
