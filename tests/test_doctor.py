from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from quad4fhe import _selfchecks, doctor
from quad4fhe.cli import doctor as doctor_page
from quad4fhe.cli import main
from quad4fhe.doctor import Examination, Finding, examine
from quad4fhe.he import seal
from quad4fhe.layouts import _kernels_numba


@pytest.fixture(scope="module")
def examined() -> Examination:
    return examine()


def found(part: Any, name: str) -> Finding:
    return next(finding for finding in part() if finding.name == name)


def test_a_working_installation_is_healthy(examined: Examination) -> None:
    assert examined.healthy
    names = [finding.name for finding in examined.findings]
    assert names[:8] == ["quad4fhe", "python", "platform", "wheels", "libraries", "cores", "memory", "BLAS"]
    checks = [finding for finding in examined.findings if finding.part == "self-checks"]
    assert [finding.status for finding in checks] == ["ok"] * 6
    assert {"sklearn", "onnx", "torch"} <= set(names)


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
    real = _kernels_numba.raise_limb

    def wrong(high: Any, rows: Any, low: Any, q: int, step: float) -> None:
        real(high, rows, low, q, step)
        low[0, 0] += 1

    monkeypatch.setattr(_kernels_numba, "raise_limb", wrong)
    finding = found(doctor.selfchecks, "residues")
    assert finding.status == "failed"
    assert "is not that of Python's integers" in finding.says


def test_another_seal_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "found_version", lambda: "4.1.2")
    seal.check_layout.cache_clear()
    finding = found(doctor.selfchecks, "SEAL")
    seal.check_layout.cache_clear()
    assert finding.status == "failed"
    assert "4.1.2" in finding.says
    assert "seal-python>=4.4,<4.5" in finding.fix


def test_decisions_that_differ_from_fractions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _selfchecks.decisions

    def wrong(model: Any, X: Any) -> Any:
        decided = real(model, X)
        decided.label[0] = 1 - decided.label[0]
        return decided

    monkeypatch.setattr(_selfchecks, "decisions", wrong)
    assert found(doctor.selfchecks, "decisions").status == "failed"


def test_a_checker_that_accepts_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = _selfchecks.verify(*(lambda fitted, X: (fitted, None, X))(*_selfchecks._tiny()))
    monkeypatch.setattr(_selfchecks, "verify", lambda fitted, mlp, X: verified)
    finding = found(doctor.selfchecks, "certificate")
    assert finding.status == "failed"
    assert "was accepted" in finding.says


@pytest.mark.parametrize("layout", ["batch", "lift"])
def test_scores_that_decrypt_wrongly_are_found(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _selfchecks.predict_encrypted

    def wrong(fitted: Any, plan: Any, X: Any) -> Any:
        prediction = real(fitted, plan, X)
        prediction.logits[:] += 2 * float(np.abs(fitted.margins).max())
        return prediction

    monkeypatch.setattr(_selfchecks, "predict_encrypted", wrong)
    with pytest.raises(ArithmeticError, match="off by"):
        _selfchecks._round_trip(layout)


# --- the machine ------------------------------------------------------------------------------------------------


def test_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    monkeypatch.setattr(doctor, "_CGROUP", tmp_path)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    if Path("/proc/meminfo").exists():
        assert doctor.memory() == (2**29, 2**30)
        assert found(doctor.machine, "memory").status == "slow"
    assert found(doctor.machine, "cores").status == "slow"


def test_more_threads_than_cores_and_no_blas_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"user_api": "blas", "internal_api": "openblas", "version": "1", "architecture": "any", "num_threads": 64}
    monkeypatch.setattr(doctor.threadpoolctl, "threadpool_info", lambda: [one])
    monkeypatch.setattr(doctor, "usable_cores", lambda: 2)
    assert "OPENBLAS_NUM_THREADS=2" in found(doctor.machine, "BLAS").fix
    assert found(doctor.machine, "BLAS").says.endswith("64 threads")
    monkeypatch.setitem(one, "num_threads", 1)
    assert found(doctor.machine, "BLAS").says.endswith("1 thread")
    monkeypatch.setattr(doctor.threadpoolctl, "threadpool_info", list)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    assert found(doctor.machine, "BLAS").status == "slow"


# --- optional parts ---------------------------------------------------------------------------------------------


def part(name: str, *needs: str) -> Finding:
    return doctor.optional_part(name, "for tests", [Requirement(each) for each in needs], f"quad4fhe[{name}]")


def test_the_command_that_adds_a_part_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    doctor_page._show(Examination([part("magic", "no-such-package>=1")]))
    assert "-> pip install 'quad4fhe[magic]'" in capsys.readouterr().out


def test_a_missing_or_old_part_comes_with_the_command_that_adds_it() -> None:
    missing = part("magic", "no-such-package>=1")
    assert (missing.status, missing.fix) == ("missing", "pip install 'quad4fhe[magic]'")
    old = part("onnx", "numpy>=999")
    assert old.status == "missing"
    assert "numpy >=999 (found" in old.says
    assert part("onnx", "numpy>=1").status == "ok"


def test_a_library_that_is_too_old_is_an_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"scipy": "0.1", "seal-python": "4.4.9"}
    monkeypatch.setattr(doctor, "version", lambda package: found.get(package, "99"))
    finding = doctor._libraries()
    assert (finding.status, finding.fix) == ("failed", "pip install --upgrade quad4fhe")
    assert finding.says.startswith("scipy >=")


def test_extras_are_read_from_the_metadata_with_those_they_include() -> None:
    lines = [
        "numpy>=1.26",
        "numba>=0.59; extra == 'speed'",
        'quad4fhe[speed,sklearn]; extra == "all"',
        "scikit-learn (>=1.6) ; extra == 'sklearn'",
        "ray[default]>=2.9; python_version >= '3.11' and extra == 'ray'",
        "uvloop>=1; sys_platform == 'elsewhere' and extra == 'ray'",
        "tomli; python_version < '3.11'",
    ]

    def names(extra: str) -> list[tuple[str, str]]:
        return sorted((each.name, str(each.specifier)) for each in doctor.required(lines, extra))

    assert names("") == [("numpy", ">=1.26")]
    assert names("all") == [("numba", ">=0.59"), ("scikit-learn", ">=1.6")]
    assert names("ray") == [("ray", ">=2.9")]


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("1.9.1", ">=1.10", False),
        ("1.10", ">=1.9", True),
        ("2.13.0+cpu", ">=2.2", True),
        ("2.0rc1", ">=1", True),
        ("0.59", "", True),
        ("4.4.0", "<4.5,>=4.4", True),
        ("4.3.9", "<4.5,>=4.4", False),
        ("4.5.0", "<4.5,>=4.4", False),
    ],
)
def test_versions_are_compared_by_number(
    version: str, bounds: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "version", lambda package: version)
    assert (part("toy", f"toy{bounds}").status == "ok") is fits


def test_every_extra_of_the_package_has_a_purpose() -> None:
    """Also those whose metadata an old editable installation does not list yet."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - doctor._DEVELOPERS <= set(doctor._PURPOSE)
