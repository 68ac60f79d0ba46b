"""The version is written in several files, and all say the same."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import quad4fhe

ROOT = Path(__file__).resolve().parent.parent


def test_every_file_names_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = {
        "reproduce": tomllib.loads((ROOT / "reproduce" / "pyproject.toml").read_text())["project"]["version"],
        "quad4fhe.__version__": quad4fhe.__version__,
        "clients/web": json.loads((ROOT / "clients" / "web" / "package.json").read_text())["version"],
        "package-lock": json.loads((ROOT / "clients" / "web" / "package-lock.json").read_text())["version"],
        "CITATION.cff": re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[0],
    }
    assert found == dict.fromkeys(found, project)
    assert project in (ROOT / "CHANGELOG.md").read_text()
