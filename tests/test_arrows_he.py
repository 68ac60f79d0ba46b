"""Arrows point one way, and SEAL is imported in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import quad4fhe

SOURCE = Path(quad4fhe.__file__).parent


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted((SOURCE / "circuit").glob("*.py")), ids=lambda p: p.name)
def test_the_circuit_knows_no_cryptography(path: Path) -> None:
    above = ("quad4fhe.he", "quad4fhe.serve", "quad4fhe.cli", "quad4fhe.engines", "seal")
    assert not [name for name in imports(path) if name.startswith(above)]


def test_only_one_file_imports_the_seal_binding() -> None:
    users = [path for path in SOURCE.rglob("*.py") if "seal" in imports(path)]
    assert [path.relative_to(SOURCE).as_posix() for path in users] == ["he/seal.py"]
