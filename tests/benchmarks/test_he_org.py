"""The submission for HomomorphicEncryption.org's workload on a small model, run stage by stage as the harness does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import MLP, Fit, fit, plan

SOURCE = Path(__file__).parents[2] / "benchmarks" / "he_org"
STAGES = (
    "client_key_generation",
    "server_preprocess_model",
    "client_preprocess_input",
    "client_encode_encrypt_input",
    "server_encrypted_compute",
    "client_decrypt_decode",
    "client_postprocess",
)
PIXELS = np.arange(200, 208)
COUNTS = {"single": 1, "small": 15, "medium": 1000, "large": 10_000}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness's root, with a model of eight pixels and the executables that the build script makes."""
    root = tmp_path_factory.mktemp("harness")
    shutil.copytree(SOURCE, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    rng = np.random.default_rng(7)
    mlp = MLP(rng.normal(size=(6, 8)), rng.normal(size=6), rng.normal(size=(10, 6)), rng.normal(size=10))
    X = rng.random((400, 8))
    found = fit(mlp, X, family="shared")
    folder = root / "submission" / "model" / "784-128-10"
    folder.mkdir(parents=True)
    found.save(folder / "fit.safetensors")
    np.save(folder / "pixels.npy", PIXELS)
    box = np.stack([np.zeros(8), np.ones(8)])
    for name, count in COUNTS.items():
        layout = "lift" if count == 1 else "batch"
        plan(found, samples=count, layout=layout, X=X, box=box, precision="fast").save(folder / f"{name}.json")
    (folder / "figures.json").write_text("{}")  # the build script then does not train
    for script in ("get_openfhe.sh", "build_task.sh"):
        subprocess.run([root / "scripts" / script], cwd=root, check=True, env=environment())
    return root


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "QUAD4FHE_NETWORK": "784-128-10",
    }


def call(root: Path, stage: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(root / "submission" / "build" / stage), *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=environment())


@pytest.mark.parametrize(("number", "name"), [("0", "single"), ("1", "small")])
def test_the_stages_give_the_labels_of_the_polynomial_model(root: Path, number: str, name: str) -> None:
    images = np.round(np.random.default_rng(int(number)).random((COUNTS[name], 784)), 6)
    pixels = root / "datasets" / name / "intermediate" / "test_pixels.txt"
    pixels.parent.mkdir(parents=True)
    np.savetxt(pixels, images, fmt="%.6f")
    for stage in STAGES:
        done = call(root, stage, *([] if stage == "server_preprocess_model" else [number]))
        assert done.returncode == 0, done.stderr
    labels = np.loadtxt(root / "io" / name / "encrypted_model_predictions.txt", dtype=int, ndmin=1)
    found = Fit.load(root / "submission" / "model" / "784-128-10" / "fit.safetensors")
    logits = np.sort(found.model.logits(images[:, PIXELS]), axis=1)
    clear = logits[:, -1] - logits[:, -2] > 0.01  # `fast` may change closer ones
    assert clear.sum() >= 0.5 * COUNTS[name]
    assert (labels == found.predict(images[:, PIXELS]))[clear].all()
    reported = json.loads((root / "io" / name / "server_reported_steps.json").read_text())
    assert set(reported) == {"start-up", "keys", "answers"}
    assert list((root / "io" / name / "public_keys").iterdir()) == []


def test_model_and_plans_are_checked_again_only_after_a_change(root: Path) -> None:
    folder = root / "submission" / "model" / "784-128-10"
    stored = folder / "server.npz"  # the build script has run the stage
    with np.load(stored) as found:
        before = found["checked"].tolist()
    written = stored.stat().st_mtime_ns
    assert call(root, "server_preprocess_model").returncode == 0
    assert stored.stat().st_mtime_ns == written
    plan_file = folder / "large.json"
    text = plan_file.read_text()
    made = json.loads(text)
    made["domain"]["bound"] /= 2
    plan_file.write_text(json.dumps(made))
    done = call(root, "server_preprocess_model")
    assert done.returncode == 1
    assert "could overflow" in done.stderr
    plan_file.write_text(text + "\n")
    assert call(root, "server_preprocess_model").returncode == 0
    with np.load(stored) as found:
        assert [old == new for old, new in zip(before, found["checked"].tolist(), strict=True)] == [True] * 4 + [False]
    plan_file.write_text(text)
    assert call(root, "server_preprocess_model").returncode == 0


def test_a_wrong_call_ends_in_one_line(root: Path) -> None:
    pixels = root / "datasets" / "medium" / "intermediate" / "test_pixels.txt"
    pixels.parent.mkdir(parents=True)
    np.savetxt(pixels, np.zeros((3, 784)), fmt="%.6f")
    for stage, arguments, words in (
        ("client_key_generation", [], "usage: client_key_generation SIZE"),
        ("client_key_generation", ["7"], "the size is '7'"),
        ("client_preprocess_input", ["2"], "holds 3 images, wanted 1000"),
        ("server_encrypted_compute", ["3"], "ciphertexts_upload holds no requests"),
    ):
        done = call(root, stage, *arguments)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1, done.stderr
        assert words in done.stderr
