"""The command line: exit codes, one JSON document, one line for every mistake, nothing lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import quad4fhe
from quad4fhe import Fit
from quad4fhe.cli import main


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A small binary model that can be kept losslessly, with calibration and test data."""
    rng = np.random.default_rng(0)
    W1, b1, W2 = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=(1, 5))
    X = rng.normal(size=(40, 3))
    b2 = -np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)
    np.savez(tmp_path / "model.npz", W1=W1, b1=b1, W2=W2, b2=b2)
    np.savez(tmp_path / "calib.npz", X=X[:8])
    np.savez(tmp_path / "test.npz", X=X, y=(X[:, 0] > 0).astype(int))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_fit_then_verify(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "fit.safetensors"
    code, text, _ = run(
        capsys, "fit", files / "model.npz", files / "calib.npz", "-o", out, "--test", files / "test.npz"
    )
    assert code == 0
    assert f"quad4fhe verify {out} {files / 'calib.npz'}" in text
    code, text, _ = run(capsys, "verify", out, files / "calib.npz", "--model", files / "model.npz")
    assert code == 0
    assert "certificate holds" in text


def test_json_is_one_document_with_the_numbers_of_the_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "fit.safetensors"
    code, text, _ = run(capsys, "fit", files / "model.npz", files / "calib.npz", "-o", out, "--json")
    document = json.loads(text)
    fitted = Fit.load(out)
    assert code == 0
    assert (document["alpha"], document["regime"]) == (fitted.alpha, fitted.regime)
    assert document["certificate"]["calibration_sha256"] == fitted.certificate.calibration_sha256
    code, text, _ = run(capsys, "verify", out, files / "calib.npz", "--json")
    assert json.loads(text)["statement"] == fitted.certificate.statement


def test_plan_then_predict_encrypted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_file = files / "fit.safetensors"
    assert run(capsys, "fit", files / "model.npz", files / "test.npz", "-o", fit_file)[0] == 0
    code, text, _ = run(capsys, "plan", fit_file, "--samples", 40, "--calib", files / "test.npz")
    assert code == 0
    assert "allowed for 128-bit security" in text
    document = json.loads(run(capsys, "plan", fit_file, "--samples", 40, "--json")[1])
    assert quad4fhe.Plan.from_dict(document).samples == 40
    code, text, _ = run(capsys, "predict", fit_file, files / "test.npz", "--encrypted", "-o", files / "out.csv")
    assert code == 0
    assert "0 decisions differ from the same model in the clear" in text
    lines = (files / "out.csv").read_text().splitlines()
    assert lines[0] == "decision,score"
    with np.load(files / "test.npz") as z:
        clear = Fit.load(fit_file).predict(z["X"])
    assert [int(line.split(",")[0]) for line in lines[1:]] == clear.tolist()
    shown = json.loads(run(capsys, "predict", fit_file, files / "test.npz", "--json")[1])
    assert shown["decisions"] == clear.tolist()


def test_a_sample_outside_the_box_is_refused_or_clipped(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_file = files / "fit.safetensors"
    assert run(capsys, "fit", files / "model.npz", files / "calib.npz", "-o", fit_file)[0] == 0
    words = ["predict", fit_file, files / "test.npz", "--encrypted"]
    with np.load(files / "calib.npz") as z, np.load(files / "test.npz") as t:
        low, high = z["X"].min(axis=0), z["X"].max(axis=0)
        beyond = np.maximum(low - t["X"], t["X"] - high) / (high - low)
        np.savez(files / "limits.npz", X=np.stack([np.minimum(low, t["X"].min(0)), np.maximum(high, t["X"].max(0))]))
    code, _, err = run(capsys, *words, "--widen", "0")
    assert code == 2
    outside = int((beyond > 0).any(axis=1).sum())
    assert f"{outside} of {len(beyond)} samples" in err
    smallest = float(err.partition("plan with --widen ")[2].partition(",")[0])
    assert smallest - 0.01 < beyond.max() <= smallest
    for option in (["--widen", str(smallest)], ["--box", files / "limits.npz"]):
        code, text, _ = run(capsys, *words, *option)
        assert (code, "moved" in text) == (0, False)
    code, text, _ = run(capsys, *words, "--widen", "0", "--clip")
    assert code == 0
    assert f"{outside} samples lay outside the box and were moved to its edge" in text


def test_a_plan_is_used_again(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit_file, kept = files / "fit.safetensors", files / "plan.json"
    assert run(capsys, "fit", files / "model.npz", files / "calib.npz", "-o", fit_file)[0] == 0
    words = ["--samples", 40, "--widen", "0", "--clip"]
    kept.write_text(run(capsys, "plan", fit_file, *words, "--json")[1])
    assert "a sample outside is moved to the edge" in run(capsys, "plan", fit_file, *words)[1]
    predict = ["predict", fit_file, files / "test.npz", "--encrypted", "--plan", kept]
    code, text, _ = run(capsys, *predict)
    assert code == 0
    assert "were moved to its edge" in text  # the plan says so, not this command
    code, _, err = run(capsys, *predict, "--widen", "1")
    assert code == 2
    assert "--plan has its own box" in err


def test_the_demo_is_lossless_and_its_files_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, _ = run(capsys, "demo")
    assert code == 0
    assert "lossless" in text
    assert "0 decisions differ from the same model in the clear" in text
    for lead in ("Try it yourself: quad4fhe ", "or: quad4fhe "):
        command = text.split(lead)[1].split("\n")[0]
        assert run(capsys, *command.split())[0] == 0
    assert run(capsys, "verify", "demo/fit.safetensors", "demo/calib.npz", "--model", "demo/model.npz")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("fit nowhere.npz calib.npz", 2, "nowhere.npz: no such file"),
        ("fit model.npz nowhere.npz", 2, "nowhere.npz: no such file"),
        ("fit calib.npz model.npz", 2, "calib.npz"),
        ("fit . calib.npz", 2, "wanted .npz, .safetensors"),
        ("fit folder.npz calib.npz", 2, "folder"),
        ("fit model.npz calib.npz -o fit.bin", 2, "saved as .safetensors"),
        ("fit model.npz calib.npz -o no/such/fit.safetensors", 2, "does not exist"),
        ("fit model.npz calib.npz --regime easy", 2, "easy"),
        ("fit model.npz calib.npz --target-agreement 2", 2, "share in (0, 1]"),
        ("fit model.npz", 2, "CALIB"),
        ("fit model.npz calib.npz --frob", 2, "--frob"),
        ("frob", 2, "frob"),
        ("verify model.npz calib.npz", 2, "is not a fit file"),
        ("verify good.safetensors test.npz", 1, "calibration rows"),
        ("verify good.safetensors calib.npz --model other.npz", 1, "the model that was given"),
        ("verify changed.safetensors calib.npz", 1, "changed or damaged"),
        ("fit overlap.npz test.npz --regime hard", 1, "no shared quadratic"),
        ("fit overlap.npz test.npz --target-agreement 1", 1, "reaches the target of"),
        ("fit model.npz calib.npz --seed -1", 2, "--seed"),
        ("demo --folder .", 2, "would overwrite"),
        ("plan good.safetensors --samples 0", 2, "at least 1"),
        ("plan good.safetensors --calib test.npz", 2, "samples, but the fit has"),
        ("predict good.safetensors calib.npz --clip", 2, "add --encrypted"),
        ("predict good.safetensors wide.npz --encrypted", 2, "has 4 columns"),
    ],
)
def test_every_mistake_is_one_line_and_the_right_code(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, code: int, says: str
) -> None:
    monkeypatch.chdir(files)
    assert run(capsys, "fit", "model.npz", "calib.npz", "-o", "good.safetensors")[0] == 0
    content = bytearray(Path("good.safetensors").read_bytes())
    content[-1] ^= 1
    Path("changed.safetensors").write_bytes(content)
    with np.load("model.npz") as z:
        np.savez("other.npz", **{**z, "b2": z["b2"] + 1e-9})
    rng = np.random.default_rng(1)
    np.savez(
        "overlap.npz", W1=rng.normal(size=(9, 3)), b1=rng.normal(size=9), W2=rng.normal(size=(6, 9)), b2=np.zeros(6)
    )
    Path("folder.npz").mkdir()
    np.savez("wide.npz", X=np.ones((3, 4)))
    before = set(os.listdir())
    for json_words in ([], ["--json"]):
        found, out, err = run(capsys, *words.split(), *json_words)
        assert found == code
        assert says in err
        # A slow machine shows progress as well.
        err = "".join(line for line in err.splitlines(keepends=True) if not re.match(r"\d+s  ", line))
        assert err.count("\n") == 1
        assert "Traceback" not in err
        if json_words and words != "frob":
            assert json.loads(out) == {"error": err.removeprefix("quad4fhe: ").rstrip(), "exit_code": code}
    assert set(os.listdir()) == before


def test_a_bug_is_not_disguised_as_bad_input(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("quad4fhe.fit", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["fit", str(files / "model.npz"), str(files / "calib.npz")])


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["fit", "--help"], ["verify", "-h"], []])
def test_help_and_version_are_answers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *words)
    assert code == (0 if words else 2)
    assert "quad4fhe" in out


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"W1": (200, 50), "b1": (200,), "W2": (100, 200), "b2": (100,)}
    np.savez(tmp_path / "model.npz", **{name: rng.normal(size=shape) for name, shape in shapes.items()})
    np.savez(tmp_path / "calib.npz", X=rng.normal(size=(20000, 50)))
    words = [
        sys.executable,
        "-c",
        "from quad4fhe_start import entry_point; entry_point()",
        "fit",
        "model.npz",
        "calib.npz",
    ]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    process.stderr.readline()  # the first line of progress: it is at work
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.endswith("quad4fhe: interrupted\n")
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["calib.npz", "model.npz"]


def test_fit_of_a_higher_degree(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, rng = files / "fit.safetensors", np.random.default_rng(3)
    shapes = {"W1": (12, 4), "b1": (12,), "W2": (3, 12), "b2": (3,)}
    np.savez(files / "model.npz", **{name: rng.normal(size=shape) for name, shape in shapes.items()})
    np.savez(files / "test.npz", X=rng.normal(size=(1_000, 4)))
    words = ("fit", files / "model.npz", files / "test.npz", "-o", out, "--family", "unitwise", "--degree", 3)
    code, text, _ = run(capsys, *words)
    assert code == 0
    assert "unitwise, degree 3" in text
    assert Fit.load(out).degree == 3
    code, text, _ = run(capsys, "verify", out, files / "test.npz", "--json")
    assert (code, json.loads(text)["samples"]) == (0, 1_000)
    code, _, error = run(capsys, *words[:-1], 5)
    assert (code, "--degree is '5'" in error) == (2, True)
