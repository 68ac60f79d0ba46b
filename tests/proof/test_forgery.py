"""A forged fit file is refused, or shows nothing false.

Every place of the manifest is changed in turn, with all hashes made anew. Then the file can't be read, or `verify`
refuses it, or nothing that is displayed changes, but for the one section of the report that says it is not checked.
The places are found by walking over the file, so a new field is covered by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from quad4fhe import MLP, CertificateError, Fit, InputError, fit, verify
from quad4fhe.cli.verify import describe_verified
from quad4fhe.deep import DeepMLP
from quad4fhe.proof.exact import decisions
from support import family_fits
from support.cases import LOSSLESS, LOSSLESS_X, PAIRS, PAIRS_X, PLANE, PLANE_X
from support.forging import BOAST, changed, envelope, leaves, opened, others, sealed

REFUSED = (CertificateError, InputError)
HELD = PAIRS_X[::-1] + 0.25


@cache
def rch() -> Fit:
    """Two classes whose reduced hulls are separated."""
    return fit(PLANE.mlp, PLANE_X, regime="rch")


FITS: dict[str, tuple[Callable[[], Fit], Any]] = {
    "lossless": (lambda: LOSSLESS, LOSSLESS_X),
    "plane": (lambda: PLANE, PLANE_X),
    "rch": (rch, PLANE_X),
    "free": (lambda: fit(PLANE.mlp, PLANE_X, threshold="free", X_test=PLANE_X[:20], family="shared"), PLANE_X),
    "pairs": (lambda: fit(PAIRS.mlp, PAIRS_X, X_test=PAIRS_X[:30], family="shared"), PAIRS_X),
    "unitwise": (lambda: family_fits.pairs("unitwise"), PAIRS_X),
    "head": (lambda: family_fits.pairs("head"), PAIRS_X),
    "promise": (lambda: fit(PAIRS.mlp, PAIRS_X, holdout=HELD, fresh=True, family="shared"), PAIRS_X),
}


@cache
def honest(name: str) -> tuple[dict[str, Any], dict[str, Any], str, str]:
    """Manifest, tensors, and what is displayed without and on the page."""
    make, X = FITS[name]
    data = make().to_bytes()
    found = Fit.from_bytes(data)
    return *opened(data), shown(found, X), page(found, X)


def shown(found: Fit, X: Any) -> str:
    """Everything that `verify` and a loaded fit say in text; raises where the forgery is refused."""
    verified = verify(found, None, X)
    said = [repr(found), found.summary(), found._repr_html_(), describe_verified(verified, found)]
    return repr([*said, msgspec.to_builtins(verified)])


def checked(found: Fit, X: Any, key: str) -> None:
    """What can be shown of a fit with another tensor of this name: what is kept of hold-out rows only with these."""
    verify(found, None, X, X_holdout=HELD if key.startswith("holdout") else None)


def page(found: Fit, X: Any, drawn: bool = False) -> str:
    """The report and its JSON, without the time it was made and the section that says it is not checked.

    Drawing takes most of the time, so of pictures there are only their words and numbers unless they are `drawn`.
    """
    pytest.importorskip("matplotlib", reason="the report needs matplotlib: pip install 'quad4fhe[report]'")
    from quad4fhe.report import Options, Picture, report

    made = report(found, X, options=Options(ladder="none", samples=64))
    words = [(p.name, p.title, p.alt, p.caption, p.head, p.rows) for p in made.pictures]
    with nullcontext() if drawn else patch.object(Picture, "inline", lambda self: ""):
        html = made.html()
    text, cut = re.subn(r'<section id="stated">.*?</section>', "", html, flags=re.DOTALL)
    assert cut == 1
    document = re.sub(r'"model_id": "[0-9a-f]{64}"', "", json.dumps(made.to_dict()))  # a random name
    return re.sub(r"Made on [^<]*? UTC", "", text) + document + repr(words)


def contradict(found: Fit, X: Any) -> bool:
    """Whether the rows that the evidence names, with the weights that `verify` found, add up to zero."""
    named, weights = found.certificate.impossible, np.array(verify(found, None, X).weights)
    assert named is not None
    y, W2 = found.mlp.hidden(X), found.mlp.W2
    Q, L, B, b = y**2 @ W2.T, y @ W2.T, W2.sum(axis=1), found.mlp.b2
    if found.mlp.outputs == 1:
        Q, L, B, b = (np.concatenate([np.zeros_like(part), part], axis=-1) for part in (Q, L, B, b))
    target = found.mlp.decide(X)
    rows = [[0.0, 0.0, 0.0, 1.0]] if named.scale else []
    for at, i in enumerate(named.samples):
        t = target[i]
        c = 1 - t if named.geometry == "plane" else named.rivals[at]
        last = [2.0 * t - 1.0, 0.0] if named.geometry == "plane" else [B[t] - B[c], b[t] - b[c]]
        rows.append([Q[i, t] - Q[i, c], L[i, t] - L[i, c], *last])
    size = np.abs(rows).max()
    return bool((weights >= 0).all() and np.abs(weights @ np.array(rows)).max() <= 1e-9 * size and sum(weights) > 0.99)


Change = tuple[tuple[str | int, ...], Any]


def apart(changes: list[Change]) -> list[list[Change]]:
    """The changes in few groups, in none of which one is at a place within that of another."""
    groups: list[list[Change]] = []
    for place, value in changes:
        for group in groups:
            if not any(place[: len(other)] == other[: len(place)] for other, _ in group):
                group.append((place, value))
                break
        else:
            groups.append([(place, value)])
    return groups


def shows_nothing(name: str, changes: list[Change]) -> bool:
    """Whether a page that has all these changes is the honest one; where they contradict each other, half by half."""
    manifest, tensors, _, paper = honest(name)
    together = manifest
    for place, value in changes:
        together = changed(together, place, value)
    try:
        found = Fit.from_bytes(sealed(together, tensors))
    except REFUSED:
        half = len(changes) // 2
        assert half, f"{changes} were accepted alone"
        return shows_nothing(name, changes[:half]) and shows_nothing(name, changes[half:])
    return page(found, FITS[name][1]) == paper


@pytest.mark.parametrize("name", FITS)
def test_no_place_of_a_fit_file_can_be_forged_into_a_display(name: str) -> None:
    manifest, tensors, text, _ = honest(name)
    X = FITS[name][1]
    accepted: dict[tuple[str | int, ...], Change] = {}
    refusals = []
    for place, value in leaves(manifest):
        for other in others(value):
            if other == value and type(other) is type(value):
                continue
            forged = changed(manifest, place, other)
            try:
                found = Fit.from_bytes(sealed(forged, tensors))
                said = shown(found, X)
            except REFUSED as refusal:
                refusals.append(str(refusal))
                continue
            assert BOAST not in json.dumps(forged), f"{place}: free text was accepted"
            if place[:2] == ("certificate", "impossible"):  # other evidence may be displayed if it is evidence
                assert contradict(found, X), f"{place} changed from {value!r} to {other!r} is no evidence"
                continue
            assert said == text, f"{place} changed from {value!r} to {other!r} is displayed"
            if not place:  # a field that says nothing, such as names that are not known, may be left out, and no other
                assert set(other) < set(value)
                assert all(value[key] is None for key in set(value) - set(other))
                continue
            accepted.setdefault(tuple("*" if isinstance(key, int) else key for key in place), (place, other))
    assert all("\n" not in refusal and len(refusal) < 500 for refusal in refusals)
    # What says how the fit was made can't be checked, and must not be more than this.
    assert {place[0] for place in accepted} <= {
        "diagnostics",
        "regime",
        "seed",
        "threshold",
        "versions",
        "salt",
        "holdout",
    }
    assert ("seed",) in accepted
    for group in apart(list(accepted.values())):  # few pages, each with many changes: pages take a while
        assert shows_nothing(name, group), f"one of {group} is on the page"


@pytest.mark.parametrize("name", ["plane", "pairs"])
def test_no_picture_of_the_page_shows_what_is_not_checked(name: str) -> None:
    manifest, tensors, _, _ = honest(name)
    forged = changed(changed(manifest, ("seed",), 7), ("diagnostics", "seconds"), {})
    pages = (page(Fit.from_bytes(sealed(each, tensors)), FITS[name][1], drawn=True) for each in (manifest, forged))
    first, second = pages
    assert first == second


@pytest.mark.parametrize("name", FITS)
def test_no_tensor_of_a_fit_file_can_be_forged_into_a_display(name: str) -> None:
    manifest, tensors, _, _ = honest(name)
    X, rng = FITS[name][1], np.random.default_rng(0)
    for key, array in tensors.items():
        for index in rng.integers(0, array.size, 3):
            for factor in (2.0, -1.0, 0.0, 1 + 1e-7, np.inf, np.nan):
                other = array.copy()
                other.flat[index] = other.flat[index] * factor if np.isfinite(factor) else factor
                if np.array_equal(other, array):  # zero times anything
                    continue
                with pytest.raises(REFUSED):
                    checked(Fit.from_bytes(sealed(manifest, {**tensors, key: other})), X, key)
        for other in (array[:-1], array.ravel(), array[None], array.astype(np.float32)):
            if other.shape != array.shape or other.dtype != array.dtype:
                with pytest.raises(REFUSED):
                    checked(Fit.from_bytes(sealed(manifest, {**tensors, key: np.ascontiguousarray(other)})), X, key)


def test_a_loaded_fit_says_that_it_is_not_verified_and_repeats_no_word_on_its_making() -> None:
    found = Fit.from_bytes(PAIRS.to_bytes())
    assert repr(found).endswith("measured; loaded, not verified)")
    assert "not verified" in dict(found.summary())
    assert "not verified" not in repr(PAIRS)
    assert str(PAIRS.regime) in repr(PAIRS)
    told = repr(found) + repr(found.summary()) + found._repr_html_()
    assert str(found.regime) not in told
    assert not any(note in told for note in found.diagnostics.notes)


def twice(text: str, key: str) -> str:
    """JSON in which a key comes twice: the first with another value."""
    return text.replace(f'"{key}":', f'"{key}":null,"{key}":', 1)


def rewritten(header: str, tail: bytes) -> bytes:
    body = header.encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body + tail


def taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


@pytest.mark.parametrize("name", ["lossless", "pairs", "head"])
def test_a_key_that_comes_twice_is_refused_wherever_it_is(name: str) -> None:
    manifest, tensors, _, _ = honest(name)
    compact = json.dumps(manifest, separators=(",", ":"))
    for key in {str(place[-1]) for place, _ in leaves(manifest) if place and isinstance(place[-1], str)}:
        doubled = twice(compact, key)
        assert doubled != compact
        with pytest.raises(REFUSED):
            Fit.from_bytes(sealed(doubled.encode(), tensors))
    header, tail = taken_apart(sealed(manifest, tensors))
    seal = header["__metadata__"]["quad4fhe"]
    for key in ("sha256", "manifest"):
        other = {**header, "__metadata__": {"quad4fhe": twice(seal, key)}}
        with pytest.raises(InputError, match="is not a fit file"):
            Fit.from_bytes(rewritten(json.dumps(other), tail))
    text = json.dumps(header, separators=(",", ":"))
    Fit.from_bytes(rewritten(text, tail))  # as it is, it can be read
    for key in ("W1", "S", "margins", "dtype", "shape", "data_offsets", "__metadata__", "quad4fhe"):
        with pytest.raises(InputError, match="is not a fit file"):
            Fit.from_bytes(rewritten(twice(text, key), tail))
    entry = json.dumps(header["S"])
    with pytest.raises(InputError, match="is not a fit file"):  # the second entry is as good as the first
        Fit.from_bytes(rewritten(text.replace('"S":', f'"S":{entry},"S":', 1), tail))


def with_entry(header: dict[str, Any], name: str, **change: Any) -> str:
    return json.dumps({**header, name: {**header[name], **change}})


def test_a_header_that_can_be_read_in_two_ways_is_refused() -> None:
    header, tail = taken_apart(PAIRS.to_bytes())
    order = sorted((entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__")
    (first, a), (second, b) = order[0], order[1]
    last = order[-1][1]
    end = order[-1][0][1]
    wrong = [
        (json.dumps(header), tail + b"\0" * 8),  # bytes after the last tensor
        (json.dumps(header), tail[:-8]),
        (json.dumps({**header, "extra": header[a]}), tail),  # two names for one place
        (with_entry(header, b, data_offsets=first, shape=header[a]["shape"]), tail),  # overlap
        (with_entry(header, last, data_offsets=[end - 8, end], shape=[1]), tail),  # gap
        (with_entry(header, a, data_offsets=[second[0], second[1]]), tail),
        (with_entry(header, a, dtype="I64"), tail),
        (with_entry(header, a, strides=[8]), tail),
        (with_entry(header, a, shape=[-1, -header[a]["shape"][0]]), tail),
        (with_entry(header, a, shape=[float(side) for side in header[a]["shape"]]), tail),
        (with_entry(header, a, shape=[*header[a]["shape"], 1, 1]), tail),
        (with_entry(header, a, shape=[2**62, 2**62]), tail),
        (with_entry(header, a, data_offsets=[True, 8]), tail),
        (json.dumps({**header, "__metadata__": {**header["__metadata__"], "note": BOAST}}), tail),
        (json.dumps({name: entry for name, entry in header.items() if name != "box"}), tail),
        (json.dumps([header]), tail),
        ("[" * 100_000, tail),
        (json.dumps(header)[:-1] + ',"x":NaN}', tail),
        (json.dumps(header)[:-1] + ',"\\ud800":0}', tail),
    ]
    for text, body in wrong:
        with pytest.raises(InputError, match="is not a fit file"):
            Fit.from_bytes(rewritten(text, body))
    short = PAIRS.to_bytes()
    with pytest.raises(InputError, match="is not a fit file"):
        Fit.from_bytes((2**62).to_bytes(8, "little") + short[8:])


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_mutated_files_are_refused_in_one_line_or_read_as_they_are(seed: int, cuts: int) -> None:
    """Bytes changed, cut out and doubled, mostly in the header, never give a traceback."""
    rng = np.random.default_rng(seed)
    data = bytearray(PAIRS.to_bytes())
    size = int.from_bytes(data[:8], "little")
    for _ in range(cuts):
        at, length = int(rng.integers(0, size if rng.random() < 0.9 else len(data))), int(rng.integers(1, 12))
        kind = rng.integers(0, 3)
        part = bytes(data[at : at + length])
        data[at : at + length] = (b"", part + part, bytes(rng.integers(0, 256, length, dtype=np.uint8)))[kind]
    try:
        said = str(Fit.from_bytes(bytes(data)).to_bytes() == PAIRS.to_bytes())
    except REFUSED as refusal:
        said = str(refusal)
    assert said != "False"
    assert "\n" not in said


@pytest.mark.parametrize("name", FITS)
def test_tensors_are_read_as_safetensors_reads_them(name: str) -> None:
    data = FITS[name][0]().to_bytes()
    found = Fit.from_bytes(data)
    theirs = load(data)
    ours = {"W1": found.mlp.W1, "b1": found.mlp.b1, "W2": found.mlp.W2, "b2": found.mlp.b2}
    ours |= {"S": found.S, "T": found.T, "c": found.c, "box": found.box, "margins": found.margins}
    if found.holdout is not None:
        ours |= {"holdout": found.holdout.rows, "holdout_box": found.holdout.box}
    assert set(ours) == set(theirs)
    for key, array in ours.items():
        assert array.tobytes() == theirs[key].tobytes()
        assert array.shape == theirs[key].shape


def test_half_a_character_is_refused() -> None:
    manifest, tensors, _, _ = honest("pairs")
    for place in (("regime",), ("family",), ("diagnostics", "hard"), ("versions", "numpy")):
        with pytest.raises(InputError, match="is not a fit file"):
            Fit.from_bytes(sealed(changed(manifest, place, "\ud800"), tensors))


def test_remarks_that_no_fit_makes_are_refused() -> None:
    manifest, tensors, _, _ = honest("pairs")
    for note in (BOAST, "", "the ReLU logits tie exactly on many rows; the lowest class index is their target", "\n"):
        forged = changed(manifest, ("diagnostics", "notes"), [note])
        with pytest.raises(CertificateError, match="which no fit makes"):
            Fit.from_bytes(sealed(forged, tensors))


@pytest.mark.parametrize(
    "regime",
    [
        *("", "hard ", "Hard", "hard\n", "rch", "rch()", "rch(1.5)", "rch(0)", "rch(-0.1)", "rch(.01)", "rch(0.010)"),
        *("soft(1e)", "soft(0x1)", "soft(nan)", "soft(inf)", "soft(1)+polish+polish", "soft(1)+hinge", "soft(1_0)"),
        *("kl(1)", "soft(\N{FULLWIDTH DIGIT ONE})", "soft(1) audited", "soft(1e-3.4)", "soft(1)(2)"),
        "soft(" + "1" * 500 + ")",
    ],
)
def test_malformed_regimes_are_refused(regime: str) -> None:
    manifest, tensors, _, _ = honest("pairs")
    with pytest.raises(InputError, match="regime"):
        Fit.from_bytes(sealed(changed(manifest, ("regime",), regime), tensors))


def test_the_hash_of_the_forger_is_the_hash_of_the_library() -> None:
    """Without this, everything above would be refused for a wrong hash alone."""
    for make, _ in FITS.values():
        data = make().to_bytes()
        manifest, tensors = opened(data)
        assert Fit.from_bytes(sealed(manifest, tensors)).to_dict() == Fit.from_bytes(data).to_dict()
        header, _ = taken_apart(data)
        text = header["__metadata__"]["quad4fhe"]
        start = text.index('"manifest":') + len('"manifest":')
        assert envelope(text[start:-1].encode(), tensors) == text


def test_a_model_can_not_be_exchanged() -> None:
    manifest, tensors, _, _ = honest("pairs")
    other = MLP(tensors["W1"], tensors["b1"], tensors["W2"] * 2, tensors["b2"])
    forged = changed(manifest, ("certificate", "model_sha256"), other.sha256)
    with pytest.raises(CertificateError):
        shown(Fit.from_bytes(sealed(forged, {**tensors, "W2": other.W2})), PAIRS_X)


def _gelu() -> tuple[MLP, np.ndarray]:
    """A GELU network on 60 rows; two equal classes are level on those that they win."""
    rng = np.random.default_rng(4)
    W2 = rng.normal(size=(3, 5))
    mlp = MLP(rng.normal(size=(5, 3)), rng.normal(size=5), W2[[0, 0, 1]], [0.0, 0.0, 0.1], activation="gelu")
    return mlp, rng.normal(size=(60, 3))


@pytest.mark.parametrize("kind", ["gelu", "relu", "deep"])
def test_how_decisions_were_settled_can_not_be_forged(kind: str) -> None:
    if kind == "relu":
        mlp, X = PAIRS.mlp, PAIRS_X
    elif kind == "gelu":
        mlp, X = _gelu()
    else:
        head, X = _gelu()
        inner = (np.eye(5)[:4], np.zeros(4))
        mlp = DeepMLP(head.W1, head.b1, [inner, (head.W2[:, :4], head.b2)], activation=("relu", "tanh"))
    manifest, tensors = opened(fit(mlp, X, family="shared").to_bytes())
    stated = manifest["certificate"]["settled"]
    assert sum(stated.values()) == len(X)
    found = Fit.from_bytes(sealed(manifest, tensors))
    verified = verify(found, mlp, X)
    assert msgspec.to_builtins(verified.settled) == stated
    assert verified.settled.is_exact == (kind == "relu")
    assert dict(describe_verified(verified, found))["settled"].endswith(verified.settled.sentence())
    if kind != "relu":
        assert stated["level"] > 0
        assert stated["trusted"] > 0
    moved = [
        stated | {one: stated[one] - 1, other: stated[other] + 1}
        for one in stated
        for other in stated
        if one != other and stated[one]
    ]
    more = [stated | {way: stated[way] + 1} for way in stated]
    fewer = [{way: count for way, count in stated.items() if way != left} for left in stated]
    for other in [*moved, *more, *fewer, None, {}, stated | {"proved": 0}, dict.fromkeys(stated, 0)]:
        with pytest.raises(REFUSED):
            verify(Fit.from_bytes(sealed(changed(manifest, ("certificate", "settled"), other), tensors)), mlp, X)
    with pytest.raises(CertificateError, match="has format 1, this version checks format 2"):
        Fit.from_bytes(sealed(changed(manifest, ("certificate", "format"), 1), tensors))


def test_level_rows_can_not_hide_behind_rows_at_the_limit_of_floats() -> None:
    """Another machine may settle the latter in another way, but no floats settle the former."""
    mlp = MLP([[1.0], [1.0]], [0.0, -0.5], [[1.0, 0.0]], [0.0], activation="tanh")
    X = np.concatenate([np.zeros(3), 1e-11 * np.array([0.9, 1.0, 1.1]), np.linspace(-1, 2, 30)])[:, None]
    assert decisions(mlp, X).close == 3
    manifest, tensors = opened(fit(mlp, X, family="shared").to_bytes())
    stated = manifest["certificate"]["settled"]
    assert (stated["level"], stated["trusted"]) == (3, 33)
    near = stated | {"trusted": 30, "intervals": 3}
    assert verify(Fit.from_bytes(sealed(changed(manifest, ("certificate", "settled"), near), tensors)), mlp, X)
    hidden = stated | {"level": 0, "intervals": 3}
    with pytest.raises(CertificateError, match="3 level at 1,024 bits"):
        verify(Fit.from_bytes(sealed(changed(manifest, ("certificate", "settled"), hidden), tensors)), mlp, X)
