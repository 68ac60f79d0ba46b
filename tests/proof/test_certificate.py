"""A certificate that is tampered with is rejected, always: by its hashes, and behind them by exact arithmetic."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe import MLP, CertificateError, Evidence, Fit, InputError, PolynomialModel, fit, verify
from quad4fhe.proof.certificate import certify
from quad4fhe.proof.evidence import check_evidence, contradiction_weights
from support.cases import CASES, LOSSLESS, LOSSLESS_X, PAIRS, PLANE, PLANE_X
from support.strategies import seeds


def test_the_cases_are_the_three_statements() -> None:
    assert LOSSLESS.certificate.statement == "lossless"
    assert PLANE.certificate.impossible.geometry == "plane"
    assert PAIRS.certificate.impossible.geometry == "pairs"
    for found, X in CASES:
        verify(found, found.mlp, X)
        verify(Fit.from_bytes(found.to_bytes()), None, X)


@given(st.sampled_from([0, 1, 2]), st.data())
def test_any_flipped_bit_of_a_fit_file_is_noticed(case: int, data: st.DataObject) -> None:
    found, X = CASES[case]
    content = bytearray(found.to_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CertificateError, InputError)):
        verify(Fit.from_bytes(bytes(content)), None, X)


def resealed(found: Fit, **change: object) -> Fit:
    """A forger's work: change the fit, then write every hash anew. What reading a file refuses is not in the way."""
    changed = dataclasses.replace(found, **change)
    claim = msgspec.structs.replace(changed.certificate, replacement_sha256=changed.model.sha256)
    return dataclasses.replace(changed, certificate=claim)


@given(st.sampled_from([0, 1, 2]), st.sampled_from(["alpha", "beta", "eta", "tau"]), st.integers(0, 51))
def test_a_flipped_bit_of_a_coefficient_is_noticed_even_with_new_hashes(case: int, name: str, bit: int) -> None:
    found, X = CASES[case]
    value = np.array(getattr(found, name), dtype=np.float64)
    flipped = float((value.view(np.uint64) ^ np.uint64(1 << bit)).view(np.float64))
    changed = {key: getattr(found, key) for key in ("alpha", "beta", "eta", "tau")} | {name: flipped}
    if PolynomialModel.shared(found.mlp, **changed).sha256 == found.model.sha256:
        return  # a last bit that rounds away in S, T and c: the same model, so the claim is as true as before
    with pytest.raises(CertificateError, match="are not the coefficients"):
        verify(resealed(found, **{name: flipped}), None, X)


@given(st.sampled_from([0, 1, 2]), st.data())
def test_a_changed_calibration_row_is_noticed(case: int, data: st.DataObject) -> None:
    found, X = CASES[case]
    row, column = data.draw(st.integers(0, len(X) - 1)), data.draw(st.integers(0, X.shape[1] - 1))
    changed = X.copy()
    changed[row, column] = np.nextafter(changed[row, column], np.inf)
    with pytest.raises(CertificateError, match="calibration data"):
        verify(found, None, changed)
    with pytest.raises(CertificateError, match=f"{len(X)} calibration rows, but X_cal has {len(X) - 1}"):
        verify(found, None, np.delete(X, row, axis=0))
    with pytest.raises(CertificateError, match="calibration data"):
        verify(found, None, np.roll(X, 1, axis=0))


@given(st.sampled_from([1, 2]), st.data())
def test_a_changed_mismatch_list_is_noticed_even_with_new_hashes(case: int, data: st.DataObject) -> None:
    found, X = CASES[case]
    listed = set(found.certificate.mismatches)
    index = data.draw(st.integers(0, len(X) - 1))
    claim = msgspec.structs.replace(found.certificate, mismatches=sorted(listed ^ {index}))
    with pytest.raises(CertificateError, match=f"calibration row {index}"):
        verify(resealed(found, certificate=claim), None, X)


def forged(found: Fit, **change: object) -> Fit:
    return resealed(found, certificate=msgspec.structs.replace(found.certificate, **change))


def test_false_statements_are_refused_even_with_new_hashes() -> None:
    with pytest.raises(CertificateError, match="says lossless, but the replacement is measured"):
        verify(forged(PLANE, statement="lossless", margin=0.1, impossible=None), None, PLANE_X)
    with pytest.raises(CertificateError, match="says measured, but the replacement is lossless"):
        verify(forged(LOSSLESS, statement="measured"), None, LOSSLESS_X)
    with pytest.raises(CertificateError, match="only a lossless replacement has a margin"):
        verify(forged(PLANE, margin=5.0), None, PLANE_X)
    with pytest.raises(CertificateError, match="every decision is kept and that this is impossible"):
        verify(forged(LOSSLESS, impossible=Evidence(geometry="plane", samples=[0, 1])), None, LOSSLESS_X)
    with pytest.raises(CertificateError, match="the smallest margin is"):
        verify(forged(LOSSLESS, margin=2 * LOSSLESS.certificate.margin), None, LOSSLESS_X)
    with pytest.raises(CertificateError, match="tie on 0 rows, the certificate says 3"):
        verify(forged(LOSSLESS, ties=3), None, LOSSLESS_X)
    with pytest.raises(CertificateError, match="format 3"):
        verify(forged(LOSSLESS, format=3), None, LOSSLESS_X)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"family": "cubic"}, "family 'cubic'"),
        ({"family": "unitwise"}, "unitwise coefficients"),
        ({"alpha": None}, "wanted four finite numbers"),
        ({"alpha": np.ones(6)}, "wanted four finite numbers"),
        ({"regime": "hard"}, "said to be hard"),
        ({"regime": "harder"}, "the regime 'harder' is unknown"),
        ({"regime": "hard "}, "the regime 'hard ' is unknown"),
        ({"regime": "kl"}, "the regime 'kl' is unknown for the family 'shared'"),
        ({"threshold": "Zero"}, "the threshold is said to be 'Zero', which is neither"),
        ({"box": PLANE.box * 2}, "range of the calibration data"),
        ({"box": np.full((2, 3), np.nan)}, "range of the calibration data"),
        ({"margins": PLANE.margins + 1}, "margins are not those"),
        ({"margins": PLANE.margins[:5]}, "margins are not those"),
    ],
)
def test_what_else_a_fit_shows_is_checked_too(change: dict[str, object], says: str) -> None:
    with pytest.raises(CertificateError, match=says):
        verify(resealed(PLANE, **change), None, PLANE_X)


