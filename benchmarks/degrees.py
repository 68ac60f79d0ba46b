r"""Agreement by degree beside the cost under encryption, ours and approximations of ReLU in the same circuit.

Fits `unitwise` at several degrees to trained models, and takes least squares, Remez and OLA of the same degree as one
polynomial for all units, rounded in the same way. Every model is planned (strict) and run on test samples through SEAL;
the server's time is a ratio to the plan of the degree-2 fit in the same file. Writes JSON after every case. Degrees of
one model share what they judge by cross-validation, which changes no fit; `fit_seconds` counts it once:

    python benchmarks/degrees.py --models sst5 --degrees 2 3 4 8 --picture docs/assets/degrees.svg

Models other than those of the data folder are read from --folder, as .npz with W1, b1, W2, b2, X_cal and X_test. A
model named RECIPE-SEED that is not there, such as stanford_cars_lite0-2027, is trained first, with width 256 by the
recipe of the `reproduce` package; this needs torch. Agreement over five trainings, without encryption:

    python benchmarks/degrees.py --models sst5-2026 sst5-2027 ... --methods unitwise --degrees 4 --samples 0 \
        --folder models --out benchmarks/degrees_seeds.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from compact import write
from machine import describe
from quad4fhe import MLP, Client, fit, plan
from quad4fhe.fitting import ladder as degrees_fitting
from quad4fhe.fitting.basis import Basis
from quad4fhe.fitting.rounding import GRID, Units, rounded_units
from quad4fhe.fitting.select import Judged, Selection, judged_rows
from quad4fhe.he.session import Server
from quad4fhe.mlp import decide
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.report.preactivations import preactivations
from quad4fhe_reproduce.baselines.least_squares import least_squares
from quad4fhe_reproduce.baselines.ola import ola_of
from quad4fhe_reproduce.baselines.remez import remez

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
BASELINES = ("least squares", "remez", "ola")


def load(name: str, folder: Path) -> tuple[MLP, Any, Any]:
    """A trained model with its calibration and test samples."""
    path = DATA / "models" / f"{name}.npz"
    if not path.exists():
        path = folder / f"{name}.npz"
    if not path.exists():
        recipe_name, _, seed = name.rpartition("-")
        train_model(recipe_name, int(seed), path)
    with np.load(path) as z:
        return MLP(z["W1"], z["b1"], z["W2"], z["b2"]), z["X_cal"], z["X_test"]


def train_model(name: str, seed: int, path: Path) -> None:
    """Train width 256 by a recipe, and keep it with its samples."""
    from quad4fhe_reproduce.prepare import prepare
    from quad4fhe_reproduce.recipes import recipe
    from quad4fhe_reproduce.train import train

    found = recipe(name)
    parts = prepare(found, DATA, seed, pool=False)
    mlp, _ = train(parts, found.training, 256, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"W1": mlp.W1, "b1": mlp.b1, "W2": mlp.W2, "b2": mlp.b2, "X_cal": parts.X_cal, "X_test": parts.X_test}
    np.savez(path, **arrays)


def approximation(name: str, degree: int, mlp: MLP, X: Any) -> PolynomialModel:
    """A polynomial that approximates ReLU on the calibration pre-activations, for all units, rounded alike."""
    seen = preactivations(mlp, X)
    if name == "ola":
        polynomial = ola_of(degree, seen)
    else:
        polynomial = (least_squares if name == "least squares" else remez)(degree, seen.lo, seen.hi)
    rows = X[np.random.default_rng(2026).permutation(len(X))[:5000]]
    basis = Basis.of(mlp, rows, degree, pooled=True)
    y = np.linspace(seen.lo, seen.hi, 4001)
    one = MLP(np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    single = Basis(*(each[..., :1] for each in (basis.mean, basis.spread, basis.centre, basis.back, basis.scale)))
    F = single.features(one.hidden(y[:, None])).astype(np.float64)
    size = np.abs(F).max(axis=0)
    own = np.linalg.lstsq(np.column_stack([np.ones(y.size), F / size]), polynomial(y), rcond=None)[0]
    coefficients = np.repeat((own[1:] / size)[:, None], mlp.units, axis=1)
    units = Units.of(np.full(mlp.units, seen.lo), np.full(mlp.units, seen.hi))
    return rounded_units(mlp, units, basis, coefficients, mlp.b2 + own[0] * mlp.head_sums, GRID[1])


def encrypted(model: Any, X: Any, Xt: Any, samples: int) -> dict[str, Any]:
    """Plan, run on test samples, and compare with the same model in the clear."""
    logits = np.sort(model.logits(X), axis=1)
    margins = np.abs(logits[:, 0]) if model.outputs == 1 else logits[:, -1] - logits[:, -2]
    box = np.stack([X.min(axis=0), X.max(axis=0)]).astype(np.float64)
    subject = SimpleNamespace(model=model, model_id=model.sha256, box=box, margins=margins)
    made = plan(subject, samples=samples, X=X, layout="batch", replies="plain")
    client, server = Client(made), Server(subject, made)
    server.warm_up()
    changed, seen, times = 0, 0, []
    inside = np.clip(Xt[:samples].astype(np.float64), box[0], box[1])
    for start in range(0, len(inside), made.per_request):
        part = inside[start : start + made.per_request]
        t0 = time.process_time()
        request = client.encrypt(part)
        encrypted_in = time.process_time() - t0
        if not start:
            server.answer(request)  # the first one pays for fresh memory
        t1 = time.process_time()
        reply = server.answer(request)
        t2 = time.process_time()
        found = client.read(reply)
        times.append((t2 - t1, encrypted_in, time.process_time() - t2))
        changed += int(np.count_nonzero(decide(found) != model.decide(part)))
        seen += len(part)
    server_us, encrypt_us, decrypt_us = (1e6 * min(column) / made.per_request for column in zip(*times, strict=True))
    return {
        "ring": made.chain.ring,
        "primes": len(made.chain.primes),
        "bits": made.chain.bits,
        "close": len(made.error.close),
        "changed": changed,
        "samples": seen,
        "server_us": server_us,
        "client_us": encrypt_us + decrypt_us,
        "up_bytes": made.forecast.upload_bytes / samples,
        "down_bytes": made.forecast.download_bytes / samples,
    }


class Kept(Selection):
    """A selection that judges a family once: the fits of several degrees ask for the degree below, too."""

    made: ClassVar[dict[Any, Kept]] = {}

    def judge(self, family: str) -> Judged:
        """The judgement, made when first asked for."""
        return self.judged[family] if family in self.judged else super().judge(family)


def selection(mlp: MLP, X: Any, decided: Any, degree: int, **options: Any) -> Kept:
    """The selection of one degree, made when first asked for; others with the same rows and folds are equal to it."""
    highest = max(degree, options.get("highest") or 0)
    key = degree, bool(options.get("pooled")), options["seed"], judged_rows(highest * mlp.units * mlp.outputs, len(X))
    if key not in Kept.made:
        Kept.made[key] = Kept(mlp, X, decided, degree, **options)
    return Kept.made[key]


def measure(
    name: str, subject: tuple[MLP, Any, Any], method: str, degree: int, seed: int, samples: int
) -> dict[str, Any]:
    """One model, in the clear and encrypted."""
    mlp, X, Xt = subject
    start, extra = time.process_time(), {}
    if method in BASELINES:
        model = approximation(method, degree, mlp, X)
    else:
        fitted = fit(mlp, X, family=method, degree=degree, seed=seed)
        model = fitted.model
        extra = {"taken": fitted.degree, "regime": str(fitted.regime)}
    seconds = time.process_time() - start
    return {
        "model": name,
        "method": method,
        "degree": degree,
        "seed": seed,
        **extra,
        "test": float(np.mean(model.decide(Xt) == mlp.decide(Xt))),
        "calibration": float(np.mean(model.decide(X) == mlp.decide(X))),
        "fit_seconds": round(seconds, 1),
        "encrypted": encrypted(model, X, Xt, min(samples, len(Xt))) if samples else None,
    }


def main() -> None:
    """Run what is not yet in the file, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--folder", type=Path, default=DATA / "models")
    parser.add_argument("--models", nargs="+", default=["sst5"])
    parser.add_argument("--methods", nargs="+", default=["unitwise", *BASELINES])
    parser.add_argument("--degrees", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--samples", type=int, default=10**6, help="test samples that are encrypted; 0 for none")
    parser.add_argument("--picture", type=Path, help="also draw the first of the models, as .svg; needs matplotlib")
    options = parser.parse_args()
    document: dict[str, Any] = {"results": []}
    if options.out.exists():
        document = json.loads(options.out.read_text())
    known = {(r["model"], r["method"], r["degree"], r["seed"]) for r in document["results"]}
    degrees_fitting.Selection = selection  # type: ignore[assignment,misc] # see Kept
    for name in options.models:
        cases = [(method, degree) for method in options.methods for degree in options.degrees]
        wanted = [case for case in cases if (name, *case, options.seed) not in known]
        Kept.made.clear()
        for method, degree in wanted:
            subject = load(name, options.folder)
            document["machine"] = describe("seal-python")
            case = measure(name, subject, method, degree, options.seed, options.samples)
            document["results"].append(case)
            write(options.out, document)
            print(case, flush=True)
    table(document["results"])
    trainings(document["results"])
    if options.picture is not None:
        picture(document["results"], options.models[0], options.picture)


def picture(results: list[dict[str, Any]], model: str, path: Path) -> None:
    """Decisions lost against server time, both on logarithmic axes, one line for each method."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "degrees"
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogFormatter

    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for method, marker in (("unitwise", "o"), ("head", "D"), ("ola", "s"), ("remez", "^"), ("least squares", "v")):
        rows = [r for r in results if (r["model"], r["method"]) == (model, method) and r["encrypted"]]
        if not rows:
            continue
        rows.sort(key=lambda r: r["degree"])
        x, y = [r["encrypted"]["server_us"] for r in rows], [100 * (1 - r["test"]) for r in rows]
        axes.plot(x, y, marker=marker, label=method)
        for r, at in zip(rows, zip(x, y, strict=True), strict=True):
            axes.annotate(str(r["degree"]), at, textcoords="offset points", xytext=(5, 4), fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="server, microseconds of CPU a slot", ylabel="test decisions lost, %")
    axes.set_title(f"{model}: decisions lost against server time, by degree", fontsize=10)
    for axis in (axes.xaxis, axes.yaxis):  # 60 instead of 6 x 10^1
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def table(results: list[dict[str, Any]]) -> None:
    """Agreement and cost, the server's time over that of unitwise degree 2 of the same model."""
    first = {r["model"]: r["encrypted"] for r in results if (r["method"], r["degree"]) == ("unitwise", 2)}
    print("| model | method | degree | test | changed | server / degree 2 | bits | fit, CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for r in results:
        run, base = r["encrypted"], first.get(r["model"])
        ratio = f"{run['server_us'] / base['server_us']:.2f}" if run and base else ""
        shown = (f"{run['changed']} of {run['samples']}", ratio, str(run["bits"])) if run else ("", "", "")
        cells = (r["model"], r["method"], r["degree"], f"{100 * r['test']:.2f}", *shown, r["fit_seconds"])
        print(f"| {' | '.join(map(str, cells))} |")


def trainings(results: list[dict[str, Any]]) -> None:
    """The mean over several trainings of a model, with its standard error, and the fewest and most CPU seconds."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for r in results:
        name, _, seed = r["model"].rpartition("-")
        if seed.isdigit():
            groups.setdefault((name, r["method"], r["degree"]), []).append(r)
    several = {key: runs for key, runs in sorted(groups.items()) if len(runs) > 1}
    if several:
        print("\n| set | method | degree | trainings | test | lowest | fit, CPU s |\n|---|---|---|---|---|---|---|")
    for (name, method, degree), runs in several.items():
        kept = 100 * np.array([r["test"] for r in runs])
        error, seconds = kept.std(ddof=1) / np.sqrt(kept.size), [r["fit_seconds"] for r in runs]
        shown = f"{kept.mean():.2f} ± {error:.2f} | {kept.min():.2f} | {min(seconds):.0f} to {max(seconds):.0f}"
        print(f"| {name} | {method} | {degree} | {kept.size} | {shown} |")


if __name__ == "__main__":
    main()
