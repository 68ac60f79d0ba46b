from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe.cli import checkup, main
from quad4fhe.doctor import Examination, examine, extras, machine, selfchecks
from quad4fhe.doctor.finding import Finding
from quad4fhe.he import _kernels_numpy, seal


@pytest.fixture(scope="module")
def examined() -> Examination:
    return examine()


def found(part: Any, name: str) -> Finding:
    return next(finding for finding in part.findings() if finding.name == name)


def test_a_working_installation_is_healthy(examined: Examination) -> None:
    assert examined.healthy
    names = [finding.name for finding in examined.findings]
    assert names[:9] == ["quad4fhe", "python", "platform", "wheels", "libraries", "cores", "memory", "BLAS", "numba"]
    checks = [finding for finding in examined.findings if finding.part == selfchecks.PART]
    assert [finding.status for finding in checks] == ["ok"] * 6
    assert {"fast", "sklearn", "onnx", "torch"} <= set(names)


def test_whatever_is_not_well_comes_with_what_mends_it(examined: Examination) -> None:
    assert all(finding.fix or finding.status == "ok" for finding in examined.findings)


def test_json_is_the_examination(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sick = Finding(part="self-checks", name="SEAL", status="failed", says="[broken]", fix="mend it")
    monkeypatch.setattr("quad4fhe.doctor.examine", lambda progress: Examination([sick]))
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is False
    assert document["findings"][0] == {"part": "self-checks", "name": "SEAL", "status": "failed"} | {
        "says": "[broken]",
        "fix": "mend it",
    }
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "[broken]" in text
    assert "-> mend it" in text
    assert "do not trust" in text


# --- each self-check can fail -----------------------------------------------------------------------------------


def test_a_kernel_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _kernels_numpy.raise_limb

    def wrong(high: Any, rows: Any, low: Any, q: int, step: float) -> None:
        real(high, rows, low, q, step)
        low[0, 0] += 1

    monkeypatch.setattr(_kernels_numpy, "raise_limb", wrong)
    finding = found(selfchecks, "residues")
    assert finding.status == "failed"
    assert "numpy kernels" in finding.says


def test_another_seal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "found_version", lambda: "4.1.2")
    seal.check_layout.cache_clear()
    finding = found(selfchecks, "SEAL")
    seal.check_layout.cache_clear()
    assert finding.status == "failed"
    assert "4.1.2" in finding.says
    assert "seal-python>=4.4,<4.5" in finding.fix


def test_decisions_that_differ_from_fractions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = selfchecks.decisions

    def wrong(model: Any, X: Any) -> Any:
        decided = real(model, X)
        decided.label[0] = 1 - decided.label[0]
        return decided

    monkeypatch.setattr(selfchecks, "decisions", wrong)
    assert found(selfchecks, "decisions").status == "failed"


def test_a_checker_that_accepts_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = selfchecks.verify(*(lambda fitted, X: (fitted, None, X))(*selfchecks._tiny()))
    monkeypatch.setattr(selfchecks, "verify", lambda fitted, mlp, X: verified)
    finding = found(selfchecks, "certificate")
    assert finding.status == "failed"
    assert "was accepted" in finding.says


@pytest.mark.parametrize("layout", ["batch", "packed"])
def test_scores_that_decrypt_wrongly_are_found(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = selfchecks.predict_encrypted

    def wrong(fitted: Any, plan: Any, X: Any) -> Any:
        prediction = real(fitted, plan, X)
        prediction.logits[:] += 2 * float(np.abs(fitted.margins).max())
        return prediction

    monkeypatch.setattr(selfchecks, "predict_encrypted", wrong)
    with pytest.raises(ArithmeticError, match="off by"):
        selfchecks._round_trip(layout)


# --- the machine ------------------------------------------------------------------------------------------------


def test_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.usable_cores() == 1
    if Path("/proc/meminfo").exists():
        assert machine.memory() == (2**29, 2**30)
        assert found(machine, "memory").status == "slow"
    assert found(machine, "cores").status == "slow"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.usable_cores() == 8


def test_more_threads_than_cores_and_no_blas_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"user_api": "blas", "internal_api": "openblas", "version": "1", "architecture": "any", "num_threads": 64}
    monkeypatch.setattr(machine.threadpoolctl, "threadpool_info", lambda: [one])
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    assert "OPENBLAS_NUM_THREADS=2" in found(machine, "BLAS").fix
    monkeypatch.setattr(machine.threadpoolctl, "threadpool_info", list)
    monkeypatch.setattr(machine.sys, "platform", "linux")
    assert found(machine, "BLAS").status == "slow"


def test_without_numba_the_fix_is_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "kernels", lambda: _kernels_numpy)
    finding = found(machine, "numba")
    assert (finding.status, finding.fix) == ("slow", "pip install 'quad4fhe[fast]'")


# --- optional parts ---------------------------------------------------------------------------------------------


def test_the_command_that_adds_a_part_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    checkup._show(Examination([extras._finding("magic", [("no-such-package", ">=1")])]))
    assert "-> pip install 'quad4fhe[magic]'" in capsys.readouterr().out


def test_a_missing_or_old_part_comes_with_the_command_that_adds_it() -> None:
    missing = extras._finding("magic", [("no-such-package", ">=1")])
    assert (missing.status, missing.fix) == ("missing", "pip install 'quad4fhe[magic]'")
    old = extras._finding("fast", [("numpy", ">=999")])
    assert old.status == "missing"
    assert "numpy >=999 (found" in old.says
    assert extras._finding("fast", [("numpy", ">=1")]).status == "ok"


def test_a_library_that_is_too_old_is_an_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "version", lambda package: "0.1" if package == "scipy" else "99")
    finding = extras.libraries()
    assert (finding.status, finding.fix) == ("failed", "pip install --upgrade quad4fhe")
    assert finding.says.startswith("scipy >=")


def test_extras_are_read_from_the_metadata_with_those_they_include() -> None:
    lines = [
        "numpy>=1.26",
        "numba>=0.59; extra == 'fast'",
        'quad4fhe[fast,sklearn]; extra == "all"',
        "scikit-learn (>=1.6) ; extra == 'sklearn'",
        "ray[default]>=2.9; python_version < '3.14' and extra == 'ray'",
    ]
    needs = extras.requirements(lines)
    assert set(needs) == {"", "fast", "all", "sklearn", "ray"}
    assert needs[""] == [("numpy", "", ">=1.26")]
    assert sorted(extras.expanded("all", needs)) == [("numba", ">=0.59"), ("scikit-learn", ">=1.6")]
    assert extras.expanded("ray", needs) == [("ray", ">=2.9")]


@pytest.mark.parametrize(
    ("version", "bounds", "old"),
    [
        ("1.9.1", ">=1.10", True),
        ("1.10", ">=1.9", False),
        ("2.13.0+cpu", ">=2.2", False),
        ("0.59", "", False),
        ("4.4.0", "<4.5,>=4.4", False),
        ("4.3.9", "<4.5,>=4.4", True),
    ],
)
def test_versions_are_compared_by_number(version: str, bounds: str, old: bool) -> None:
    assert extras.too_old(version, bounds) is old


def test_every_extra_of_the_package_has_a_purpose() -> None:
    """Also those whose metadata an old editable installation does not list yet."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - extras._DEVELOPERS <= set(extras._PURPOSE)
