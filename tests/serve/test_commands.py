from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit
from quad4fhe.cli import main
from support.serving import RunningServer, small_fit


@pytest.fixture(scope="module")
def fit() -> Fit:
    return small_fit(3, 6, 2, seed=4)


@pytest.fixture(scope="module")
def running(fit: Fit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("fits") / "fit.safetensors"
    fit.save(file)
    with RunningServer(file, "--precision", "fast", "--samples", "4", "--workers", "1") as server:
        yield server


@pytest.fixture
def data(fit: Fit, tmp_path: Path) -> Path:
    X = np.random.default_rng(0).uniform(*fit.box, size=(6, 3))
    np.savez(tmp_path / "test.npz", X=X)
    return tmp_path / "test.npz"


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("layout", ["batch", "lift"])
def test_a_saved_plan_pins_the_query(running, fit, data, tmp_path, capsys, layout) -> None:
    pin = tmp_path / "plan.json"
    where = ("--save-plan", pin, "--layout", layout)
    code, out, _ = run(capsys, "models", running.url, *where, "--json")
    assert code == 0
    code, found, _ = run(capsys, "query", running.url, data, "--plan", pin, "--json")
    assert code == 0
    document = json.loads(found)
    assert document["decisions"] == fit.model.decide(np.load(data)["X"]).tolist()
    assert (document["plan"], document["layout"], document["pinned"]) == (json.loads(out)["plan"], layout, True)
    code, out, _ = run(capsys, "query", running.url, data, "--layout", layout)
    assert code == 0
    assert f"quad4fhe models {running.url} --save-plan plan.json --layout {layout}" in " ".join(out.split())
    code, _, err = run(capsys, "models", running.url, "--layout", layout)
    assert code == 2
    assert "add --save-plan FILE" in err


def test_samples_outside_the_box_are_refused_or_clipped(running, fit, tmp_path, capsys) -> None:
    np.savez(tmp_path / "far.npz", X=np.full((2, 3), 1e6))
    code, _, err = run(capsys, "query", running.url, tmp_path / "far.npz")
    assert code == 2
    assert "feature 0 must lie in" in err
    assert "pin a plan whose hash" in err
    assert run(capsys, "models", running.url, "--save-plan", tmp_path / "plan.json", "--layout", "batch")[0] == 0
    code, _, err = run(capsys, "query", "http://127.0.0.1:1", tmp_path / "far.npz", "--plan", tmp_path / "plan.json")
    assert code == 2  # nobody listens there: the samples are refused before anything is sent
    assert "feature 0 must lie in" in err
    code, out, _ = run(capsys, "query", running.url, tmp_path / "far.npz", "--clip", "--json")
    assert code == 0
    assert json.loads(out)["clipped"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("query", "http://127.0.0.1:1", "x.npz", "--plan", "none.json"), "no such file"),
        (("serve", "none.safetensors"), "none.safetensors: no such file"),
        (("serve", "none.safetensors", "--tls-cert", "x.pem"), "give both, or neither"),
        (("serve", "none.safetensors", "--token-file", "none"), "can't read the tokens"),
        (("serve", "none.safetensors", "--deadline", "0"), "limits out of range"),
        (("serve", "none.safetensors", "--queue", "0"), "greater than or equal to 1"),
        (("query", "http://127.0.0.1:1", "none.npz"), "no such file"),
    ],
)
def test_bad_words_are_one_line(words, said, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_a_server_others_can_reach_needs_tokens_or_a_word(fit, tmp_path, capsys) -> None:
    fit.save(tmp_path / "fit.safetensors")
    words = ("serve", tmp_path / "fit.safetensors", "--host", "0.0.0.0", "--layout", "batch", "--precision", "fast")
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "give tokens" in err


def test_short_tokens_are_refused(fit, tmp_path, capsys) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    code, _, err = run(capsys, "serve", tmp_path / "fit.safetensors", "--token-file", tmp_path / "tokens")
    assert code == 2
    assert "16 or more characters" in err


def test_a_plan_of_another_model_is_refused(fit, tmp_path, capsys) -> None:
    fit.save(tmp_path / "fit.safetensors")
    small_fit(2, 3, 2, seed=9).save(tmp_path / "other.safetensors")
    _, out, _ = run(capsys, "plan", tmp_path / "other.safetensors", "--json")
    (tmp_path / "plan.json").write_text(out)
    words = ("--plan", tmp_path / "plan.json", "--layout", "batch", "--precision", "fast")
    code, _, err = run(capsys, "serve", tmp_path / "fit.safetensors", *words)
    assert code == 2
    assert "belongs to none of the fits" in err
