from __future__ import annotations

import numpy as np
import pytest

from quad4fhe.he.predict import predict_encrypted
from quad4fhe.layouts.planner import plan
from support.standins import random_model, random_samples, stand_in


@pytest.mark.parametrize("layout", ["batch", "lift"])
def test_clipping_says_how_many_decisions_differ_on_the_data_that_was_given(layout) -> None:
    X = random_samples(300, 4)
    fit = stand_in(random_model(4, 12, 3), X)
    given = 4 * random_samples(60, 4, seed=5)
    made = plan(fit, samples=60, layout=layout, box=fit.box)
    found = predict_encrypted(fit, made, given, clip=True)
    assert found.bill is not None
    differ = int((found.decisions != fit.model.decide(given)).sum())
    assert found.bill.changed_as_given == differ > 0
    assert found.bill.changed == int((found.decisions != fit.model.decide(given.clip(*fit.box))).sum()) == 0
    assert found.bill.clipped == int(np.any(given != given.clip(*fit.box), axis=1).sum())
    said = dict(found.summary())["changed"]
    assert said == (
        f"{differ} decisions differ from the same model in the clear on the data as given, 0 on the data after clipping"
    )


def test_without_clipping_there_is_one_number() -> None:
    X = random_samples(300, 4)
    fit = stand_in(random_model(4, 12, 3), X)
    found = predict_encrypted(fit, plan(fit, samples=60, layout="batch"), X[:60])
    assert dict(found.summary())["changed"] == "0 decisions differ from the same model in the clear"


def test_samples_far_beyond_the_box_are_compared_without_a_warning() -> None:
    X = random_samples(300, 4)
    fit = stand_in(random_model(4, 12, 3), X)
    found = predict_encrypted(fit, plan(fit, samples=60, layout="batch"), 1e200 * X[:3], clip=True)
    assert found.bill is not None
    assert found.bill.clipped == 3
