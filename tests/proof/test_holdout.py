"""The promise of a fit: counted again by brute force, never for rows that were seen, never forged."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from quad4fhe import CertificateError, Fit, InputError, fit, verify
from quad4fhe.cli import main
from support.cases import LOSSLESS, LOSSLESS_X, PAIRS, PAIRS_X
from support.forging import changed, opened, sealed

HELD = np.random.default_rng(11).normal(size=(500, 3))


@cache
def promised(confidence: float = 0.95) -> Fit:
    return fit(PAIRS.mlp, PAIRS_X, holdout=HELD, fresh=True, confidence=confidence, family="shared")


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_promise_is_what_counting_and_the_beta_quantile_give(confidence: float) -> None:
    found, made = promised(confidence), promised(confidence).guarantee
    assert made is not None
    relu, now = found.mlp.decide(HELD), found.predict(HELD)
    n, e = len(HELD), int(np.count_nonzero(relu != now))
    assert (made.confidence, made.samples, made.lost) == (confidence, n, e)
    assert made.agreement == pytest.approx(1 - beta.isf(1 - confidence, e + 1, n - e), abs=2e-9)
    for c, part in enumerate(made.by_class):
        n, e = int(np.count_nonzero(relu == c)), int(np.count_nonzero((relu == c) & (now != c)))
        assert (part.samples, part.lost) == (n, e)
        bound = 1.0 if e == n else beta.isf((1 - confidence) / found.mlp.classes, e + 1, n - e)
        assert part.agreement == pytest.approx(1 - bound, abs=2e-9)
    assert made.by_class[made.weakest].agreement == min(part.agreement for part in made.by_class)


def test_a_hold_out_changes_nothing_but_the_promise() -> None:
    plain, found = fit(PAIRS.mlp, PAIRS_X, family="shared"), promised()
    assert plain.guarantee is None
    assert found.model.sha256 == plain.model.sha256
    assert found.certificate == plain.certificate
    assert "promise" in dict(found.summary())
    assert "promise" not in dict(plain.summary())


def test_the_hold_out_does_not_choose_the_family() -> None:
    """family="auto" is chosen by cross-validation on calibration rows; a hold-out that chose it would be spent."""
    half = len(HELD) // 2
    X = PAIRS_X[:120]
    found = [fit(PAIRS.mlp, X, family="auto", holdout=rows, fresh=True) for rows in (HELD[:half], HELD[half:])]
    found.append(fit(PAIRS.mlp, X, family="auto"))
    assert len({each.family for each in found}) == 1
    assert len({each.model.sha256 for each in found}) == 1


def test_the_sentence_rounds_down() -> None:
    made = promised().guarantee
    assert made is not None
    shown = float(made.sentence().split("at least ")[1].split("%")[0])
    assert shown / 100 <= made.agreement < shown / 100 + 1e-4
    assert "with confidence 95%" in made.sentence()


def test_fresh_without_hold_out_rows_is_refused() -> None:
    with pytest.raises(InputError, match="there are none"):
        fit(PAIRS.mlp, PAIRS_X, fresh=True)


def test_there_is_no_promise_without_the_word_that_rows_are_fresh() -> None:
    with pytest.raises(InputError, match="fresh=True"):
        fit(PAIRS.mlp, PAIRS_X, holdout=HELD, family="shared")


@pytest.mark.parametrize("held", [PAIRS_X, PAIRS_X[10:40], np.vstack([PAIRS_X, HELD[:60]]), PAIRS_X.astype(np.float64)])
def test_calibration_rows_are_no_hold_out(held: NDArray[np.float64]) -> None:
    with pytest.raises(InputError, match="are calibration rows too"):
        fit(PAIRS.mlp, PAIRS_X, holdout=held, fresh=True, family="shared")


def test_a_few_equal_rows_are_natural() -> None:
    assert (
        fit(PAIRS.mlp, PAIRS_X, holdout=np.vstack([PAIRS_X[:40], HELD]), fresh=True, family="shared").guarantee
        is not None
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"holdout": HELD[:, :2]}, "features"),
        ({"holdout": HELD[:0]}, "X_holdout"),
    ],
)
def test_a_hold_out_that_promises_nothing_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fit(PAIRS.mlp, PAIRS_X, **{"holdout": HELD, "fresh": True, **options})


def test_verify_counts_the_promise_again() -> None:
    found = Fit.from_bytes(promised().to_bytes())
    assert found.guarantee == promised().guarantee
    assert verify(found, None, PAIRS_X).guarantee is None
    assert verify(found, None, PAIRS_X, X_holdout=HELD).guarantee == found.guarantee
    with pytest.raises(CertificateError, match="the hold-out data is not what was certified"):
        verify(found, None, PAIRS_X, X_holdout=HELD + 1e-9)
    with pytest.raises(CertificateError, match="promises nothing about new inputs"):
        verify(PAIRS, None, PAIRS_X, X_holdout=HELD)


def test_a_loaded_fit_does_not_repeat_its_promise_unchecked() -> None:
    found = Fit.from_bytes(promised().to_bytes())
    assert "promise" not in dict(found.summary())


def test_a_forged_promise_never_passes() -> None:
    """Every place of it, with the hash of the file made anew: refused by reading or by verify with the rows."""
    manifest, tensors = opened(promised().to_bytes())
    said = manifest["guarantee"]
    places: list[tuple[tuple[str | int, ...], list[Any]]] = [
        (("guarantee",), [None]),
        (("guarantee", "samples"), [501, 499, 0, 10**18]),
        (("guarantee", "lost"), [0, said["lost"] - 1, 500, -1]),
        (("guarantee", "agreement"), [1.0, np.nextafter(said["agreement"], 1), 0.999, 0.0]),
        (("guarantee", "confidence"), [0.99, 0.950001, 1.0, 0.0]),
        (("guarantee", "inputs"), ["inside", "moved", "proved"]),
        (("guarantee", "outside"), [said["outside"] + 1, -1]),
        (("guarantee", "error"), [0.5]),
        (("guarantee", "by_class"), [[], said["by_class"][:-1], said["by_class"][::-1]]),
        (("guarantee", "by_class", 0, "samples"), [0, said["by_class"][0]["samples"] + 1, 10**12]),
        (("guarantee", "by_class", 1, "lost"), [0, 10**6]),
        (("guarantee", "by_class", 2, "agreement"), [1.0]),
        (("holdout",), [None]),
        (("holdout", "confidence"), [0.99, 0.950001]),
        (("holdout", "sha256"), ["0" * 64]),
        (("holdout", "thresholds"), [[1.0, 0.0]]),
    ]
    for place, values in places:
        for value in values:
            forged = changed(manifest, place, value)
            if forged == manifest:
                continue
            with pytest.raises((CertificateError, InputError)):
                verify(Fit.from_bytes(sealed(forged, tensors)), None, PAIRS_X, X_holdout=HELD)


@pytest.mark.parametrize("column", range(8))
def test_no_number_about_a_hold_out_row_can_be_forged(column: int) -> None:
    """Also where the promise that is shown does not depend on it, but that of a plan would."""
    manifest, tensors = opened(promised().to_bytes())
    for row in (0, 7, 499):
        for change in (1.0, -1.0, 1e-6, np.nan):
            rows = tensors["holdout"].copy()
            rows[row, column] += change
            with pytest.raises((CertificateError, InputError)):
                verify(Fit.from_bytes(sealed(manifest, {**tensors, "holdout": rows})), None, PAIRS_X, X_holdout=HELD)


def test_a_consistent_forgery_is_found_by_counting() -> None:
    """A promise that the library itself makes from other rows: it agrees with its own counts alone."""
    found = promised()
    assert found.holdout is not None
    rows = found.holdout.rows[found.holdout.rows[:, 0] == found.holdout.rows[:, 2]]
    lie = dataclasses.replace(found.holdout, rows=np.repeat(rows, 2, axis=0)[:500])
    forged = Fit.from_bytes(dataclasses.replace(found, holdout=lie).to_bytes())
    assert forged.guarantee is not None
    assert forged.guarantee.lost == 0
    with pytest.raises(CertificateError, match="the fit says something else"):
        verify(forged, None, PAIRS_X, X_holdout=HELD)


def test_the_commands_make_and_recheck_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mlp = PAIRS.mlp
    np.savez("model.npz", W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2)
    np.savez("calib.npz", X=PAIRS_X)
    np.savez("held.npz", X=HELD)
    assert main(["fit", "model.npz", "calib.npz", "--holdout", "held.npz"]) == 2
    assert "fresh" in capsys.readouterr().err
    assert main(["fit", "model.npz", "calib.npz", "--holdout", "held.npz", "--fresh", "--confidence", "0.99"]) == 0
    assert "with confidence 99%" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", "fit.safetensors", "calib.npz", "--holdout", "held.npz"]) == 0
    assert "weakest class" in capsys.readouterr().out
    assert main(["verify", "fit.safetensors", "calib.npz"]) == 0
    assert "promise" not in capsys.readouterr().out
    assert main(["verify", "fit.safetensors", "calib.npz", "--holdout", "calib.npz"]) == 1


def test_a_lossless_fit_may_promise_less_than_everything() -> None:
    made = fit(LOSSLESS.mlp, LOSSLESS_X, holdout=HELD, fresh=True, family="shared").guarantee
    assert made is not None
    assert made.agreement < 1
