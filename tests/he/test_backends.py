"""A backend of another package, found by its entry point, computes for a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Client, Server, plan, score
from quad4fhe.errors import InputError
from quad4fhe.folders import worker
from quad4fhe.folders.batches import write_requests
from quad4fhe.folders.journal import claimed_digest
from quad4fhe.he import keys
from quad4fhe.he.backends import BACKENDS
from support.standins import StandInFit, random_model, random_samples, stand_in

PACKAGE = '''
from quad4fhe.he.seal import BACKEND as SEAL

class Counting:
    """SEAL's arithmetic, and a count of contexts."""

    name = "counting"
    errors = SEAL.errors
    contexts = 0

    def context(self, chain):
        self.contexts += 1
        return SEAL.context(chain)

BACKEND = Counting()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed in a folder and offers the backend `counting`."""
    (tmp_path / "counting_backend.py").write_text(PACKAGE)
    information = tmp_path / "counting_backend-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-backend\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[quad4fhe.backends]\ncounting = counting_backend:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(BACKENDS, "_places", dict(BACKENDS._places))
    monkeypatch.setattr(BACKENDS, "_loaded", dict(BACKENDS._loaded))
    yield
    sys.modules.pop("counting_backend", None)


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(5, 8, 3), random_samples(100, 5))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("layout", ["packed", "lift"])
def test_a_server_computes_with_the_backend_that_is_named(fit: StandInFit, layout: str) -> None:
    X = random_samples(100, 5)[:2]
    made = plan(fit, samples=2, layout=layout, X=random_samples(100, 5))
    client, server = Client(made), Server(fit, made, backend="counting")
    server.register(client.key_id, client.evaluation_keys())
    logits = client.decrypt([server.evaluate(request) for request in client.encrypt(X)])
    wanted = fit.model.logits(X)
    assert np.abs(logits - (wanted - wanted.mean(axis=1, keepdims=True))).max() <= made.error.bound
    assert contexts() == 1


@pytest.mark.usefixtures("plugin")
def test_a_worker_of_a_scoring_run_computes_with_it(fit: StandInFit, tmp_path: Path) -> None:
    made = plan(fit, samples=2, layout="lift", replies="plain", X=random_samples(100, 5))
    requests, key = tmp_path / "requests", keys.generate(made)
    write_requests(made, key, random_samples(100, 5)[:2], requests)
    with pytest.raises(InputError, match=r"the backend is 'gpu', wanted 'seal' or 'counting'"):
        score(fit, requests, tmp_path / "replies", backend="gpu")
    assert not (tmp_path / "replies").exists()
    answer = worker.Scorer(fit.model, made.to_dict(), {}, "counting")
    first = requests / "00000000.request"
    done = answer(worker.Task(first.name, str(first), claimed_digest(first), key.key_id, None))
    assert done.data is not None
    assert contexts() == 1


def contexts() -> int:
    found: int = sys.modules["counting_backend"].BACKEND.contexts
    return found


def test_an_unknown_backend_is_named_in_one_line(fit: StandInFit) -> None:
    made = plan(fit, samples=2, layout="batch", X=random_samples(100, 5))
    with pytest.raises(InputError, match=r"the backend is 'gpu', wanted 'seal'"):
        Server(fit, made, backend="gpu")
