"""Our own fits: the paper's quadratic, the polished one, and if asked the best family and one of another degree."""

from __future__ import annotations

from functools import partial

from quad4fhe.fitting import fit
from quad4fhe.polynomial import PolynomialModel
from quad4fhe_reproduce.baselines.problem import Baseline, Problem


def _fit(problem: Problem) -> dict[str, PolynomialModel]:
    fitted = partial(fit, problem.mlp, problem.X_cal, seed=problem.seed, progress=problem.progress)
    paper, polished = fitted(family="shared", polish=False), fitted(family="shared")
    out = {"Quad": paper.model}
    if polished.model.sha256 != paper.model.sha256:
        out["Quad+polish"] = polished.model
    if problem.auto:
        best = fitted(family="auto")
        out[f"auto:{best.family}"] = best.model
    if problem.degree is not None:
        best = fitted(family="unitwise", degree=problem.degree)
        out[f"unitwise-{best.degree}"] = best.model
    return out


BASELINE = Baseline("quadratics fitted to the model's decisions", ("Quad", "Quad+polish"), _fit, published=False)
