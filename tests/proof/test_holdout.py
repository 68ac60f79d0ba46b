"""The promise of a fit: counted again by brute force, never for rows that were seen, never forged."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta

from quad4fhe import CertificateError, Fit, InputError, fit, verify
from quad4fhe.cli import main
from quad4fhe.proof.holdout import hold_out
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
        (("samples",), [501, 499, 0, 10**18]),
        (("lost",), [0, said["lost"] - 1, 500, -1]),
        (("agreement",), [1.0, np.nextafter(said["agreement"], 1), 0.999, 0.0]),
        (("confidence",), [0.99, 0.950001, 1.0, 0.0]),
        (("holdout_sha256",), ["0" * 64]),
        (("by_class",), [[], said["by_class"][:-1], said["by_class"][::-1]]),
        (("by_class", 0, "samples"), [0, said["by_class"][0]["samples"] + 1, 10**12]),
        (("by_class", 1, "lost"), [0, 10**6]),
        (("by_class", 2, "agreement"), [1.0]),
    ]
    for place, values in places:
        for value in values:
            forged = changed(manifest, ("guarantee", *place), value)
            if forged == manifest:
                continue
            with pytest.raises((CertificateError, InputError)):
                verify(Fit.from_bytes(sealed(forged, tensors)), None, PAIRS_X, X_holdout=HELD)


def test_a_consistent_forgery_is_found_by_counting() -> None:
    """A promise made by the library itself for fewer losses, or for another confidence than its bounds."""
    found = promised()
    better = hold_out(PAIRS.mlp, PAIRS.model, LikeRows(HELD[PAIRS.predict(HELD) == PAIRS.mlp.decide(HELD)]), 0.95)
    assert found.guarantee is not None
    lie = msgspec.structs.replace(better, holdout_sha256=found.guarantee.holdout_sha256)
    forged = Fit.from_bytes(dataclasses.replace(found, guarantee=lie).to_bytes())
    with pytest.raises(CertificateError, match="the fit says something else"):
        verify(forged, None, PAIRS_X, X_holdout=HELD)


def LikeRows(array: NDArray[np.float64]) -> Any:
    from quad4fhe.io.rows import ArrayRows

    return ArrayRows(array)


def test_promises_are_kept_as_often_as_they_say() -> None:
    """2,000 hold-outs drawn from a large population whose true agreement is known."""
    rng = np.random.default_rng(3)
    population = rng.normal(size=(200_000, 3))
    relu, kept = PAIRS.mlp.decide(population), PAIRS.predict(population)
    true = float(np.mean(relu == kept))
    by_class = [float(np.mean(kept[relu == c] == c)) for c in range(4)]
    broken, broken_by_class, draws = 0, 0, 2000
    from quad4fhe.proof.promise import guarantee

    seen: dict[Any, Any] = {}
    for _ in range(draws):
        at = rng.integers(0, len(population), 60)
        r, k = relu[at], kept[at]
        counts = tuple((int(np.sum(r == c)), int(np.sum((r == c) & (k != c)))) for c in range(4))
        made = seen.get(counts) or seen.setdefault(counts, guarantee(counts, 0.9, "0" * 64))
        broken += made.agreement > true
        broken_by_class += any(part.agreement > share for part, share in zip(made.by_class, by_class, strict=True))
    allowed = 0.1 + 3 * (0.1 * 0.9 / draws) ** 0.5
    assert broken / draws <= allowed
    assert broken_by_class / draws <= allowed


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
