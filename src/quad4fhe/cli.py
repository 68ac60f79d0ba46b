"""The command line: parses, calls the API, prints. Every decision is taken elsewhere.

Exit codes: 0 success, 1 the answer is no (a certificate that fails, a target not reached), 2 bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import quad4fhe
from quad4fhe._terminal import Reporter
from quad4fhe.data.files import read_samples
from quad4fhe.errors import CertificateError, FitError, Quad4FHEError, TargetNotReachedError
from quad4fhe.fit import Fit, fit
from quad4fhe.fit.result import check_fit_path
from quad4fhe.mlp import MLP

app = typer.Typer(
    name="quad4fhe",
    help="Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_ANSWER_IS_NO = (CertificateError, FitError, TargetNotReachedError)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
ModelFile = Annotated[
    Path, typer.Argument(help="The model: .npz, .safetensors, .onnx, .pt or .pth.", show_default=False)
]
CalibFile = Annotated[
    Path, typer.Argument(help="Calibration data: .npz (X), .npy, .csv or .parquet.", show_default=False)
]
FitFile = Annotated[Path, typer.Argument(help="A fit file made by `quad4fhe fit`.", show_default=False)]


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


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions."""
    if version:
        typer.echo(f"quad4fhe {quad4fhe.__version__}")
        raise typer.Exit


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
    seed: Annotated[int, typer.Option(help="Seed of the polish and the folds.")] = 2026,
    json: JsonFlag = False,
) -> None:
    """Replace the ReLU of MODEL by a quadratic that keeps its decisions on CALIB, with a certificate."""
    check_fit_path(out)  # before the work, not after it
    with Reporter() as progress:
        mlp = MLP.load(model)
        X_cal, _ = read_samples(calib, "calibration")
        X_test = None if test is None else read_samples(test, "test")[0]
        fitted = fit(
            mlp,
            X_cal,
            family=family.value,
            regime=regime.value,
            threshold=threshold.value,
            polish=polish,
            target_agreement=target_agreement,
            seed=seed,
            X_test=X_test,
            progress=progress,
        )
        fitted.save(out)
    if json:
        _print_json({**fitted.to_dict(), "file": str(out)})
        return
    _print_table("fit", fitted.summary())
    _say(f"Written to {out}. Recheck it with: quad4fhe verify {out} {calib}")


@app.command("verify")
def verify_command(
    fit_file: FitFile,
    calib: CalibFile,
    model: Annotated[Path | None, typer.Option(help="Also check that the fit was made for this model.")] = None,
    json: JsonFlag = False,
) -> None:
    """Recheck the certificate of FIT_FILE against its calibration data, exactly and without the solvers."""
    with Reporter() as progress:
        fitted = Fit.load(fit_file)
        mlp = None if model is None else MLP.load(model)
        X_cal, _ = read_samples(calib, "calibration")
        verified = quad4fhe.verify(fitted, mlp, X_cal, progress)
    if json:
        _print_json(msgspec.to_builtins(verified))
        return
    _print_table("certificate holds", describe_verified(verified))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the demo writes its files.")] = Path("demo"),
    json: JsonFlag = False,
) -> None:
    """Train a small classifier on data that comes with scikit-learn, replace its ReLU, and verify the result."""
    from quad4fhe.demo import run_demo

    with Reporter() as progress:
        shown = run_demo(folder, progress)
    if json:
        document = {"fit": shown.fit.to_dict(), "verified": msgspec.to_builtins(shown.verified)}
        accuracy = {"relu": shown.relu_accuracy, "quadratic": shown.quadratic_accuracy}
        _print_json({**document, "accuracy": accuracy, "files": {k: str(v) for k, v in shown.files.items()}})
        return
    _say("A classifier with 64 ReLU units was trained on the breast-cancer data; each ReLU became one quadratic.")
    _print_table("fit", shown.fit.summary())
    _print_table("certificate holds", describe_verified(shown.verified))
    accuracies = (shown.relu_accuracy, shown.quadratic_accuracy)
    _say("Test accuracy: {:.2%} with ReLU, {:.2%} with the quadratic.".format(*accuracies))
    files = shown.files
    _say(f"Try it yourself: quad4fhe fit {files['model']} {files['calibration']} --test {files['test']}")


def describe_verified(verified: quad4fhe.Verified) -> list[tuple[str, str]]:
    """A successful check in words."""
    kept = f"{verified.samples - verified.mismatches} of {verified.samples} decisions kept"
    meaning = {"lossless": "every calibration decision is kept, exactly", "measured": "the mismatches are as listed"}
    exact = f"{verified.rational} decisions needed exact arithmetic, the others are certain by an error bound"
    lines = [("statement", f"{verified.statement}: {meaning[verified.statement]}"), ("kept", kept), ("how", exact)]
    if verified.impossible:
        rows = len(verified.weights)
        lines.append(("impossible", f"no shared quadratic keeps all: {rows} rows contradict each other exactly"))
    return lines


def _print_table(title: str, lines: list[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    console.print()


def _say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def _print_json(document: Any) -> None:
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error a user can cause is one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Quad4FHEError as error:
        return _fail(str(error), 1 if isinstance(error, _ANSWER_IS_NO) else 2, "--json" in words)
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", 130, "--json" in words)
    except Exception as error:
        # Typer reports what it could not parse with its own classes, whose package depends on its version.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        return _fail(f"{show()} (see quad4fhe --help)", 2, "--json" in words)


def _fail(message: str, code: int, json: bool) -> int:
    if json:
        _print_json({"error": message, "exit_code": code})
    sys.stderr.write(f"quad4fhe: {' '.join(message.split())}\n")
    return code


def entry_point() -> None:
    """What the installed command runs."""
    sys.exit(main())
