"""Programs that no test runs still import what there is."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import machine
from quad4fhe.errors import MissingExtraError

PROGRAMS = sorted(Path(machine.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_every_name_that_a_program_takes_from_the_library_exists(program: Path) -> None:
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0].startswith("quad4fhe"):
            try:
                module = importlib.import_module(str(node.module))
            except MissingExtraError as error:
                pytest.skip(str(error))
            for name in node.names:
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (program.name, name.name)
