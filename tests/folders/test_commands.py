"""`query` into a folder, `score`, `query` from a folder: the commands, and what they print."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit, fit, plan
from quad4fhe.cli import main
from support.serving import small_fit


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fit, a plan, and 5,000 samples."""
    place = tmp_path_factory.mktemp("commands")
    fit = small_fit(5, 8, 3, seed=0)
    fit.save(place / "fit.safetensors")
    np.save(place / "x.npy", np.clip(np.random.default_rng(1).normal(size=(5000, 5)), *fit.box))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["plan", str(place / "fit.safetensors"), "--layout", "batch", "--json"]) == 0
    (place / "plan.json").write_text(out.getvalue())
    return place


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to work in."""
    for file in original.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_samples_to_decisions_and_back_when_a_request_is_damaged(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "requests", "x.npy", "--plan", "plan.json", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    slots = 5000 // (written["requests"] - 1)
    assert written["index"] == "requests.index"
    damaged = place / "requests" / "00000001.request"
    good = damaged.read_bytes()
    damaged.write_bytes(good[:1000])

    assert main(["score", "fit.safetensors", "requests", "replies", "--workers", "1", "--json"]) == 1
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert (found["answered"], found["pool"], found["workers"]) == (written["requests"] - 1, "local", 1)
    assert [problem["file"] for problem in found["quarantined"]] == ["00000001.request"]
    assert found["requests_per_second"] > 0

    words = ["query", "requests", "x.npy", "--replies", "replies"]
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
    assert "quarantined: 00000001.request: the request has 1000 bytes" in said

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
        (["score", "fit.safetensors", "nowhere", "replies"], "nowhere is not a folder"),
        (["score", "fit.safetensors", ".", "replies"], "has no files named *.request"),
        (["query", ".", "x.npy"], "add --plan to write requests there, or --replies"),
        (["query", "requests", "x.npy", "--replies", "replies"], "requests.index is missing"),
        (["query", "http://127.0.0.1:1", "x.npy", "--replies", "replies"], "leave it out"),
        (["query", "r", "x.npy", "--plan", "plan.json", "--canaries", "3"], "are for a server"),
        (["query", "r", "x.npy", "--plan", "plan.json", "-o", "o.csv"], "no answers yet"),
        (["query", "r", "x.npy", "--plan", "x.npy"], "the plan cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.fixture(scope="module")
def promised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fit]:
    """A folder with a fit that names reliable decisions, its plan, and 5,000 samples."""
    place = tmp_path_factory.mktemp("promised")
    first = small_fit(5, 8, 3, seed=0)
    rng = np.random.default_rng(4)
    found = fit(
        first.mlp,
        rng.normal(size=(500, 5)),
        holdout=rng.normal(size=(2000, 5)),
        fresh=True,
        reliable=0.98,
        family="shared",
    )
    found.save(place / "fit.safetensors")
    np.save(place / "x.npy", np.clip(rng.normal(size=(5000, 5)), *found.box))
    plan(found, samples=2048, layout="batch").save(place / "plan.json")
    return place, found


def test_replies_in_a_folder_say_which_decisions_are_reliable(
    promised: tuple[Path, Fit], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, found = promised
    monkeypatch.chdir(place)
    assert main(["query", "requests", "x.npy", "--plan", "plan.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 2
    assert main(["score", "fit.safetensors", "requests", "replies", "--workers", "1", "--json"]) == 0
    capsys.readouterr()
    read = ["query", "requests", "x.npy", "--replies", "replies"]
    assert main([*read, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    expected = found.is_reliable(np.load("x.npy"))
    assert 0.05 < expected.mean() < 0.999
    assert np.mean(np.array(shown["reliable"]) == expected) > 0.999  # noise may move a few across the threshold
    assert main([*read, "-o", "out.csv"]) == 0
    lines = (place / "out.csv").read_text().splitlines()
    assert lines[0] == "decision,logit_0,logit_1,logit_2,reliable"
    assert [line.rsplit(",", 1)[1] for line in lines[1:]] == [str(int(mark)) for mark in shown["reliable"]]

    (place / "replies" / "00000001.reply").unlink()
    capsys.readouterr()
    assert main([*read, "--json"]) == 1
    part = json.loads(capsys.readouterr().out)
    missing = [at for at, mark in enumerate(part["reliable"]) if mark is None]
    assert len(part["reliable"]) == 5000
    assert missing == list(range(missing[0], 5000))
    assert part["reliable"][: missing[0]] == shown["reliable"][: missing[0]]
    assert main([*read, "-o", "out.csv"]) == 1
    lines = (place / "out.csv").read_text().splitlines()
    assert len(lines) == 5001
    assert lines[-1] == ",,,,"
