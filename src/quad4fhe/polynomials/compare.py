"""Every way of replacing ReLU, ours among them, in one call.

Decides which of our own fits stand beside the published baselines. Measuring is left to `measure`.
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from quad4fhe._progress import Progress, silent
from quad4fhe._threads import few_threads
from quad4fhe.fitting import Fit, fit
from quad4fhe.mlp import MLP
from quad4fhe.polynomials.comparison import Comparison
from quad4fhe.polynomials.measure import measure


@few_threads()
def compare(
    mlp: MLP,
    X_cal: ArrayLike,
    X_test: ArrayLike,
    y_test: ArrayLike | None = None,
    *,
    fits: Mapping[str, Fit] | None = None,
    auto: bool = False,
    seed: int = 2026,
    progress: Progress = silent,
) -> Comparison:
    """Measure the ReLU model, the published baselines and our fits side by side on the same samples.

    Everything is fitted on X_cal alone. The result prints as a table.

    Parameters
    ----------
    mlp
        The trained classifier.
    X_cal
        Calibration samples (n, d).
    X_test
        Test samples (n, d).
    y_test
        Class ids 0 to K-1 of the test samples; they add accuracy and F1.
    fits
        The fits to show, by name; by default the paper's own (Quad) and, where it differs, the polished one.
    auto
        Also fit the family that cross-validates best, which takes longer.
    seed
        Seed of the fits.
    progress
        Progress callback (what, done, total).
    """
    if fits is None:
        paper = fit(mlp, X_cal, polish=False, seed=seed, progress=progress)
        ours = fit(mlp, X_cal, seed=seed, progress=progress)
        fits = {"Quad": paper}
        if ours.model.sha256 != paper.model.sha256:
            fits["Quad+polish"] = ours
        if auto:
            best = fit(mlp, X_cal, family="auto", seed=seed, progress=progress)
            fits[f"auto:{best.family}"] = best
    models = {name: fitted.model for name, fitted in fits.items()}
    return measure(mlp, X_cal, X_test, y_test, replacements=models, progress=progress)
