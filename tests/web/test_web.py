"""The browser client: its types, its vectors, and the page in a real Chromium against a real server.

The tests themselves are in TypeScript (`clients/web/test`); here servers are started and Python's decisions computed.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import MLP, Fit, Plan, fit, plan
from quad4fhe.mlp import decide
from quad4fhe.serve.page import one_file
from support.browser import CHROMIUM
from support.exchange import connect, run
from support.node import CLIENT, needs_chromium, needs_node, run_node
from support.serving import RunningServer

TOKEN = "a-long-and-secret-token"
DECISIONS = "those of the Python client"  # the tests in the browser whose names contain this


@needs_node
def test_the_client_has_no_type_errors() -> None:
    run_node("node_modules/typescript/bin/tsc", "--noEmit")


@needs_node
def test_encodings_messages_and_refusals_are_those_of_python() -> None:
    names = ("embedding", "lift", "vectors", "graph")
    run_node("--test", *(f"test/{name}.test.ts" for name in names))


@needs_node
def test_the_page_in_the_package_is_what_its_source_builds(tmp_path: Path) -> None:
    shipped = CLIENT.parents[1] / "src" / "quad4fhe" / "serve" / "web"
    before = {path.name: path.read_bytes() for path in shipped.iterdir()}
    run_node("build.mjs", str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _fitted(features: int, outputs: int, degree: int = 2) -> tuple[Fit, np.ndarray]:
    """A fit of a random network, and samples inside its box."""
    rng = np.random.default_rng(5)
    W1, W2 = rng.normal(size=(8, features)) / np.sqrt(features), rng.normal(size=(outputs, 8))
    X = rng.normal(size=(400, features))
    b2 = -np.median(np.maximum(X @ W1.T, 0) @ W2.T, axis=0)
    found = fit(MLP(W1, np.zeros(8), W2, b2), X, degree=degree, family="shared")
    low, high = found.box
    return found, X[(np.clip(X, low, high) == X).all(axis=1)]


def _certain(found: Fit, made: Plan, X: np.ndarray, count: int) -> np.ndarray:
    """Rows that no noise decides otherwise."""
    logits = found.model.logits(X)
    ordered = np.sort(logits if logits.shape[1] > 1 else np.hstack([logits, np.zeros_like(logits)]), axis=1)
    rows = X[ordered[:, -1] - ordered[:, -2] > 2 * made.error.bound][:count]
    assert len(rows) == count
    return rows


def _in_the_browser(
    found: Fit, plans: list[Plan], rows: np.ndarray, tmp_path: Path, only: str | None = None, query: str = ""
) -> None:
    """Run the browser's tests, or those whose name contains `only`, against a server of these plans."""
    made = plans[0]
    outside = rows[0].copy()
    outside[0] = made.domain.high[0] + 1.0
    decisions = decide(run(*connect(found, made), rows)).tolist()
    assert len(set(decisions)) > 1
    found.save(tmp_path / "fit.safetensors")
    (tmp_path / "tokens").write_text(TOKEN + "\n")
    served: list[str | Path] = [tmp_path / "fit.safetensors", "--page", "--page-from-disk", "--workers", "1"]
    for each in plans:
        each.save(tmp_path / f"{each.layout}.json")
        served += ["--plan", tmp_path / f"{each.layout}.json"]
    spec = {
        "query": query,
        "chromium": CHROMIUM,
        "token": TOKEN,
        "rows": rows.tolist(),
        "decisions": decisions,
        "outside": outside.tolist(),
        "screenshots": os.environ.get("QUAD4FHE_SCREENSHOTS", str(tmp_path)),
    }
    with ExitStack() as stack:
        server = stack.enter_context(RunningServer(*served))
        spec["url"] = server.url
        if only is None:
            guarded = stack.enter_context(RunningServer(*served, "--token-file", tmp_path / "tokens"))
            spec["guarded"] = guarded.url
            for key, url in (("file", server.url), ("guardedFile", guarded.url)):
                spec[key] = str(tmp_path / f"{key}.html")
                (tmp_path / f"{key}.html").write_bytes(one_file(made, url))
        described = tmp_path / "spec.json"
        described.write_text(json.dumps(spec))
        chosen = [] if only is None else ["--test-name-pattern", only]
        run_node("--test", *chosen, "test/browser.test.ts", environment={"QUAD4FHE_WEB_SPEC": str(described)})


@needs_node
@needs_chromium
def test_the_page_keeps_its_promises_against_a_server_of_both_layouts(tmp_path: Path) -> None:
    found, X = _fitted(4, 3)
    plans = [plan(found, samples=2048, layout="batch", replies="private"), plan(found, samples=1, layout="lift")]
    _in_the_browser(found, plans, _certain(found, plans[0], X, 200), tmp_path)


@needs_node
@needs_chromium
@pytest.mark.parametrize(
    ("features", "outputs", "degree", "layout", "replies"),
    [
        (4, 1, 2, "lift", "private"),
        (93, 4, 2, "lift", "plain"),
        (12, 20, 4, "lift", "private"),
        (4, 3, 4, "batch", "private"),
    ],
)
def test_the_page_decides_as_the_python_client_does(
    features: int, outputs: int, degree: int, layout: str, replies: str, tmp_path: Path
) -> None:
    found, X = _fitted(features, outputs, degree)
    made = plan(found, samples=1 if layout == "lift" else 2048, layout=layout, replies=replies)
    # A single answer has no known sum, so a reply of layout lift under another key can look like one.
    only = DECISIONS if (layout, outputs) == ("lift", 1) else f"{DECISIONS}|made under another key"
    _in_the_browser(found, [made], _certain(found, made, X, 20), tmp_path, only)


@needs_node
@needs_chromium
def test_the_page_takes_plans_for_raw_features_in_the_tens_of_thousands(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    sizes = np.array([1.0, 4e4])
    mlp = MLP(rng.normal(size=(8, 2)) / sizes, rng.normal(size=8), rng.normal(size=(1, 8)), rng.normal(size=1))
    X = rng.normal(size=(300, 2)) * sizes
    found = fit(mlp, X, family="shared")
    made = plan(found, samples=2048, layout="batch", precision="strict")
    assert made.scales.x + np.log2(made.reach) > 52  # an encoded value has more bits than a float64 holds exactly
    _in_the_browser(found, [made], _certain(found, made, X, 40), tmp_path, DECISIONS)
