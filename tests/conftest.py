"""Shared fixtures: the trained models of the data folder, skipped by name where the folder is absent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

from quad4fhe import MLP

# Shared machines are too noisy for a deadline per example; CI draws the same examples each time.
hypothesis.settings.register_profile(
    "quad4fhe", deadline=None, max_examples=40, derandomize="CI" in os.environ, print_blob=True
)
hypothesis.settings.load_profile("quad4fhe")

# A shell starts what runs in its background with Ctrl-C ignored, and processes inherit it: tests that interrupt others
# would then wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# onnxruntime 1.31 tells its maker which models run, where nothing says otherwise.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

DATA = Path(os.environ.get("QUAD4FHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
MODELS = ("breast_cancer", "diabetes", "shuttle", "otto", "sst5")


@dataclass(frozen=True)
class Trained:
    """One trained width-256 model with its calibration and test arrays."""

    name: str
    path: Path
    mlp: MLP
    X_cal: NDArray[np.float32]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int16]


@cache
def _load(name: str) -> Trained:
    path = DATA / "models" / f"{name}.npz"
    with np.load(path) as z:
        mlp = MLP(z["W1"], z["b1"], z["W2"], z["b2"])
        return Trained(name, path, mlp, z["X_cal"], z["X_test"], z["y_test"])


@pytest.fixture(scope="session")
def trained() -> Callable[[str], Trained]:
    """Load one of the trained models by name."""

    def load(name: str) -> Trained:
        if not (DATA / "models" / f"{name}.npz").exists():
            pytest.skip(f"no trained model {name}: set QUAD4FHE_DATA to the data folder (looked in {DATA})")
        return _load(name)

    return load


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One small Ray of four CPUs for all tests, because it takes seconds to start; skipped where Ray is absent."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'quad4fhe[ray]'")
    from quad4fhe.workers import ray as adapter

    adapter.ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    adapter.ray.shutdown()
