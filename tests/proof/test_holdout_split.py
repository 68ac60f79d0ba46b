"""Rows set aside before a fit: chosen fairly, never fitted, found again by verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import CertificateError, Fit, InputError, fit, verify
from quad4fhe.cli import main
from quad4fhe.io.rows import ArrayRows, npy_rows
from quad4fhe.proof.holdout import split_of, split_rows
from support.cases import PAIRS
from support.forging import changed, opened, sealed

X = np.random.default_rng(5).normal(size=(400, 3))


def held_of(n: int, share: float, seed: int) -> np.ndarray[Any, Any]:
    places = np.arange(n, dtype=np.float64)[:, None]
    _, held = split_rows(ArrayRows(places), split_of(n, share, seed))
    return held.part(0, held.shape[0])[:, 0].astype(int)


def test_both_parts_together_are_the_rows_and_the_fit_sees_one_of_them() -> None:
    split = split_of(400, 0.1, 2026)
    seen, held = (part.part(0, part.shape[0]) for part in split_rows(ArrayRows(X), split))
    assert (len(seen), len(held)) == (360, 40)
    assert sorted(map(bytes, [*seen, *held])) == sorted(map(bytes, X))
    found, plain = (
        fit(PAIRS.mlp, X, holdout=0.1, fresh=True, family="shared"),
        fit(PAIRS.mlp, seen, holdout=held, fresh=True, family="shared"),
    )
    assert found.model.sha256 == plain.model.sha256
    assert found.certificate == plain.certificate
    assert found.holdout is not None
    assert plain.holdout is not None
    assert found.holdout.terms.split == split
    assert found.guarantee == plain.guarantee
    assert np.array_equal(found.holdout.rows, plain.holdout.rows)


def test_every_row_has_the_same_chance_of_being_set_aside() -> None:
    draws, n = 4000, 20
    hits = np.bincount(np.concatenate([held_of(n, 0.25, seed) for seed in range(draws)]), minlength=n)
    assert np.abs(hits / draws - 0.25).max() < 4.5 * (0.25 * 0.75 / draws) ** 0.5
    assert held_of(n, 0.25, 1).tolist() != held_of(n, 0.25, 2).tolist()


def test_a_file_is_split_like_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    split = split_of(400, 0.3, 7)
    for whole, parts in zip(
        split_rows(ArrayRows(X), split), split_rows(npy_rows(tmp_path / "X.npy"), split), strict=True
    ):
        assert np.array_equal(whole.part(0, whole.shape[0]), parts.part(0, parts.shape[0]))
        assert np.array_equal(whole.part(17, 90), parts.part(17, 90))
        assert parts.part(5, 5).shape == (0, 3)
    stored = fit(PAIRS.mlp, tmp_path / "X.npy", holdout=0.1, fresh=True, family="shared")
    assert (
        stored.to_dict()["guarantee"]
        == fit(PAIRS.mlp, X, holdout=0.1, fresh=True, family="shared").to_dict()["guarantee"]
    )


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan"), 1e-9, 0.9999])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="holdout"):
        fit(PAIRS.mlp, X, holdout=share, fresh=True, family="shared")


def test_a_share_needs_the_word_that_rows_are_fresh() -> None:
    with pytest.raises(InputError, match="fresh=True"):
        fit(PAIRS.mlp, X, holdout=0.1, family="shared")


def test_verify_finds_the_rows_by_itself() -> None:
    found = Fit.from_bytes(fit(PAIRS.mlp, X, holdout=0.1, fresh=True, family="shared").to_bytes())
    assert verify(found, None, X).guarantee == found.guarantee
    seen, held = (part.part(0, part.shape[0]) for part in split_rows(ArrayRows(X), split_of(400, 0.1, 2026)))
    assert verify(found, None, seen).guarantee is None
    assert verify(found, None, seen, X_holdout=held).guarantee == found.guarantee
    assert np.array_equal(found.calibration_part(X), seen)
    assert np.array_equal(found.calibration_part(seen), seen)
    with pytest.raises(CertificateError, match="leave out X_holdout"):
        verify(found, None, X, X_holdout=held)


def test_a_forged_split_never_passes() -> None:
    manifest, tensors = opened(fit(PAIRS.mlp, X, holdout=0.1, fresh=True, family="shared").to_bytes())
    for key, value in (("seed", 1), ("held", 41), ("held", 0), ("rows", 399), ("rows", 10**15), ("seed", -1)):
        forged = sealed(changed(manifest, ("holdout", "split", key), value), tensors)
        with pytest.raises((CertificateError, InputError)):
            verify(Fit.from_bytes(forged), None, X)
    lost = Fit.from_bytes(sealed(changed(manifest, ("holdout", "split"), None), tensors))
    with pytest.raises(CertificateError):  # then all rows are taken for calibration rows
        verify(lost, None, X)


def test_the_commands_take_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mlp = PAIRS.mlp
    np.savez("model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez("calib.npz", X=X)
    assert main(["fit", "model.npz", "calib.npz", "--holdout", "0.1"]) == 2
    assert "fresh" in capsys.readouterr().err
    assert main(["fit", "model.npz", "calib.npz", "--holdout", "0.1", "--fresh"]) == 0
    assert "of 40 hold-out rows lost" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", "fit.safetensors", "calib.npz"]) == 0
    assert "weakest class" in capsys.readouterr().out
    assert main(["plan", "fit.safetensors", "--calib", "calib.npz", "--samples", "8"]) == 0
    assert main(["fit", "model.npz", "calib.npz", "--holdout", "2", "--fresh"]) == 2
