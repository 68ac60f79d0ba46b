"""`quad4fhe compare` and `quad4fhe bench`: other replacements beside ours, in the clear and under encryption."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from quad4fhe.cli import main
from support.cases import PAIRS, PAIRS_X


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The arguments of both commands, in a folder with their files."""
    monkeypatch.chdir(tmp_path)
    PAIRS.mlp.save("model.npz")
    np.savez("calib.npz", X=PAIRS_X)
    np.savez("test.npz", X=PAIRS_X, y=PAIRS.mlp.decide(PAIRS_X))
    np.savez("wide.npz", X=np.ones((4, PAIRS.mlp.features + 1)))
    return "model.npz calib.npz --test test.npz"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    code = main(line.split())
    out, err = capsys.readouterr()
    return code, out, err


def test_compare_shows_ours_beside_the_baselines(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, f"compare {words} --csv table.csv")
    assert code == 0
    assert all(name in text for name in ("ReLU", "Square", "Remez-7", "OLA", "Precise-11", "Quad"))
    assert Path("table.csv").read_text().startswith("name,agreement_cal,")
    names = [row["name"] for row in json.loads(run(capsys, f"compare {words} --json")[1])["rows"]]
    assert "Quad" in names


def test_bench_runs_the_papers_circuit_and_ours(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, f"bench {words} --samples 4 --no-sweep --json")
    assert code == 0
    rows = json.loads(text)["minimum"]
    assert {"Square", "Quad", "Remez-7"} <= {row["scheme"] for row in rows}
    ours = [row for row in rows if row["scheme"].startswith("folded")]
    assert ours
    assert all(row["feasible"] and row["mismatches"] == 0 for row in ours)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("compare model.npz calib.npz", "--test"),
        ("compare {} --csv no/such/table.csv", "can't write"),
        ("compare calib.npz model.npz --test test.npz", "the model comes first: quad4fhe compare model.npz calib.npz"),
        ("bench model.npz calib.npz --test wide.npz", "X_test has"),
        ("bench {} --no-sweep --no-minimum", "nothing to run"),
    ],
)
def test_a_mistake_is_one_line(words: str, capsys: pytest.CaptureFixture[str], line: str, says: str) -> None:
    code, _, err = run(capsys, line.format(words))
    assert code == 2
    assert re.fullmatch(r"quad4fhe: .*\n", err)
    assert says in err
