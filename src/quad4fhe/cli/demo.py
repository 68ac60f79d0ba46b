"""`quad4fhe demo`: a first run on data that comes with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import JsonFlag
from quad4fhe.cli.terminal import at_work, count, print_json, print_table, say

if TYPE_CHECKING:
    from quad4fhe.demo import Demo


@app.command("demo")
def demo_command(
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write the demo's files.")] = Path("demo"),
    json: JsonFlag = False,
) -> None:
    """Run every step on a small example and write a report.

    Trains a classifier on the breast-cancer data of scikit-learn, replaces its ReLU, verifies the fit, classifies the
    test samples encrypted, and writes an HTML report. Model, data, fit and report stay in a folder, so that you can try
    other commands on them.

    Example: quad4fhe demo
    """
    import msgspec

    from quad4fhe.demo import run_demo

    with at_work() as progress:
        shown = run_demo(folder, progress)
    if json:
        accuracy = {"relu": shown.relu_accuracy, "encrypted": shown.encrypted_accuracy}
        print_json(
            {
                "fit": shown.fit.to_dict(),
                "verified": msgspec.to_builtins(shown.verified),
                "plan": shown.plan.to_dict(),
                "prediction": shown.prediction.to_dict(),
                "accuracy": accuracy,
                "files": {name: str(path) for name, path in shown.files.items()},
            }
        )
    else:
        _show(shown)


def _show(shown: Demo) -> None:
    from quad4fhe.fitting.summary import verdict

    say("A classifier with 64 ReLU units was trained on the breast-cancer data; one quadratic replaces every ReLU.\n")
    plan, words = shown.plan, dict(shown.prediction.summary())
    ring = f"ring N = {plan.chain.ring}, {plan.chain.bits} bits (128-bit security)"
    accuracies = f"{shown.relu_accuracy:.2%} with ReLU in the clear, {shown.encrypted_accuracy:.2%} encrypted"
    lines = [
        ("fit", verdict(shown.fit, shown.fit.diagnostics.test)),
        ("certificate", f"{shown.verified.statement}, rechecked exactly and without the solvers"),
        ("encryption", f"CKKS, layout {plan.layout}, {ring}"),
        ("encrypted run", f"{words['changed']} ({count(shown.prediction.decisions.size, 'test sample')})"),
        ("accuracy", f"{accuracies} with the quadratic"),
        ("traffic", words["traffic"]),
        ("CPU time", words["CPU time"]),
    ]
    print_table("demo", lines)
    files = {name: quote(str(path)) for name, path in shown.files.items()}
    say(f"Try it yourself: quad4fhe fit {files['model']} {files['calibration']} --test {files['test']}")
    say(f"             or: quad4fhe predict {files['fit']} {files['test']} --encrypted")
    say(f"\nThe report is {shown.files['report']}: open it in a browser.")
