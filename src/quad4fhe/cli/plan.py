"""`quad4fhe plan`: every encryption parameter, and the cost."""

from __future__ import annotations

from quad4fhe.cli.app import app
from quad4fhe.cli.options import (
    Box,
    BoxOption,
    CalibOption,
    FitFile,
    JsonFlag,
    LayoutOption,
    PlanClipFlag,
    PrecisionOption,
    RepliesOption,
    SamplesOption,
    WidenOption,
    plan_options,
)
from quad4fhe.cli.terminal import at_work, print_json, say


@app.command("plan")
def plan_command(
    fit_file: FitFile,
    samples: SamplesOption = 2048,
    layout: LayoutOption = "auto",
    precision: PrecisionOption = "strict",
    replies: RepliesOption = "private",
    box: BoxOption = None,
    widen: WidenOption = None,
    clip: PlanClipFlag = False,
    calib: CalibOption = None,
    json: JsonFlag = False,
) -> None:
    """Choose every encryption parameter for FIT and forecast the cost.

    Ring, primes, scales and layout follow from the fit's margins and the range of its inputs; time and bytes are
    forecast for a reference machine. --calib bounds the error on the samples themselves: cheaper parameters then do.
    All layouts are compared in one table, and the cheapest that keeps every decision is taken. --json prints the plan
    that `serve`, `query` and `predict` take.

    Encrypted inputs must lie inside a box: the calibration range, widened by half of it on both sides. The output shows
    how many bits that costs. --widen and --box choose another box.

    Example: quad4fhe plan fit.safetensors --samples 2048 --calib calib.npz
    quad4fhe plan fit.safetensors --layout lift --json > plan.json
    quad4fhe plan fit.safetensors --box limits.csv --clip
    """
    from quad4fhe import Fit, describe, plan
    from quad4fhe.layouts.planner import plans
    from quad4fhe.planning.describe import table

    with at_work() as progress:
        progress("plan", 0, 0)
        fitted = Fit.load(fit_file)
        options = plan_options(fitted, samples, precision, Box(box, widen, clip), calib, replies)
        found = plans(fitted, **options) if layout == "auto" else [plan(fitted, layout=layout, **options)]
    if json:
        print_json(found[0].to_dict())
        return
    say(describe(found[0]))
    if len(found) > 1:
        say(f"\nthe layouts compared, best first, for {samples} sample{'s' if samples > 1 else ''}:\n{table(found)}")
