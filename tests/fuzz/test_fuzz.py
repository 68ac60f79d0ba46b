"""A bounded, repeatable part of the fuzzing, and what it once found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.mutations import mutated
from fuzz.run import NAMES
from fuzz.targets import TARGETS, fit_seeds, plan_seeds

COUNTS = {"messages": 1500, "plans": 6000, "fits": 4000}


def test_the_program_names_every_target() -> None:
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_are_accepted(name: str) -> None:
    target = TARGETS[name]
    accepted = [target.run(seed) for seed in target.seeds()]
    assert all(accepted)  # seeds are what the library writes


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_accepted_or_refused_in_one_line(name: str) -> None:
    target = TARGETS[name]
    accepted = sum(target.run(data) for data in mutated(target.seeds(), COUNTS[name], seed=20))
    assert 0 < accepted < COUNTS[name] / 2


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x01", b"\x02", b"\x09" + bytes(200)])
@pytest.mark.parametrize("name", TARGETS)
def test_tiny_inputs_are_refused(name: str, data: bytes) -> None:
    if (name, data[:1]) != ("fits", b"\x02"):  # the true manifest with zeros for its tensors is well-formed
        assert not TARGETS[name].run(data)


@pytest.mark.parametrize("value", [10**400, 2**300, -(10**400), 1e308])
@pytest.mark.parametrize("field", ["upload_bytes", "client_seconds"])
def test_a_plan_with_an_absurd_forecast_is_refused(field: str, value: float) -> None:
    plan = json.loads(plan_seeds()[0][1:])
    plan["forecast"][field] = value
    assert not TARGETS["plans"].run(b"\x00" + json.dumps(plan).encode())


@pytest.mark.parametrize("value", [0.0, -1.0, 1.0, 5])
def test_a_plan_whose_failure_has_no_probability_is_refused(value: float) -> None:
    plan = json.loads(plan_seeds()[0][1:])
    plan["error"]["failure"] = value
    assert not TARGETS["plans"].run(b"\x00" + json.dumps(plan).encode())


@pytest.mark.parametrize("manifest", [b"[" * 100_000, b'{"a":' * 50_000, b'{"a\\nb": 1}', b'{"a\\u001b[2Jb": 1}'])
def test_a_fit_file_with_a_deep_or_multi_line_manifest_is_refused_in_one_line(manifest: bytes) -> None:
    assert not TARGETS["fits"].run(b"\x01" + manifest)
    whole = fit_seeds()[1]
    assert not TARGETS["fits"].run(whole[:2] + b'"a\\nb":1,' + whole[2:])


def test_the_command_counts_its_inputs_and_keeps_a_crash(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "run.py"), "--engine", "mutations", "--target", "plans"]
    done = subprocess.run([*command, "--runs", "50"], capture_output=True, text=True, check=True)
    assert "plans: 50 mutated inputs" in done.stdout
    assert "no crash" in done.stdout
    kept = tmp_path / "input"
    kept.write_bytes(plan_seeds()[0])
    done = subprocess.run([*command, "--replay", str(kept)], capture_output=True, text=True, check=True)
    assert done.stdout == "accepted\n"


@pytest.mark.parametrize(
    ("change", "flags"),
    [({"samples": 0}, {}), ({"lost": 10**6}, {}), ({}, {"accepted": 0, "lost": 0}), ({}, {"accepted": 10**6})],
)
def test_a_plan_whose_promise_counts_what_cannot_be_is_refused(change: dict[str, int], flags: dict[str, int]) -> None:
    promise = {"samples": 9, "lost": 1, "agreement": 0.5, "inputs": "inside", "confidence": 0.5, "outside": 2}
    promise |= {"error": 0.25, "by_class": []}
    reliable = {"level": 0.5, "power": 0.5, "threshold": 0.25, "accepted": 4, "lost": 1}
    plan = json.loads(plan_seeds()[0][1:]) | {"promise": promise | {"reliable": reliable}}
    assert TARGETS["plans"].run(b"\x00" + json.dumps(plan).encode())
    plan["promise"] = promise | change | {"reliable": reliable | flags}
    assert not TARGETS["plans"].run(b"\x00" + json.dumps(plan).encode())
