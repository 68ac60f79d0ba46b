"""`query` into a folder, `score`, `query` from a folder: what a user types, and what comes back."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from quad4fhe.cli import main
from serving import small_fit


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fit, a plan, a key, and 5,000 samples."""
    place = tmp_path_factory.mktemp("commands")
    fit = small_fit(5, 8, 3, seed=0)
    fit.save(place / "fit.safetensors")
    np.save(place / "x.npy", np.clip(np.random.default_rng(1).normal(size=(5000, 5)), *fit.box))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["plan", str(place / "fit.safetensors"), "--layout", "batch", "--json"]) == 0
    (place / "plan.json").write_text(out.getvalue())
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["keygen", str(place / "own.key"), "--plan", str(place / "plan.json")]) == 0
    return place


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    for file in original.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_samples_to_decisions_and_back_when_a_request_is_damaged(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "requests", "x.npy", "--plan", "plan.json", "--key", "own.key", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    slots = 5000 // (written["requests"] - 1)
    assert written["index"] == "requests.index"
    damaged = place / "requests" / "00000001.request"
    good = damaged.read_bytes()
    damaged.write_bytes(good[:1000])

    assert main(["score", "fit.safetensors", "requests", "replies", "--workers", "1", "--json"]) == 1
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert (found["answered"], found["engine"], found["workers"]) == (written["requests"] - 1, "local", 1)
    assert [problem["file"] for problem in found["quarantined"]] == ["00000001.request"]
    assert found["requests_per_second"] > 0

    words = ["query", "requests", "x.npy", "--key", "own.key", "--replies", "replies"]
    assert main([*words, "-o", "out.csv", "--json"]) == 1
    assert [problem["file"] for problem in json.loads(capsys.readouterr().out)["missing"]] == ["00000001.request"]
    rows = Path("out.csv").read_text().splitlines()
    assert rows[0] == "decision,logit_0,logit_1,logit_2"
    assert len(rows) == 5001
    empty = [i for i, row in enumerate(rows[1:]) if row == ",,,"]
    assert empty
    assert all(slots // 2 < i for i in empty)
    assert empty == list(range(empty[0], empty[-1] + 1))

    assert main(["score", "fit.safetensors", "requests", "replies", "--workers", "1"]) == 1
    said = capsys.readouterr().out
    assert "quarantined: 00000001.request: the container ends" in said

    damaged.write_bytes(good)
    assert main(["score", "fit.safetensors", "requests", "replies", "--workers", "1"]) == 0
    assert "1 now" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert main(["predict", "fit.safetensors", "x.npy", "--json"]) == 0
    clear = json.loads(capsys.readouterr().out)
    logits = np.array(clear["logits"])
    np.testing.assert_allclose(answers["logits"], logits - logits.mean(axis=1, keepdims=True), atol=2e-3)
    assert np.mean(np.array(answers["decisions"]) == clear["decisions"]) > 0.999


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["score", "fit.safetensors", "nowhere", "replies"], "nowhere is no folder"),
        (["score", "fit.safetensors", ".", "replies"], "has no files named *.request"),
        (["query", ".", "x.npy"], "add --plan to write requests there, or --replies"),
        (["query", "requests", "x.npy", "--plan", "plan.json"], "add --key"),
        (["query", "requests", "x.npy", "--replies", "replies", "--key", "own.key"], "replies is no folder"),
        (["query", "http://127.0.0.1:1", "x.npy", "--replies", "replies", "--key", "own.key"], "leave it out"),
        (["query", "r", "x.npy", "--plan", "plan.json", "--key", "own.key", "--canaries", "3"], "are for a server"),
        (["query", "r", "x.npy", "--plan", "plan.json", "--key", "own.key", "-o", "o.csv"], "no answers yet"),
        (["query", "r", "x.npy", "--plan", "x.npy", "--key", "own.key"], "the plan cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
