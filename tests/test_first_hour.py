"""Mistakes of the first hour, as docs/first_hour.md lists them: each ends in one line, and what it proposes works."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import quad4fhe
from quad4fhe import MLP, Fit, plan
from quad4fhe.cli import main
from quad4fhe.errors import InputError
from support.serving import RunningServer, free_port

PAGE = Path(__file__).parents[1] / "docs" / "first_hour.md"
FENCE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\b[0-9a-f]{12}\b|\[Errno \d+\]|\[-[\d.]+, [\d.]+\]|\b\d[\d.,]*\d|\b\d\b")
PORT, NOWHERE = "8443", "8444"
FEATURES = 30


class Mistake(NamedTuple):
    """What is typed, what the program says, and what is typed then."""

    wrong: str
    said: str
    right: str


def mistakes() -> list[Mistake]:
    found = []
    for block in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        wrong, said, right = block.splitlines()
        assert wrong.startswith("$ ")
        assert right.startswith("$ ")
        found.append(Mistake(wrong[2:], said, right[2:]))
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page names, with a smaller network than the demo's."""
    folder = tmp_path_factory.mktemp("hour")
    (folder / "demo").mkdir()
    rng = np.random.default_rng(1)
    low, high = rng.uniform(0, 5, FEATURES), rng.uniform(10, 20, FEATURES)
    X = rng.uniform(low, high, size=(120, FEATURES))
    W1, W2 = rng.normal(size=(6, FEATURES)) / 30, rng.normal(size=(1, 6))
    mlp = MLP(W1, -W1 @ X.mean(axis=0), W2, -np.median(np.maximum((X - X.mean(axis=0)) @ W1.T, 0) @ W2.T, axis=0))
    model, calib, fitted = (folder / "demo" / name for name in ("model.npz", "calib.npz", "fit.safetensors"))
    names = ["mean radius", *(f"feature {number}" for number in range(1, FEATURES))]
    np.savez(model, W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez(calib, X=X, features=names)
    np.savez(folder / "demo" / "test.npz", X=X[:4], features=names)
    assert main(["fit", str(model), str(calib), "--family", "shared", "-o", str(fitted)]) == 0
    far = X[:3].copy()
    far[0, 0] = 300
    np.savez(folder / "far.npz", X=far, features=names)
    rows = np.column_stack([X[:3], [0, 1, 0]])
    np.savetxt(folder / "unnamed.csv", rows, delimiter=",")
    head = ",".join([*names, "outcome"])
    np.savetxt(folder / "named.csv", rows, delimiter=",", header=head, comments="")
    (folder / "model.onnx").write_bytes(b"never opened: its reader is missing")
    (folder / "tokens").write_text("t" * 32 + "\n")
    (folder / "other_tokens").write_text("u" * 32 + "\n")
    np.save(folder / "calib.npy", X)
    other = plan(Fit.load(fitted), samples=4, layout="batch", precision="fast", widen=3.0)
    other.save(folder / "old.json")
    return folder


@pytest.fixture(scope="module")
def server(demo: Path) -> Iterator[RunningServer]:
    words = ("--layout", "batch", "--precision", "fast", "--samples", "9", "--workers", "1")
    with RunningServer(demo / "demo" / "fit.safetensors", *words, "--token-file", demo / "tokens") as running:
        yield running


class Newcomer:
    """Types lines in the folder of the page's files; `said` is everything that was printed."""

    def __init__(self, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self._capsys = server, capsys
        self._port = server.url.rpartition(":")[2]
        self._nowhere = str(free_port())

    def type(self, line: str) -> tuple[int, str]:
        line = line.replace(PORT, self._port).replace(NOWHERE, self._nowhere)
        words = shlex.split(line)
        if words[0] == "quad4fhe":
            self._capsys.readouterr()
            code = main(words[1:])
            return code, "".join(self._capsys.readouterr())
        words[0] = sys.executable if words[0] == "python" else words[0]
        environment = os.environ | {"PYTHONPATH": str(Path(quad4fhe.__file__).parents[1])}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
        return done.returncode, done.stdout + done.stderr


def masked(text: str) -> str:
    return " ".join(FIGURE.sub("#", text).split())


def test_the_page_lists_more_than_ten_mistakes() -> None:
    found = mistakes()
    assert len({one.wrong for one in found}) > 15
    for one in found:
        # What is new in the line that helps was in the message: the newcomer did not have to know it.
        new = [word for word in shlex.split(one.right) if word not in shlex.split(one.wrong)]
        told = [word for word in new if not word.endswith((".safetensors", ".npz", ".csv"))]
        own = ("tokens", "outcome", "52MB")  # names of the newcomer's, and a figure that is written otherwise
        assert [word for word in told if word not in own and word not in one.said] == [], one


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda one: one.wrong)
def test_the_message_is_the_one_shown_and_its_advice_works(
    mistake: Mistake,
    demo: Path,
    server: RunningServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(demo)
    monkeypatch.setattr("quad4fhe.serve.http._FIRST", 0.3)  # seconds of patience with a server that is not there
    newcomer = Newcomer(server, capsys)
    if ".joblib" in mistake.wrong:
        pickled(demo / "model.joblib")
    if ".onnx" in mistake.wrong:
        for name in ("onnx", "quad4fhe.importers.onnx"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, "onnx", None)
    code, said = newcomer.type(mistake.wrong)
    assert code in (1, 2), said
    (line,) = (line for line in said.splitlines() if line.startswith("quad4fhe: "))  # a slow machine shows progress too
    assert masked(line) == masked(mistake.said)
    if mistake.right.startswith("pip install"):
        extra = re.search(r"\[(\w+)\]", mistake.right)
        assert extra is not None
        project = (PAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        assert re.search(rf"^{extra[1]} = \[", project, re.MULTILINE)
        return
    if mistake.right.startswith("quad4fhe serve"):
        return  # `server` was started like this
    code, said = newcomer.type(mistake.right)
    assert code == 0, said
    if ".joblib" in mistake.wrong:
        assert MLP.load("model.safetensors").features == FEATURES


def pickled(path: Path) -> None:
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    X = np.random.default_rng(0).normal(size=(40, FEATURES))
    joblib.dump(neural.MLPClassifier((3,), max_iter=2000, random_state=0, tol=0.1).fit(X, X[:, 0] > 0), path)


def test_a_name_with_a_space_or_a_dollar_can_be_pasted_too() -> None:
    for name in ("my model.joblib", "$HOME.joblib", "it's.joblib", 'a"b.joblib'):
        with pytest.raises(InputError) as caught:
            MLP.load(name)
        _, option, program = shlex.split(str(caught.value).partition("convert it: ")[2])
        assert option == "-c"
        loaded, saved = re.findall(r"load\((.*?)\)\)\.save\((.*)\)$", program)[0]
        assert ast.literal_eval(loaded) == name
        assert ast.literal_eval(saved) == str(Path(name).with_suffix(".safetensors"))
