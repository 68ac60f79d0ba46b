"""The promise about a deployment: every hold-out row is treated as its clients treat inputs, before it is counted."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from quad4fhe import Fit, describe, fit, plan
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.proof.guarantee import HoldOut, Inputs, Terms
from support.cases import PAIRS, PAIRS_X

HELD = 2.5 * np.random.default_rng(12).normal(size=(1500, 3))  # more than the calibration rows, so many lie outside
INPUTS: tuple[Inputs, ...] = ("as given", "inside", "moved")


@cache
def made() -> Fit:
    return fit(PAIRS.mlp, PAIRS_X, holdout=HELD, fresh=True, reliable=0.8, family="shared")


def held() -> HoldOut:
    own = made().holdout
    assert own is not None
    return own


def treated(inputs: Inputs) -> tuple[Any, Any]:
    """The hold-out rows that count for such inputs: as they are, and as the polynomial sees them."""
    inside = ((held().box[0] <= HELD) & (held().box[1] >= HELD)).all(axis=1)
    assert 50 < np.count_nonzero(~inside) < 1000
    if inputs == "inside":
        return HELD[inside], HELD[inside]
    return HELD, np.clip(HELD, *held().box) if inputs == "moved" else HELD


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("error", [0.0, 0.02, 1.0])
def test_rows_are_counted_as_the_deployment_treats_them(inputs: Inputs, error: float) -> None:
    given, seen = treated(inputs)
    target, logits = made().mlp.decide(given), np.sort(made().model.logits(seen), axis=1)
    kept = (target == made().model.decide(seen)) & (logits[:, -1] - logits[:, -2] > error)
    found = held().guarantee(4, inputs, error)
    n, e = len(given), int(np.count_nonzero(~kept))
    assert (found.inputs, found.samples, found.lost, found.outside) == (
        inputs,
        n,
        e,
        len(HELD) - len(treated("inside")[0]),
    )
    assert found.agreement == pytest.approx(1 - beta.isf(0.05, e + 1, n - e), abs=2e-9)
    assert sum(part.lost for part in found.by_class) == e
    assert [part.samples for part in found.by_class] == np.bincount(target, minlength=4).tolist()


def test_each_population_has_its_own_sentence() -> None:
    said = {inputs: held().guarantee(4, inputs).sentence() for inputs in INPUTS}
    assert "decisions on new inputs are kept" in said["as given"]
    assert "on new inputs inside the range are kept" in said["inside"]
    assert "outside, refused)" in said["inside"]
    assert "on all new inputs, those outside the range moved to its edge, are kept" in said["moved"]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("replies", ["plain", "private"])
def test_a_plan_promises_what_its_clients_get(clip: bool, replies: Any) -> None:
    planned = plan(made(), samples=4, layout="lift", replies=replies, clip=clip)
    promise = planned.promise
    assert promise is not None
    assert promise.inputs == ("moved" if clip else "inside")
    assert np.array_equal(planned.domain.box, held().box)
    own = held().guarantee(4, promise.inputs, promise.error)
    assert (promise.agreement, promise.reliable) == (own.agreement, own.reliable)
    assert promise.error >= planned.error.bound
    assert promise.sentence() in describe(planned)


@pytest.mark.parametrize("options", [{"widen": 0.0}, {"widen": 0.6}, {"box": [[-9.0] * 3, [9.0] * 3]}])
def test_a_plan_with_another_box_promises_nothing_and_says_so(options: dict[str, Any]) -> None:
    planned = plan(made(), samples=4, layout="lift", **options)
    assert planned.promise is None
    assert planned.reliable is None
    assert "promise about new inputs: none; it needs a fit with --holdout, and its own box" in describe(planned)


def test_a_hold_out_without_a_row_inside_promises_nothing() -> None:
    far = held().rows.copy()
    far[:, 1] = 0
    found = HoldOut(held().terms, far, held().box).guarantee(4, "inside")
    assert (found.samples, found.agreement, found.outside) == (0, 0.0, len(HELD))
    assert found.reliable is not None
    assert found.reliable.threshold is None
    assert "at least 0.00% of decisions" in found.sentence()


def test_noise_can_only_take_from_what_is_flagged() -> None:
    """At the same threshold, a larger error never has more kept rows accepted, or fewer lost ones."""
    terms = Terms(confidence=0.9, sha256="0" * 64, split=None, level=0.8, power=0.5, thresholds=[1.0, 0.5, 0.25, 0.0])
    rng = np.random.default_rng(1)
    rows = np.zeros((400, 8))
    rows[:, 1], rows[:, 2], rows[:, 3:5] = 1, rng.uniform(size=400) < 0.1, rng.uniform(0.1, 2, size=(400, 2))
    rows[:, 5:] = rows[:, 2:5]
    agreements = [HoldOut(terms, rows, np.zeros((2, 3))).guarantee(3, "inside", e) for e in (0.0, 0.01, 0.1, 1.0, 9.0)]
    assert [each.lost for each in agreements] == sorted(each.lost for each in agreements)
    assert agreements[-1].lost == 400
    assert agreements[-1].reliable is not None
    assert agreements[-1].reliable.threshold is None


def test_samples_moved_into_a_box_that_refuses_them_are_not_called_reliable() -> None:
    X = np.vstack([PAIRS_X[:20], 50 * PAIRS_X[:20]])
    clipped, refusing = (
        predict_encrypted(made(), plan(made(), samples=40, layout="batch", clip=clip), X, clip=True)
        for clip in (True, False)
    )
    assert clipped.reliable is not None
    assert refusing.reliable is not None
    assert clipped.reliable[20:].any()
    assert refusing.reliable[:20].any()
    assert not refusing.reliable[20:].any()


def simulation() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "deployments.py"
    spec = importlib.util.spec_from_file_location("deployments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deployments"] = module
    spec.loader.exec_module(module)
    return module


def test_promises_and_flags_are_broken_as_rarely_as_they_say() -> None:
    """A small version of benchmarks/deployments.py, which has 1,000 and more."""
    found = simulation().run(draws=64, networks=2, seed=3)
    assert found["all"]["broken"] <= found["all"]["allowed"]
    assert found["all"]["flags broken"] <= found["all"]["allowed"]
    assert found["all"]["named"] > 0.2
    assert found["all"]["unconditioned"] > 2 * found["all"]["allowed"]  # as promises were counted before
