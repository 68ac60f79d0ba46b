"""A fit file holds everything, is written whole or not at all, and a bad one is refused in one line."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit, InputError, fit, plan
from quad4fhe.fitting.diagnostics import KeptShare
from quad4fhe.he.session import Server
from quad4fhe.io import files as _files
from support.cases import CASES, LOSSLESS, PAIRS, PAIRS_X
from support.forging import opened, sealed


@pytest.mark.parametrize("case", [0, 1, 2])
def test_a_saved_fit_comes_back_to_the_last_bit(case: int, tmp_path: Path) -> None:
    found, X = CASES[case]
    found.save(tmp_path / "fit.safetensors")
    back = Fit.load(tmp_path / "fit.safetensors")
    assert back.to_bytes() == found.to_bytes()
    assert back.to_dict() == found.to_dict()
    assert np.array_equal(back.predict(X), found.predict(X))
    assert np.array_equal(back.decision_function(X), found.decision_function(X))
    assert (back.mlp.sha256, back.model.sha256) == (found.mlp.sha256, found.model.sha256)


def test_a_model_id_names_a_fit_without_telling_which_weights_it_has(tmp_path: Path) -> None:
    """An id that is a hash of the weights alone tells which of two known models a server has."""
    mlp, X = PAIRS.mlp, PAIRS_X
    first, second = (fit(mlp, X, family="shared") for _ in range(2))
    assert first.model.sha256 == second.model.sha256
    assert first.model_id != second.model_id
    first.save(tmp_path / "fit.safetensors")
    assert Fit.load(tmp_path / "fit.safetensors").model_id == first.model_id
    shown = json.dumps([first.to_dict(), plan(first, samples=1).to_dict()]) + repr(first)
    assert first.model_id in shown
    assert first.salt.hex() not in shown
    with pytest.raises(
        InputError, match=f"is for model {first.model_id[:12]}, but the fit holds {second.model_id[:12]}"
    ):
        Server(second, plan(first, samples=1))


def test_a_fit_file_without_a_salt_is_refused_with_the_way_out() -> None:
    manifest, tensors = opened(PAIRS.to_bytes())
    del manifest["salt"]
    with pytest.raises(InputError, match=r"holds what no fit can say.*salt.*fit it again"):
        Fit.from_bytes(sealed(manifest, tensors))
    with pytest.raises(InputError, match=r"is a fit of quad4fhe 0\.2, which is not read any more; fit again"):
        Fit.from_bytes(sealed({**manifest, "format": 1}, tensors))
    with pytest.raises(InputError, match="has format '9', this version reads format 3; fit it again"):
        Fit.from_bytes(sealed({**manifest, "format": 9}, tensors))


def test_the_box_and_the_margins_are_those_of_the_calibration_set() -> None:
    found, X = CASES[2]
    assert np.array_equal(found.box, [X.min(axis=0), X.max(axis=0)])
    logits = np.sort(found.decision_function(X), axis=1)
    np.testing.assert_allclose(found.margins, logits[:, -1] - logits[:, -2], atol=1e-9)


def test_agreement_counts_kept_decisions() -> None:
    kept = PAIRS.agreement(PAIRS_X)
    assert kept.mismatches == np.count_nonzero(PAIRS.predict(PAIRS_X) != PAIRS.mlp.decide(PAIRS_X))
    assert kept.samples == len(PAIRS_X)
    assert kept == (len(PAIRS_X) - kept.mismatches) / len(PAIRS_X)
    with pytest.raises(InputError, match="no rows"):
        PAIRS.agreement(PAIRS_X[:0])


def test_agreement_behaves_as_a_number_and_keeps_its_counts() -> None:
    kept = KeptShare(3, 80)
    assert 0.9 < kept < 1
    assert f"{kept:.1%}, {kept}, {kept:.3f}" == "96.2%, 0.9625, 0.963"
    assert json.dumps(kept) == "0.9625"
    assert np.mean([kept, 1.0]) == 0.98125
    assert repr(kept) == "KeptShare(0.9625, mismatches=3, samples=80)"
    for same in (pickle.loads(pickle.dumps(kept)), copy.deepcopy(kept)):
        assert (same, same.mismatches, same.samples) == (0.9625, 3, 80)


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fit.safetensors"
    path.write_bytes(b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files.os, "fsync", full_disk)
    with pytest.raises(InputError, match="No space left on device; nothing was changed"):
        LOSSLESS.save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["fit.safetensors"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("fit.bin", "saved as .safetensors"), ("no/such/fit.safetensors", "does not exist"), ("", "saved as")],
)
def test_an_unusable_place_is_refused(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LOSSLESS.save(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 64, LOSSLESS.to_bytes()[:200], LOSSLESS.to_bytes()[:-8]])
def test_what_is_not_a_fit_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fit.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a fit file|the file is empty") as caught:
        Fit.load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.safetensors"):
        Fit.load(tmp_path / "nothing.safetensors")


def test_a_notebook_shows_the_summary() -> None:
    shown = LOSSLESS._repr_html_()
    assert "lossless on 4 rows, too few to say anything of others" in shown
    assert f"{LOSSLESS.alpha:.6g}" in shown
