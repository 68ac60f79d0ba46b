"""The browser client: its types, its vectors, and the page in a real Chromium against a real server.

The tests themselves are in TypeScript (`clients/web/test`); here servers are started and Python's decisions computed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Trained
from quad4fhe import MLP, Fit, Plan, fit, plan
from quad4fhe.he.session import connect
from quad4fhe.serve.page import one_file
from support.serving import RunningServer

CLIENT = Path(__file__).parents[2] / "clients" / "web"
NODE = CLIENT / "node_modules" / ".bin" / "node"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SETS = ("breast_cancer", "otto", "shuttle", "digits")

needs_node = pytest.mark.skipif(not NODE.exists(), reason="clients/web is not installed: npm --prefix clients/web ci")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


def _node(*arguments: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [NODE, *arguments],
        cwd=CLIENT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_the_client_has_no_type_errors() -> None:
    _node("node_modules/typescript/bin/tsc", "--noEmit")


@needs_node
def test_encodings_containers_and_refusals_are_those_of_python() -> None:
    _node("--test", "test/embedding.test.ts", "test/lift.test.ts", "test/vectors.test.ts")


@needs_node
def test_the_page_in_the_package_is_what_its_source_builds(tmp_path: Path) -> None:
    shipped = CLIENT.parents[1] / "src" / "quad4fhe" / "serve" / "web"
    before = {path.name: path.read_bytes() for path in shipped.iterdir()}
    _node("build.mjs", str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _digits() -> tuple[MLP, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    network = MLPClassifier((32,), max_iter=60, random_state=0, tol=1e-2).fit(X[:1200], y[:1200])
    return MLP.from_sklearn(network), X[:1200], X[1200:]


def _fitted(name: str, trained: Callable[[str], Trained]) -> tuple[Fit, np.ndarray]:
    if name == "digits":
        mlp, X_cal, X_test = _digits()
    else:
        found = trained(name)
        mlp, X_cal, X_test = found.mlp, found.X_cal[:2000], found.X_test
    return fit(mlp, X_cal, polish=False, family="shared"), X_test


def _decisions(found: Fit, made: Plan, X: np.ndarray) -> list[int]:
    client, server = connect(found, made)
    return client.decide([server.evaluate(request) for request in client.encrypt(X)]).tolist()


@needs_node
@needs_chromium
@pytest.mark.parametrize("layout", ["batch", "lift"])
@pytest.mark.parametrize("name", SETS)
def test_the_page_decides_as_the_python_client_does(
    name: str, layout: str, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    found, X_test = _fitted(name, trained)
    low, high = found.box
    rows = X_test[((X_test >= low) & (X_test <= high)).all(axis=1)][:200].astype(np.float64)
    made = plan(found, samples=1 if layout == "lift" else 2048, layout=layout)
    outside = rows[0].copy()
    outside[0] = made.domain.high[0] + 1.0
    files = {key: tmp_path / key for key in ("fit.safetensors", "plan.json", "tokens", "page.html", "guarded.html")}
    found.save(files["fit.safetensors"])
    made.save(files["plan.json"])
    files["tokens"].write_text("a-long-and-secret-token\n")
    served = (files["fit.safetensors"], "--plan", files["plan.json"], "--page", "--page-from-disk", "--workers", "1")
    with RunningServer(*served) as server, RunningServer(*served, "--token-file", files["tokens"]) as guarded:
        files["page.html"].write_bytes(one_file(made, server.url))
        files["guarded.html"].write_bytes(one_file(made, guarded.url))
        spec = {
            "url": server.url,
            "query": f"?layout={layout}",
            "chromium": CHROMIUM,
            "guarded": guarded.url,
            "token": "a-long-and-secret-token",
            "file": str(files["page.html"]),
            "guardedFile": str(files["guarded.html"]),
            "rows": rows.tolist(),
            "decisions": _decisions(found, made, rows),
            "outside": outside.tolist(),
            "screenshots": os.environ.get("QUAD4FHE_SCREENSHOTS", str(tmp_path)),
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        only = [] if name == "breast_cancer" else ["--test-name-pattern", "those of the Python client"]
        _node("--test", *only, "test/browser.test.ts", environment={"QUAD4FHE_WEB_SPEC": str(tmp_path / "spec.json")})
