"""Regimes: what they print, parse and compare with."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quad4fhe import InputError
from quad4fhe.regime import Regime

NAMES = ["hard", "rch(0.01)", "rch(1)", "soft(0.1)", "soft(0.1)+polish", "soft(1e-05)", "kl", "kl+hinge"]


@pytest.mark.parametrize("name", NAMES)
def test_a_regime_prints_as_its_name_and_is_equal_to_it(name: str) -> None:
    found = Regime.parse(name)
    assert str(found) == f"{found}" == name
    assert found == name
    assert found == Regime(found.kind, found.parameter, found.polished)
    assert hash(found) == hash(name)
    assert found != "soft"
    assert json.dumps(str(found)) == f'"{name}"'


@given(st.floats(1e-9, 1.0), st.booleans())
def test_a_parameter_has_the_digits_that_are_printed(value: float, polished: bool) -> None:
    found = Regime("soft", value, polished)
    assert Regime.parse(str(found)).parameter == found.parameter
    assert (found.kind, found.polished) == ("soft", polished)


def test_its_properties_say_what_it_is() -> None:
    assert Regime("hard").is_hard
    assert Regime("rch", 0.5).is_reduced
    assert Regime("kl", polished=True).is_learned
    assert not Regime("soft", 1.0).is_hard


@pytest.mark.parametrize("kind", ["hard", "rch", "soft", "kl"])
def test_what_no_fit_can_be_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="unknown, wanted hard"):
        Regime(kind, 0.0 if kind in ("rch", "soft") else 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "hard ", "hard+polish", "rch()", "rch(0.010)", "rch(2)", "soft(nan)", "kl(1)"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown, wanted hard"):
        Regime.parse(name)


def test_a_regime_is_formatted_like_its_text() -> None:
    assert f"{Regime.parse('rch(0.01)'):>12}|" == "   rch(0.01)|"
