"""`quad4fhe report`: an HTML page about a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    CalibFile,
    FitFile,
    JsonFlag,
    LabelOption,
    PrecisionOption,
    SamplesOption,
    WidenOption,
    choice,
    named_columns,
)
from quad4fhe.cli.terminal import at_work, print_json, say
from quad4fhe.errors import InputError
from quad4fhe.io.files import opened


@app.command("report")
def report_command(
    fit_file: FitFile,
    calib: CalibFile,
    test: Annotated[Path | None, typer.Option(help="Test data (X, optionally y): measured, never fitted.")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="The fit's hold-out rows: recount its promise about new inputs and show it.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write every picture as SVG and PNG to this folder.")
    ] = None,
    ladder: Annotated[
        str,
        choice(("none", "shared", "all"), "Families to fit for comparison: none, shared (seconds), all (a minute)."),
    ] = "shared",
    samples: SamplesOption = 2048,
    precision: PrecisionOption = "strict",
    widen: WidenOption = None,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...|FILE",
            help="Class names, or a text file with one per line; by default those of the fit or of the .npz data.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the name of the fit file.")] = None,
    label_column: LabelOption = None,
    json: JsonFlag = False,
) -> None:
    """Write an HTML report about FIT.

    The report shows which decisions are kept and why, agreement by class, the cost under encryption, and how to check
    all of it. The certificate is checked first; if it fails, no report is written.

    Example: quad4fhe report fit.safetensors calib.npz --test test.npz -o report.html

    Exit 1: the certificate does not hold for this data; nothing is written
    """
    from quad4fhe import Fit
    from quad4fhe.planning.costs import readable_bytes
    from quad4fhe.raw import samples_for
    from quad4fhe.report import Options, Source, check_page_path, report

    check_page_path(out)
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise InputError(f"{pictures} is a file, wanted a folder for the pictures; choose another name")
    names: dict[str, Any] = {"ladder": ladder, "precision": precision}
    with at_work() as progress:
        fitted = Fit.load(fit_file)
        named = named_columns(fitted.names, label_column)
        X_cal, _ = samples_for(fitted.mlp, calib, "calibration", named)
        X_test, y_test = (None, None) if test is None else samples_for(fitted.mlp, test, "test", named)
        made = report(
            fitted,
            X_cal,
            X_test,
            y_test,
            X_holdout=None if holdout is None else samples_for(fitted.mlp, holdout, "test", named)[0],
            classes=_class_names(classes, calib, test) if classes or not fitted.names.classes else None,
            options=Options(samples=samples, widen=widen, **names),
            source=Source(title or fit_file.stem, str(fit_file), str(calib), None if test is None else str(test)),
            progress=progress,
        )
        made.save(out)
        drawn = [] if pictures is None else made.save_pictures(pictures)
    if json:
        print_json({**made.to_dict(), "file": str(out), "picture_files": [str(path) for path in drawn]})
        return
    say(made.verdict)
    say(f"The page is in {out} ({readable_bytes(out.stat().st_size)}); open it in a browser.")
    if drawn:
        say(f"{len(drawn)} pictures are in {pictures}.")


def _class_names(given: str | None, *data: Path | None) -> list[str] | None:
    """The names given on the command line, or else those in the data files."""
    from quad4fhe.io.samples import read_class_names

    if given is None:
        return next((names for path in data if path is not None and (names := read_class_names(path))), None)
    if Path(given).is_file():
        with opened(given) as file:
            try:
                lines = file.read_text(encoding="utf-8-sig").splitlines()
            except UnicodeDecodeError:
                raise InputError("is not a text file, wanted one class name per line in UTF-8") from None
        return [line.strip() for line in lines if line.strip()]
    return [name.strip() for name in given.split(",")]
