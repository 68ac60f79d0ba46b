"""The command that shows: report. It parses, calls the API and prints."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quad4fhe._files import opened
from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import CalibFile, FitFile, JsonFlag, app, print_json, say
from quad4fhe.cli.encrypted import PrecisionName, PrecisionOption, WidenOption
from quad4fhe.errors import InputError


class LadderName(StrEnum):
    """How many rungs of the family ladder are fitted for the page."""

    none = "none"
    shared = "shared"
    all = "all"


@app.command("report")
def report_command(
    fit_file: FitFile,
    calib: CalibFile,
    test: Annotated[Path | None, typer.Option(help="Test data (X, optional y), measured but never fitted.")] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="The fit's hold-out rows: count its promise again and show it.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, typer.Option(help="Also write every picture as SVG and PNG into this folder.")
    ] = None,
    ladder: Annotated[
        LadderName,
        typer.Option(help="Families to fit for comparison: none, the shared ones (seconds), or all (up to a minute)."),
    ] = LadderName.shared,
    samples: Annotated[int, typer.Option(help="How many samples the batch plan is to score together.")] = 2048,
    precision: PrecisionOption = PrecisionName.strict,
    widen: WidenOption = 0.0,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Class names: a,b,c or a text file with one a line. By default `classes` of the .npz data, or numbers."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page; by default the fit file's name.")] = None,
    json: JsonFlag = False,
) -> None:
    """Write one page about FIT: what was kept and why, by class, at what encrypted cost, and how to check it.

    The certificate is checked first; a page about a fit whose certificate fails is not written (exit code 1).

    Example: quad4fhe report fit.safetensors calib.npz --test test.npz -o report.html
    """
    from quad4fhe import Fit, read_samples
    from quad4fhe.circuit.forecast import readable_bytes
    from quad4fhe.report import Options, Source, check_page_path, report

    check_page_path(out)
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise InputError(f"{pictures} is a file, wanted a folder for the pictures; choose another name")
    with Reporter() as progress:
        fitted = Fit.load(fit_file)
        X_cal, _ = read_samples(calib, "calibration")
        X_test, y_test = (None, None) if test is None else read_samples(test, "test")
        made = report(
            fitted,
            X_cal,
            X_test,
            y_test,
            X_holdout=None if holdout is None else read_samples(holdout, "test")[0],
            classes=_names(classes, calib, test),
            options=Options(ladder=ladder.value, samples=samples, precision=precision.value, widen=widen),
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


def _names(given: str | None, *data: Path | None) -> list[str] | None:
    """The class names that were asked for, or those that the data files hold."""
    from quad4fhe.data.files import read_class_names

    if given is None:
        return next((names for path in data if path is not None and (names := read_class_names(path))), None)
    if Path(given).is_file():
        with opened(given) as file:
            try:
                lines = file.read_text(encoding="utf-8-sig").splitlines()
            except UnicodeDecodeError:
                raise InputError("is not a text file, wanted one class name a line in UTF-8") from None
        return [line.strip() for line in lines if line.strip()]
    return [name.strip() for name in given.split(",")]
