"""The browser client: its types, its vectors, and the page in a real Chromium against a real server.

The tests themselves are in TypeScript (`clients/web/test`); here servers are started and Python's decisions computed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Trained
from quad4fhe import MLP, Fit, Plan, fit, plan
from quad4fhe.he.session import connect
from quad4fhe.serve.page import one_file
from support.browser import CHROMIUM
from support.node import CLIENT, needs_chromium, needs_node, run_node
from support.serving import RunningServer

SETS = ("breast_cancer", "otto", "shuttle", "digits")


@needs_node
def test_the_client_has_no_type_errors() -> None:
    run_node("node_modules/typescript/bin/tsc", "--noEmit")


@needs_node
def test_encodings_containers_and_refusals_are_those_of_python() -> None:
    names = ("embedding", "lift", "vectors", "graph")
    run_node("--test", *(f"test/{name}.test.ts" for name in names))


@needs_node
def test_the_page_in_the_package_is_what_its_source_builds(tmp_path: Path) -> None:
    shipped = CLIENT.parents[1] / "src" / "quad4fhe" / "serve" / "web"
    before = {path.name: path.read_bytes() for path in shipped.iterdir()}
    run_node("build.mjs", str(tmp_path))
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


def _inside(found: Fit, X: np.ndarray, count: int) -> np.ndarray:
    low, high = found.box
    return X[(np.clip(X, low, high) == X).all(axis=1)][:count].astype(np.float64)


def _in_the_browser(found: Fit, made: Plan, rows: np.ndarray, tmp_path: Path, only: str | None = None) -> None:
    """Run the browser's tests, or those whose name contains `only`, against two servers of this plan."""
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
            "query": f"?layout={made.layout}",
            "chromium": CHROMIUM,
            "guarded": guarded.url,
            "token": "a-long-and-secret-token",
            "file": str(files["page.html"]),
            "guardedFile": str(files["guarded.html"]),
            "rows": rows.tolist(),
            "decisions": _decisions(found, made, rows),
            "outside": outside.tolist(),
            "decisionsOnly": made.settings.get("replies") == "decisions",
            "screenshots": os.environ.get("QUAD4FHE_SCREENSHOTS", str(tmp_path)),
        }
        described = tmp_path / "spec.json"
        described.write_text(json.dumps(spec))
        chosen = [] if only is None else ["--test-name-pattern", only]
        run_node("--test", *chosen, "test/browser.test.ts", environment={"QUAD4FHE_WEB_SPEC": str(described)})


@needs_node
@needs_chromium
@pytest.mark.parametrize("layout", ["batch", "lift"])
@pytest.mark.parametrize("name", SETS)
def test_the_page_decides_as_the_python_client_does(
    name: str, layout: str, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    found, X_test = _fitted(name, trained)
    made = plan(found, samples=1 if layout == "lift" else 2048, layout=layout)
    only = None if name == "breast_cancer" else "those of the Python client"
    _in_the_browser(found, made, _inside(found, X_test, 200), tmp_path, only)


@needs_node
@needs_chromium
def test_the_page_shows_decisions_whose_scores_the_server_hides(
    trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    found, X_test = _fitted("breast_cancer", trained)
    made = plan(found, samples=1, layout="lift", replies="decisions")
    only = "those of the Python client|made under another key|decisions only"
    _in_the_browser(found, made, _inside(found, X_test, 60), tmp_path, only)


@needs_node
@needs_chromium
def test_the_page_takes_plans_for_raw_features_in_the_thousands(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    sizes = np.array([1.0, 4000.0])
    mlp = MLP(rng.normal(size=(8, 2)) / sizes, rng.normal(size=8), rng.normal(size=(1, 8)), rng.normal(size=1))
    X = rng.normal(size=(300, 2)) * sizes
    found = fit(mlp, X, family="shared")
    made = plan(found, samples=2048, layout="batch", precision="strict")
    assert made.scales.x + np.log2(made.reach) > 52  # an encoded value has more bits than a float64 holds exactly
    margins = np.abs(found.model.logits(X)[:, 0])
    rows = _inside(found, X[margins > 2 * made.error.bound], 40)
    _in_the_browser(found, made, rows, tmp_path, "those of the Python client")


@needs_node
@needs_chromium
def test_the_page_speaks_lift_above_degree_two(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    mlp = MLP(rng.normal(size=(12, 3)), rng.normal(size=12), rng.normal(size=(3, 12)), rng.normal(size=3))
    X = rng.normal(size=(400, 3))
    found = fit(mlp, X, degree=4, family="shared")
    made = plan(found, samples=1, layout="lift")
    assert made.settings["degree"] > 2  # of at most 4, the fit takes what it needs
    ordered = np.sort(found.model.logits(X), axis=1)
    rows = _inside(found, X[ordered[:, -1] - ordered[:, -2] > 2 * made.error.bound], 40)
    assert len(rows) == 40
    _in_the_browser(found, made, rows, tmp_path, "those of the Python client")
