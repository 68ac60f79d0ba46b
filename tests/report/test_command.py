"""The command `report`: files whole or not at all, one JSON document, one line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from quad4fhe.cli import main
from quad4fhe.layouts import LAYOUTS
from support.cases import PAIRS, PAIRS_X, PLANE, PLANE_X
from support.pages import parse

pytest.importorskip("matplotlib", reason="the report needs matplotlib: pip install 'quad4fhe[report]'")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    PLANE.save("fit.safetensors")
    np.savez("calib.npz", X=PLANE_X)
    X = np.random.default_rng(0).normal(size=(30, 3))
    np.savez("test.npz", X=X, y=PLANE.mlp.decide(X), classes=np.array(["no", "yes"]))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    code = main(words.split())
    out, err = capsys.readouterr()
    return code, out, err


def test_the_page_and_its_pictures_are_written_and_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report fit.safetensors calib.npz --test test.npz --pictures figures/new --samples 20")
    assert code == 0
    assert "The page is in report.html" in out
    page = parse(Path("report.html").read_text(encoding="utf-8"))
    cells = {cell.text for cell in page.find("td")}
    assert {"no", "yes"} <= cells  # the names in test.npz
    assert "100.00% with ReLU" in page.text
    drawn = sorted(os.listdir("figures/new"))
    shown = {figure.attributes["id"] for figure in page.find("figure")}
    diagrams = {"diagram-plane", "diagram-sight", "diagram-way"}  # of the manual, the same for every fit
    assert shown == diagrams | {"picture-" + name.split(".")[0] for name in drawn}
    for name in drawn:
        data = Path("figures/new", name).read_bytes()
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG")
        else:
            root = ET.fromstring(data)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert len(root.attrib["aria-label"]) > 40
            assert b"var(" not in data


def test_json_is_one_document_with_the_page_in_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report fit.safetensors calib.npz -o page.html --ladder none --samples 20 --json")
    document = json.loads(out)
    assert code == 0
    assert document["file"] == "page.html"
    assert document["calibration"]["mismatches"] == len(PLANE.certificate.mismatches)
    # Every layout for the samples asked about, and the cheapest one for a single question.
    assert [plan["samples"] for plan in document["plans"]] == [20] * len(LAYOUTS.names()) + [1]
    assert [rung["own"] for rung in document["ladder"]].count(True) == 1
    assert document["verdict"] in parse(Path("page.html").read_text(encoding="utf-8")).text


@pytest.mark.parametrize("given", ["ant,bee", "names.txt"])
def test_class_names_come_from_a_list_or_a_file(files: Path, capsys: pytest.CaptureFixture[str], given: str) -> None:
    Path("names.txt").write_text("ant\nbee\n\n", encoding="utf-8")
    assert run(capsys, f"report fit.safetensors calib.npz --ladder none --samples 8 --classes {given}")[0] == 0
    cells = {cell.text for cell in parse(Path("report.html").read_text(encoding="utf-8")).find("td")}
    assert {"ant", "bee"} <= cells


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("fit.safetensors nowhere.npz", 2, "nowhere.npz: no such file"),
        ("nowhere.safetensors calib.npz", 2, "nowhere.safetensors: no such file"),
        ("calib.npz calib.npz", 2, "is not a fit file"),
        ("fit.safetensors test.npz", 1, "calibration rows"),
        ("fit.safetensors other.npz", 1, "the calibration data is not what was certified"),
        ("fit.safetensors calib.npz -o page.pdf", 2, "a report is saved as .html"),
        ("fit.safetensors calib.npz -o no/such/page.html", 2, "does not exist"),
        ("fit.safetensors calib.npz -o folder.html", 2, "is a folder"),
        ("fit.safetensors calib.npz --pictures calib.npz", 2, "wanted a folder"),
        ("fit.safetensors calib.npz --test wide.npz", 2, "X_test has 5 columns"),
        ("fit.safetensors calib.npz --classes a,b,c", 2, "3 class names were given, and the model has 2"),
        ("fit.safetensors calib.npz --classes calib.npz", 2, "not a text file"),
        ("fit.safetensors calib.npz --classes a,", 2, "different and not empty"),
        ("fit.safetensors calib.npz --samples 0", 2, "wanted at least 1"),
        ("fit.safetensors calib.npz --widen -1", 2, "widened"),
        ("fit.safetensors calib.npz --ladder some", 2, "some"),
        ("fit.safetensors", 2, "calib"),
    ],
)
def test_every_mistake_is_one_line_and_leaves_nothing(
    files: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, says: str
) -> None:
    np.savez("other.npz", X=PLANE_X + 1e-9)
    np.savez("wide.npz", X=np.ones((3, 5)))
    Path("folder.html").mkdir()
    before = set(os.listdir())
    for json_words in ("", " --json"):
        found, _, err = run(capsys, f"report {words}{json_words}")
        assert found == code
        assert says.lower() in err.lower()
        assert err.count("\n") == 1
        assert "Traceback" not in err
    assert set(os.listdir()) == before


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_the_package_that_is_missing_is_named(
    package: str, files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, f"{package}.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in ("report fit.safetensors calib.npz", "demo --folder new"):
        code, _, err = run(capsys, words)
        assert code == 2
        assert package in err
        assert "pip install 'quad4fhe[report]'" in err
    assert not Path("report.html").exists()


def test_a_failed_write_leaves_the_old_page(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("report.html").write_text("old", encoding="utf-8")
    before = set(os.listdir())

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    code, _, err = run(capsys, "report fit.safetensors calib.npz --ladder none --samples 8")
    assert code == 2
    assert "No space left on device" in err
    assert Path("report.html").read_text(encoding="utf-8") == "old"
    assert set(os.listdir()) == before


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    PAIRS.save(tmp_path / "fit.safetensors")
    np.savez(tmp_path / "calib.npz", X=PAIRS_X)
    code = "from quad4fhe.cli import entry_point; entry_point()"
    # The middle of the work, whatever the machine.
    wait = "lambda *_: (print(1, file=sys.__stdout__, flush=True), time.sleep(60))"
    slow = f"import sys, time, quad4fhe.report.sections.ladder as l; l.climb = {wait}; {code}"
    words = [sys.executable, "-c", slow, "report", "fit.safetensors", "calib.npz"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.endswith("quad4fhe: interrupted\n")
    assert "Traceback" not in err
    assert sorted(os.listdir(tmp_path)) == ["calib.npz", "fit.safetensors"]
