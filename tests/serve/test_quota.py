"""Numbers a day for each token and model."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import InputError, plan
from quad4fhe.serve.app import Limits, Service
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.models import HostedModel
from quad4fhe.serve.quota import Quota
from quad4fhe.workers.registry import choose
from support.serving import RunningServer, small_fit


def test_each_owner_gets_its_answers_every_day() -> None:
    now = [86_400.0 * 20_000 + 3_600]
    quota = Quota(10, lambda: now[0])
    assert [quota.take("one", 4), quota.take("one", 4)] == [None, None]
    assert quota.take("one", 4) == 23 * 3_600
    assert quota.take("one", 2) is None  # what did not fit was not counted
    assert quota.take("other", 10) is None
    now[0] += 23 * 3_600
    assert quota.take("one", 10) is None
    assert Quota(None).take("one", 10**9) is None


def test_unanswered_questions_of_yesterday_are_not_given_back_today() -> None:
    now = [86_400.0 * 20_000 - 1]
    quota = Quota(2, lambda: now[0])
    assert quota.take("one", 2) is None
    yesterday = quota.day
    now[0] += 2
    assert quota.take("one", 2) is None
    quota.give_back("one", 2, yesterday)
    assert quota.take("one", 1) is not None
    quota.give_back("one", 1, quota.day)
    assert quota.take("one", 1) is None


def test_a_server_counts_every_number_that_it_tells_of_a_model(tmp_path: Path) -> None:
    fit = small_fit(3, 8, 2, seed=1)
    fit.save(tmp_path / "fit.safetensors")
    other = small_fit(3, 8, 1, seed=2)
    other.save(tmp_path / "other.safetensors")
    (tmp_path / "tokens").write_text("a" * 32 + "\n" + "b" * 32 + "\n")
    (tmp_path / "tokens").chmod(0o600)
    arguments = ["--layout", "lift", "--samples", "1", "--token-file", tmp_path / "tokens", "--numbers-per-day", "4"]
    with RunningServer(tmp_path / "fit.safetensors", tmp_path / "other.safetensors", *arguments) as server:
        X = np.zeros((1, 3))
        left = 86_400 - time.time() % 86_400  # until midnight, when everyone has new answers
        if left < 120:
            time.sleep(left + 1)
        with Remote(server.url, model="fit", token="a" * 32, patience=5) as remote:
            assert [(remote.predict(X).decisions == fit.model.decide(X)).all() for _ in range(2)] == [True, True]
            with pytest.raises(ServiceError, match="is told 4 numbers of this model a day"):
                remote.predict(X)
        with Remote(server.url, model="other", token="a" * 32) as remote:  # another model, and one number an answer
            assert [(remote.predict(X).decisions == other.model.decide(X)).all() for _ in range(3)] == [True] * 3
        with Remote(server.url, model="fit", token="b" * 32) as remote:
            assert (remote.predict(X).decisions == fit.model.decide(X)).all()
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_quota_below_one_reply_is_refused_with_the_least_that_works(tmp_path: Path) -> None:
    fit = small_fit(3, 8, 2, seed=1)
    hosted = HostedModel(fit, (plan(fit, samples=1, layout="lift"),))
    with pytest.raises(InputError, match="one reply tells up to 2 numbers"):
        Service([hosted], Limits(numbers_per_day=1), choose("local", 1), ("t" * 32,))


def test_every_row_and_output_that_a_request_has_room_for_counts() -> None:
    fit = small_fit(3, 8, 2, seed=1)
    alone, many = plan(fit, samples=1, layout="lift"), plan(fit, samples=50, layout="batch")
    assert (alone.told, many.told) == (2, 2 * many.per_request)
