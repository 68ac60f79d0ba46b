"""`quad4fhe bench`: the paper's encrypted experiments on your model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quad4fhe.cli.options import CalibFile, JsonFlag, LabelOption, ModelFile, load_model, model_columns
from quad4fhe.cli.terminal import at_work, count, print_json, say
from quad4fhe.errors import InputError

if TYPE_CHECKING:
    from quad4fhe_reproduce.ciphertexts import Outcome

_TITLES = {"sweep": "Precision sweep, the paper's circuit", "minimum": "Minimum feasible configuration"}


def bench_command(
    model: ModelFile,
    calib: CalibFile,
    test: Annotated[Path, typer.Option(help="Test data (X, optionally y) to run encrypted.")],
    samples: Annotated[int, typer.Option(help="How many test samples to run in each configuration.", min=1)] = 32,
    sweep: Annotated[bool, typer.Option(help="Run the precision sweep: log2(scale) from 25 to 45.")] = True,
    minimum: Annotated[bool, typer.Option(help="Find the smallest feasible configuration, down to N = 2^12.")] = True,
    label_column: LabelOption = None,
    json: JsonFlag = False,
) -> None:
    """Run the paper's encrypted experiments on MODEL.

    Runs the paper's circuit for Square, Quad and Remez, and the folded circuit of this library: the precision of each
    by scale, and the smallest parameters at which it works. This takes minutes; --samples limits it.

    Example: quad4fhe bench model.onnx calib.npz --test test.npz --samples 8 --no-sweep
    """
    import numpy as np

    from quad4fhe import fit
    from quad4fhe._arrays import samples as checked_samples
    from quad4fhe.raw import samples_for
    from quad4fhe_reproduce import ciphertexts

    if not (sweep or minimum):
        raise InputError("--no-sweep and --no-minimum together leave nothing to run; drop one of them")
    with at_work() as progress:
        mlp = load_model("bench", model, calib, test)
        named = model_columns(mlp, calib, label_column)
        X_cal, _ = samples_for(mlp, calib, "calibration", named)
        X_test, y_test = samples_for(mlp, test, "test", named)
        checked_samples("X_test", X_test, mlp.features)
        X, y = np.asarray(X_test[:samples], dtype=np.float64), None if y_test is None else y_test[:samples]
        fitted = fit(mlp, X_cal, polish=False, progress=progress, family="shared")
        shown = ciphertexts.schemes(mlp, (fitted.alpha, fitted.beta, fitted.eta), X_cal)
        outcomes: dict[str, list[Outcome]] = {}
        if sweep:
            outcomes["sweep"] = ciphertexts.precision_sweep(mlp, shown, X, y, progress=progress)
        if minimum:
            paper = ciphertexts.minimum_configuration(mlp, shown, X, y, progress=progress)
            box = np.stack([np.minimum(fitted.box[0], X.min(axis=0)), np.maximum(fitted.box[1], X.max(axis=0))])
            outcomes["minimum"] = paper + ciphertexts.minimum_plan(fitted, X, y, X_cal, box)
    if json:
        print_json({name: [outcome.to_dict() for outcome in rows] for name, rows in outcomes.items()})
        return
    for name, rows in outcomes.items():
        say(f"{_TITLES[name]}, {count(len(X), 'test sample')}\n\n{ciphertexts.table(rows)}\n")
