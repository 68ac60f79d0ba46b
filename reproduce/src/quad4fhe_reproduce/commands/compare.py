"""`quad4fhe compare`: other replacements of ReLU beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quad4fhe.cli.options import DEGREES, CalibFile, JsonFlag, LabelOption, ModelFile, choice, load_model, model_columns
from quad4fhe.cli.terminal import at_work, console, print_json
from quad4fhe.io.files import check_place, write_atomically


def compare_command(
    model: ModelFile,
    calib: CalibFile,
    test: Annotated[Path, typer.Option(help="Test data (X, optionally y) on which everything is measured.")],
    csv: Annotated[Path | None, typer.Option(help="Also write the table as CSV.")] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Also fit the family that cross-validates best.")] = False,
    degree: Annotated[
        str | None, choice(DEGREES[:-1], "Also compare at this degree: least squares, Remez, OLA and ours.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the polish.")] = 2026,
    label_column: LabelOption = None,
    json: JsonFlag = False,
) -> None:
    """Compare ways to replace ReLU: agreement, accuracy and cost.

    Prints one row for each of Square, least squares, Remez, OLA, Precise and the fitted quadratics: agreement with the
    ReLU model, accuracy if there are labels, degree and depth. With --degree, also least squares, Remez, OLA and a
    polynomial for every unit at that degree.

    Example: quad4fhe compare model.onnx calib.npz --test test.npz --csv table.csv
    """
    from quad4fhe.names import class_ids
    from quad4fhe.raw import samples_for
    from quad4fhe_reproduce.baselines import compare, comparison_table

    if csv is not None:
        check_place(csv)
    with at_work() as progress:
        mlp = load_model("compare", model, calib, test)
        named = model_columns(mlp, calib, label_column)
        X_cal, _ = samples_for(mlp, calib, "calibration", named)
        X_test, y_test = samples_for(mlp, test, "test", named)
        ids = None if y_test is None else class_ids(y_test, mlp.names, mlp.classes)
        comparison = compare(
            mlp,
            X_cal,
            X_test,
            y_test if ids is None else ids,
            auto=auto,
            degree=None if degree is None else int(degree),
            seed=seed,
            progress=progress,
        )
    if csv is not None:
        write_atomically(csv, comparison.to_csv().encode())
    if json:
        print_json(comparison.to_dict())
        return
    console().print(comparison_table(comparison))
