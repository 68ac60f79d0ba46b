"""Models with a feature part on the page: raw inputs become features in the browser, by onnxruntime-web.

The tests in the browser are in TypeScript (`clients/web/test/features.test.ts`); here the server is started and
Python's decisions are computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import Fit, InputError, Plan, fit, plan
from quad4fhe.cli import main
from quad4fhe.mlp import decide
from quad4fhe.serve.page import check_features, read_onnxruntime
from support.browser import CHROMIUM
from support.exchange import connect, run
from support.feature_models import image_model, images, table, table_model, text_model, texts
from support.node import CLIENT, needs_chromium, needs_node, run_node
from support.serving import RunningServer

PINNED = json.loads((Path(__file__).parents[2] / "src" / "quad4fhe" / "serve" / "web" / "onnxruntime.json").read_text())
MODULE = CLIENT / "node_modules" / PINNED["package"] / PINNED["file"]
KINDS: dict[str, tuple[Any, Any, int]] = {
    "images": (image_model, images, 36),
    "table": (table_model, table, 3),
    "text": (text_model, texts, 1),
}


def test_another_module_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "ort.wasm"
    other.write_bytes(b"\0asm")
    with pytest.raises(InputError, match=r"its SHA-256 is [0-9a-f]{16}, wanted .* npm pack onnxruntime-web@"):
        read_onnxruntime(other)
    with pytest.raises(InputError, match="no such file"):
        read_onnxruntime(tmp_path / "none.wasm")


def test_a_feature_part_needs_the_served_page_and_its_runtime() -> None:
    check_features(True, False, False, None)
    check_features(True, True, False, b"module")
    check_features(False, True, True, b"module")
    with pytest.raises(InputError, match=r"npm pack onnxruntime-web@\S+ && tar xzf \S+ \S+, and serve with --page"):
        check_features(True, True, False, None)
    with pytest.raises(InputError, match="leave --page-from-disk out"):
        check_features(True, True, True, b"module")
    with pytest.raises(InputError, match="add --page"):
        check_features(False, False, True, b"module")


@needs_node
def test_the_pinned_module_is_the_one_of_the_packages() -> None:
    assert len(read_onnxruntime(MODULE)) == PINNED["bytes"]


def _rows(name: str, made: Plan, found: Fit) -> list[list[str]]:
    """Forty raw samples as text, with features in the plan's box, and decisions that no noise changes."""
    raw = KINDS[name][1](120, 7)
    features = np.asarray(found.mlp.inputs(raw))
    low, high = made.domain.box
    ordered = np.sort(found.model.logits(features), axis=1)
    certain = ordered[:, -1] - ordered[:, -2] > 2 * made.error.bound
    kept = np.flatnonzero((np.clip(features, low, high) == features).all(axis=1) & certain)[:40]
    if name == "images":
        return [[repr(float(value)) for value in raw[n].ravel()] for n in kept]
    columns = list(raw.values()) if name == "table" else [raw]
    return [["" if str(column[n]) == "nan" else str(column[n]) for column in columns] for n in kept]


def _as_given(name: str, rows: list[list[str]]) -> Any:
    if name == "images":
        return np.array(rows, dtype=np.float64).astype(np.float32).reshape(-1, 1, 6, 6)
    if name == "text":
        return np.array([row[0] for row in rows])
    numbers = {
        key: np.array([float(row[i] or "nan") for row in rows], dtype=np.float32)
        for i, key in enumerate(("age", "income"))
    }
    return {**numbers, "town": np.array([row[2] for row in rows])}


@needs_node
@needs_chromium
def test_the_page_computes_features_and_decides_as_the_python_client_does(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx")
    cases, files = {}, []
    for name, (model, raw, columns) in KINDS.items():
        found = fit(model(), raw(120), family="shared")
        made = plan(found, samples=2048, layout="batch", widen=1.0)
        rows = _rows(name, made, found)
        decisions = decide(run(*connect(found, made), found.mlp.inputs(_as_given(name, rows)))).tolist()
        assert len(rows) == 40
        assert len(set(decisions)) > 1
        header = [["town", "income", "age"]] if name == "table" else []  # columns are taken by name
        lines = header + ([row[::-1] for row in rows] if name == "table" else rows)
        cases[name] = {
            "model": made.model_id,
            "table": "\n".join(",".join(line) for line in lines),
            "secrets": [cell for row in rows[:3] for cell in row if len(cell) > 5],
            "columns": columns,
            "decisions": decisions,
        }
        found.save(tmp_path / f"{name}.safetensors")
        made.save(tmp_path / f"{name}.json")
        files += [tmp_path / f"{name}.safetensors", "--plan", tmp_path / f"{name}.json"]
    with RunningServer(*files, "--page", "--workers", "1", "--onnxruntime", MODULE) as server:
        spec = tmp_path / "spec.json"
        spec.write_text(json.dumps({"url": server.url, "chromium": CHROMIUM, "cases": cases}))
        run_node("--test", "test/features.test.ts", environment={"QUAD4FHE_FEATURES_SPEC": str(spec)})


def test_serve_says_how_to_get_the_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx")
    fit(table_model(), table(120), family="shared").save(tmp_path / "fit.safetensors")
    assert main(["serve", str(tmp_path / "fit.safetensors"), "--page", "--port", "0", "--layout", "batch"]) == 2
    assert "npm pack onnxruntime-web@" in capsys.readouterr().err
