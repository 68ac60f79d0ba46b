"""Models with a feature part on the page: raw inputs become features in the browser, by onnxruntime-web.

The tests in the browser are in TypeScript (`clients/web/test/features.test.ts`); here the server is started and
Python's decisions are computed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quad4fhe import InputError, fit
from quad4fhe.cli import main
from quad4fhe.serve.page import check_features, read_onnxruntime
from support.feature_models import image_model, images, table, table_model, text_model, texts
from support.node import CLIENT, needs_node

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


def test_serve_says_how_to_get_the_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx")
    fit(table_model(), table(120), family="shared").save(tmp_path / "fit.safetensors")
    assert main(["serve", str(tmp_path / "fit.safetensors"), "--page", "--port", "0", "--layout", "batch"]) == 2
    assert "npm pack onnxruntime-web@" in capsys.readouterr().err
