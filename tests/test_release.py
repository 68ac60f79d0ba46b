"""The locked requirements of a release: pinned, hashed, complete, and free of any machine's own places."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements" / "release.txt").read_text(encoding="utf-8")
LOCKED_EXTRAS = ("fast", "sklearn", "onnx", "parquet", "report", "serve")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def entries() -> list[tuple[Requirement, list[str]]]:
    joined = LOCK.replace("\\\n", " ")
    out = []
    for line in joined.splitlines():
        text, *hashes = line.split("--hash=")
        out.append((Requirement(text.strip()), [found.strip() for found in hashes]))
    return out


def test_every_requirement_is_pinned_and_hashed() -> None:
    for requirement, hashes in entries():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", found) for found in hashes), requirement
        assert requirement.url is None


def test_no_index_and_no_path_of_a_machine_is_in_it() -> None:
    for word in ("index-url", "find-links", "trusted-host", "://", "file:", "-e ", " @ "):
        assert word not in LOCK


def test_every_dependency_of_the_locked_extras_is_in_it_at_a_version_it_accepts() -> None:
    locked: dict[str, list[Requirement]] = {}
    for requirement, _ in entries():
        locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for extra in LOCKED_EXTRAS for each in extras[extra])]
    for text in wanted:
        requirement = Requirement(text)
        for found in locked[canonicalize_name(requirement.name)]:
            (pin,) = found.specifier
            assert requirement.specifier.contains(pin.version), f"{text} and {found}: make lock"
