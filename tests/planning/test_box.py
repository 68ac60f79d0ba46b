from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe._box import default_share, widened
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.bounds import bound
from quad4fhe.planning.box import Outside, box_of, check_inside
from quad4fhe.planning.describe import describe
from quad4fhe.planning.fold import fold
from quad4fhe.planning.plan import Plan
from support.standins import random_model, random_samples, stand_in


def test_the_default_room_costs_about_two_bits_at_any_degree() -> None:
    assert default_share(2) == 0.5
    for degree in (2, 3, 4, 6, 8):
        wider = 1 + 2 * default_share(degree)
        assert wider**degree == pytest.approx(4)


def test_a_constant_feature_gets_the_median_range_of_the_others_or_its_own_size() -> None:
    low = np.array([0.0, -1.0, 0.0, 0.0, 2026.0, 1e-3])
    high = np.array([1.0, 1.0, 3.0, 0.0, 2026.0, 1e-3])
    found = widened(np.stack([low, high]), 0.5)
    assert found[0].tolist() == pytest.approx([-0.5, -2.0, -1.5, -2.0, 2024.0, 0.0])
    assert found[1].tolist() == pytest.approx([1.5, 2.0, 4.5, 2.0, 2028.0, 2e-3])
    alone = widened(np.array([[0.0], [0.0]]), 0.5)
    assert alone.tolist() == [[-1.0], [1.0]]


def test_limits_that_half_of_the_features_share_hold_for_those_between_them() -> None:
    low = np.array([0.0, 0.0, 0.0, 0.0, 0.0, -3.0])
    high = np.array([1.0, 1.0, 1.0, 0.2, 0.0, 0.5])
    found = widened(np.stack([low, high]), 0.5)
    assert found.tolist() == [[-0.5, -0.5, -0.5, -0.5, -0.5, -4.75], [1.5, 1.5, 1.5, 1.5, 1.5, 2.25]]
    exact = widened(np.stack([low, high]), 0.0)
    assert exact[:, 3].tolist() == [0.0, 1.0]


def test_the_plan_says_what_its_room_costs() -> None:
    fit = stand_in(random_model(6, 12, 3), random_samples(300, 6))
    made = plan(fit, samples=10, layout="batch")
    assert np.array_equal(made.domain.box, widened(fit.box, 0.5))
    circuit = fold(fit.model, made.domain.box, made.settings["form"])
    bits = np.log2(bound(circuit, made.domain.box).logit / bound(circuit, fit.box).logit)
    assert made.room is not None
    assert made.room.bits == pytest.approx(bits, abs=0.05)
    assert f"(--widen 0.5), which costs {made.room.bits:.1f} bits of the bound" in describe(made)
    assert Plan.from_dict(made.to_dict()) == made


def test_a_plan_with_negative_room_is_refused() -> None:
    fit = stand_in(random_model(3, 6, 2), random_samples(100, 3))
    document = plan(fit, samples=1, layout="batch").to_dict()
    with pytest.raises(InputError, match="room of this plan"):
        Plan.from_dict({**document, "room": {"share": -1.0, "bits": 0.0}})


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_the_error_counts_everything_and_names_the_smallest_share(share) -> None:
    X = random_samples(200, 4)
    fit = stand_in(random_model(4, 8, 3), X)
    made = plan(fit, samples=10, layout="batch", widen=share)
    far = 1.9 * X
    low, high = fit.box
    beyond = np.maximum(low - far, far - high) / (high - low)
    lost = beyond > share
    with pytest.raises(InputError) as caught:
        check_inside(far, made)
    text = str(caught.value)
    assert f"{lost.any(axis=1).sum()} of 200 samples" in text
    assert f"in {lost.any(axis=0).sum()} of 4 features" in text
    named = float(text.partition("--widen ")[2].partition(",")[0])
    assert named - 0.01 < beyond.max() <= named
    assert check_inside(far, plan(fit, samples=10, layout="batch", widen=named)) is not None
    with pytest.raises(InputError):
        check_inside(far, plan(fit, samples=10, layout="batch", widen=named - 0.01))


def test_a_given_box_that_is_too_small_asks_for_a_file_of_samples() -> None:
    X = random_samples(50, 3)
    fit = stand_in(random_model(3, 6, 2), X)
    made = plan(fit, samples=1, layout="batch", box=fit.box)
    assert made.room is not None
    assert (made.room.share, made.room.bits) == (None, 0.0)
    with pytest.raises(InputError, match="plan with --box FILE and these samples in FILE"):
        check_inside(2 * X, made)
    both = box_of(np.concatenate([X, 2 * X]), 3)
    assert check_inside(2 * X, plan(fit, samples=1, layout="batch", box=both)) is not None


def test_samples_beyond_float64_are_counted_without_a_warning() -> None:
    outside = Outside(np.array([[-1e308], [1e308]]), 0.5)
    outside.add(np.array([[-1.7e308], [0.0]]))
    with pytest.raises(InputError, match="1 of 2 samples lies outside"):
        outside.check()
