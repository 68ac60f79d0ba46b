"""Training: the recipe's network, reproducible, stopped early, best weights kept."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from quad4fhe.errors import MissingExtraError
from quad4fhe_reproduce.prepare import Parts
from quad4fhe_reproduce.recipes import Training
from quad4fhe_reproduce.train import require_packages, train

TRAINING = Training(batch=64, epochs=30, patience=5, delta=1e-4, batchnorm=True, decay=1e-5)


def _blobs(classes: int, noise: float = 0.0) -> Parts:
    rng = np.random.default_rng(3)
    y = rng.integers(0, classes, 600)
    X = (rng.normal(size=(600, 4)) + 3 * np.eye(4)[y % 4]).astype(np.float32)
    flipped = rng.random(600) < noise
    y = np.where(flipped, rng.integers(0, classes, 600), y)
    cuts = (slice(0, 385), slice(385, 480), slice(480, 600), slice(0, 0))  # 385 = 6 batches of 64 and one row
    parts = [array for cut in cuts for array in (X[cut], y[cut])]
    return Parts(*parts, classes=classes, rows=600, sha256="", origin="")


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="training needs torch: pip install 'quad4fhe[torch]'")


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("batchnorm", [True, False])
def test_a_trained_network_comes_home_as_an_mlp_that_has_learnt(classes: int, batchnorm: bool) -> None:
    parts = _blobs(classes)
    mlp, epochs = train(parts, msgspec.structs.replace(TRAINING, batchnorm=batchnorm), 16, 2026)
    assert (mlp.units, mlp.outputs) == (16, 1 if classes == 2 else 4)
    assert 1 <= epochs <= 30
    assert (mlp.decide(parts.X_test) == parts.y_test).mean() > 0.85


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    parts = _blobs(4)
    first, again, other = (train(parts, TRAINING, 8, seed)[0].sha256 for seed in (2026, 2026, 2027))
    assert first == again != other


def test_training_stops_when_the_validation_loss_no_longer_falls() -> None:
    parts = _blobs(4, noise=0.8)
    long = msgspec.structs.replace(TRAINING, epochs=200, batchnorm=False, rate=0.05)
    _, epochs = train(parts, long, 32, 2026)
    assert epochs < 60


def test_the_weights_kept_are_those_of_the_lowest_validation_loss() -> None:
    torch = pytest.importorskip("torch")
    parts = _blobs(4, noise=0.8)
    long = msgspec.structs.replace(TRAINING, epochs=40, patience=40, batchnorm=False, rate=0.05)
    kept, _ = train(parts, long, 32, 2026)
    last = msgspec.structs.replace(long, delta=-1e9)  # every epoch counts as better, so the last one is kept
    final, _ = train(parts, last, 32, 2026)

    def loss(mlp: object) -> float:
        logits = torch.tensor(mlp.logits(parts.X_val))  # type: ignore[attr-defined]
        return float(torch.nn.functional.cross_entropy(logits, torch.tensor(parts.y_val)))

    assert loss(kept) < loss(final) - 0.1


def test_a_missing_torch_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"'torch', which is not installed: pip install './reproduce\[train\]'"):
        require_packages()