def test_a_free_threshold_can_not_pass_for_zero() -> None:
    free = fit(PLANE.mlp, PLANE_X, threshold="free", family="shared")
    with pytest.raises(CertificateError, match="said to be zero"):
        verify(resealed(free, threshold="zero"), None, PLANE_X)


def test_a_large_row_does_not_loosen_the_check_of_the_margin() -> None:
    X = np.vstack([LOSSLESS_X, LOSSLESS_X[:1] * 1e12])
    found = fit(LOSSLESS.mlp, X, family="shared")
    assert found.certificate.statement == "lossless"
    with pytest.raises(CertificateError, match="the smallest margin is"):
        verify(forged(found, margin=100 * found.certificate.margin), None, X)


def test_coefficients_that_are_not_lossless_can_not_be_certified_by_new_hashes() -> None:
    """A complete forgery: other coefficients, all hashes right, the claim left standing."""
    bad = LOSSLESS.alpha, LOSSLESS.beta, LOSSLESS.eta - 50 / float(LOSSLESS.mlp.W2.sum())
    model = PolynomialModel.shared(LOSSLESS.mlp, *bad)
    forgery = resealed(LOSSLESS, model=model, alpha=bad[0], beta=bad[1], eta=bad[2])
    with pytest.raises(CertificateError, match="decisions change and the certificate lists 0"):
        verify(forgery, None, LOSSLESS_X)


@given(st.data())
def test_evidence_with_another_index_is_refused_unless_it_is_evidence_too(data: st.DataObject) -> None:
    found, X = data.draw(st.sampled_from(CASES[1:]))
    evidence = found.certificate.impossible
    k = data.draw(st.integers(0, len(evidence.samples) - 1))
    changed = msgspec.structs.replace(evidence, samples=list(evidence.samples))
    changed.samples[k] = data.draw(st.integers(0, len(X) - 1))
    if changed.samples == evidence.samples:
        return
    changed_fit = dataclasses.replace(found, certificate=msgspec.structs.replace(found.certificate, impossible=changed))
    # As a file, any change is noticed ...
    before, after = (json.dumps(list(e.samples)).replace(" ", "").encode() for e in (evidence, changed))
    tampered = found.to_bytes().replace(b'\\"samples\\":' + before, b'\\"samples\\":' + after)
    if len(before) == len(after):
        assert tampered != found.to_bytes()
        with pytest.raises(CertificateError, match="changed or damaged"):
            Fit.from_bytes(tampered)
    # ... and behind the hashes only true evidence passes: the weights solve the system exactly.
    try:
        verify(changed_fit, None, X)
    except CertificateError:
        return
    weights = check_evidence(found.mlp, X, found.mlp.decide(X), changed)
    assert sum(weights) == 1
    assert min(weights) >= 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples": [0, 1, 2, 3, 4]}, "1 to 4 rows"),
        ({"samples": []}, "1 to 4 rows"),
        ({"samples": [0, 500]}, "row 500, but there are 80"),
        ({"samples": [-1, 0]}, "row -1"),
        ({"scale": True}, "without rivals or scale"),
        ({"rivals": [0, 0, 0, 0]}, "without rivals or scale"),
        ({"geometry": "pairs", "samples": [0, 1]}, "one rival per sample"),
        ({"geometry": "pairs", "samples": [0], "rivals": [7]}, "not a rival"),
    ],
)
def test_malformed_evidence_is_refused(change: dict[str, object], says: str) -> None:
    evidence = msgspec.structs.replace(PLANE.certificate.impossible, **change)
    with pytest.raises(CertificateError, match=says):
        check_evidence(PLANE.mlp, PLANE_X, PLANE.mlp.decide(PLANE_X), evidence)


@given(seeds, st.integers(1, 6), st.integers(1, 4))
def test_contradiction_weights_solve_the_system_exactly(seed: int, rows: int, dimension: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = [[Fraction(int(v), 4) for v in row] for row in rng.integers(-4, 5, (rows, dimension))]
    weights = contradiction_weights(matrix)
    if weights is not None:
        assert sum(weights) == 1
        assert min(weights) >= 0
        for column in range(dimension):
            assert sum(w * row[column] for w, row in zip(weights, matrix, strict=True)) == 0


def test_a_tie_of_the_replacement_is_not_lossless() -> None:
    mlp = MLP([[1.0]], [0.0], [[1.0]], [0.0])
    X = np.array([[1.0], [0.0], [-1.0]])
    certificate, _ = certify(mlp, PolynomialModel.shared(mlp, 0.0, 1.0, 0.0), X)
    assert certificate.mismatches == []
    assert certificate.statement == "measured"
