from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit
from quad4fhe.cli import main
from quad4fhe.he import keys
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


@pytest.mark.parametrize("layout", ["batch", "packed"])
def test_keygen_and_query_give_the_models_decisions(running, fit, data, tmp_path, capsys, layout, monkeypatch) -> None:
    monkeypatch.setattr(keys, "_SCRYPT", {"n": 2**12, "r": 8, "p": 1})
    (tmp_path / "pass").write_text("correct horse\n")
    (tmp_path / "pass").chmod(0o600)
    secret = tmp_path / "own.key"
    where = ("--server", running.url, "--layout", layout, "--passphrase-file", tmp_path / "pass")
    code, out, _ = run(capsys, "keygen", secret, *where, "--json")
    assert code == 0
    assert json.loads(out)["key_id"] == keys.load(secret, "correct horse").key_id.hex()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    options = ("--layout", layout, "--key", secret, "--passphrase-file", tmp_path / "pass")
    code, out, _ = run(
        capsys, "query", running.url, data, *options, "--model", fit.model_id, "--json", "-o", tmp_path / "out.csv"
    )
    assert code == 0
    document = json.loads(out)
    wanted = fit.model.decide(np.load(data)["X"]).tolist()
    assert document["decisions"] == wanted
    assert (document["layout"], document["model"]) == (layout, fit.model_id)
    assert [int(line.split(",")[0]) for line in (tmp_path / "out.csv").read_text().splitlines()[1:]] == wanted
    code, out, _ = run(capsys, "query", running.url, data, "--layout", layout)
    assert code == 0
    assert f"quad4fhe keygen own.key --server {running.url}" in out.replace("\n", "")
    code, out, _ = run(capsys, "query", running.url, data, *options)
    assert code == 0
    assert "keygen" not in out


def test_queries_use_what_was_prepared_for_them_once(running, fit, data, tmp_path, capsys) -> None:
    secret, parts = tmp_path / "own.key", tmp_path / "own.key.prepared"
    assert run(capsys, "keygen", secret, "--server", running.url, "--layout", "lift")[0] == 0
    wanted = fit.model.decide(np.load(data)["X"]).tolist()
    for prepare, left in ((3, 3), (0, None), (0, None)):
        before = set(parts.glob("*.ready")) if parts.exists() else set()
        code, out, _ = run(capsys, "query", running.url, data, "--key", secret, "--json", "--prepare", str(prepare))
        assert code == 0
        document = json.loads(out)
        assert document["decisions"] == wanted
        assert document["prepared"] == ({"parts": 3, "replies": 3, "reason": ""} if prepare else None)
        assert document["requests"] == 2
        assert (document["download_bytes"] < 1000) == (len(before) > 1)
        after = set(parts.glob("*.ready"))
        assert len(after) == left if left is not None else len(after) < max(1, len(before))
    code, out, _ = run(capsys, "query", running.url, data, "--key", secret, "--prepare", "2")
    assert code == 0
    assert "2 later requests, 2 of them at the server" in " ".join(out.split())
    code, _, err = run(capsys, "query", running.url, data, "--prepare", "3")
    assert code == 2
    assert "add --key" in err


def test_keygen_for_a_plan_then_rotation(fit, tmp_path, capsys) -> None:
    fit.save(tmp_path / "fit.safetensors")
    _, out, _ = run(capsys, "plan", tmp_path / "fit.safetensors", "--json")
    (tmp_path / "plan.json").write_text(out)
    secret = tmp_path / "own.key"
    assert run(capsys, "keygen", secret, "--plan", tmp_path / "plan.json")[0] == 0
    old = keys.load(secret)
    code, _, err = run(capsys, "keygen", secret, "--plan", tmp_path / "plan.json")
    assert code == 2
    assert "never overwritten" in err
    code, out, _ = run(capsys, "keygen", secret, "--rotate", "--json")
    assert code == 0
    assert keys.load(json.loads(out)["kept"]).key_id == old.key_id != keys.load(secret).key_id


def test_samples_outside_the_box_are_refused_or_clipped(running, fit, tmp_path, capsys) -> None:
    np.savez(tmp_path / "far.npz", X=np.full((2, 3), 1e6))
    code, _, err = run(capsys, "query", running.url, tmp_path / "far.npz")
    assert code == 2
    assert "feature 0 must lie in" in err
    assert "pin a plan whose hash" in err
    assert run(capsys, "keygen", tmp_path / "own.key", "--server", running.url, "--layout", "batch")[0] == 0
    code, _, err = run(capsys, "query", "http://127.0.0.1:1", tmp_path / "far.npz", "--key", tmp_path / "own.key")
    assert code == 2  # nobody listens there: the samples are refused before anything is sent
    assert "feature 0 must lie in" in err
    code, out, _ = run(capsys, "query", running.url, tmp_path / "far.npz", "--clip", "--json")
    assert code == 0
    assert json.loads(out)["clipped"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("keygen", "x.key"), "one of --plan FILE, --server URL or --rotate"),
        (("keygen", "x.key", "--plan", "none.json"), "no such file"),
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
