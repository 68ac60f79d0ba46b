"""Commands of other packages: found where they are installed, missed in one line elsewhere."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import quad4fhe
from quad4fhe.cli import main

SOURCE = Path(quad4fhe.__file__).parent
START = "import sys; from quad4fhe.cli import main; sys.exit(main(sys.argv[1:]))"
ABSENT = "import importlib.metadata as m; m.entry_points = lambda **_: m.EntryPoints(); " + START


def run(program: str, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    search = [*([] if path is None else [str(path)]), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search)}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def package(folder: Path, code: str) -> Path:
    """A package that is installed in a folder and adds the command `hello`."""
    (folder / "toy.py").write_text(code)
    information = folder / "toy-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[quad4fhe.commands]\nhello = toy:hello\n")
    return folder


def test_the_installed_package_has_its_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--help"]) == 0
    assert "--skip-missing" in capsys.readouterr().out
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name}  " in text for name in ("compare", "bench", "reproduce"))


@pytest.mark.parametrize("line", ["reproduce mlp --quick --out x", "compare a b --test c", "bench"])
def test_without_the_package_its_commands_say_how_to_add_it(line: str) -> None:
    done = run(ABSENT, *line.split())
    assert done.returncode == 2
    assert done.stderr == (
        f"quad4fhe: quad4fhe {line.split()[0]} is a command of the package quad4fhe-reproduce, which is not installed: "
        "in a clone of quad4fhe, pip install ./reproduce\n"
    )


def test_without_the_package_its_commands_are_not_listed() -> None:
    done = run(ABSENT, "--help")
    assert done.returncode == 0
    assert "reproduce" not in done.stdout


def test_any_package_can_add_a_command(tmp_path: Path) -> None:
    code = 'def hello(name: str = "you") -> None:\n    """Greet someone."""\n    print("hello", name)\n'
    folder = package(tmp_path, code)
    assert run(START, "hello", "--name", "me", path=folder).stdout == "hello me\n"
    assert "Greet someone." in run(START, "--help", path=folder).stdout


def test_a_package_that_is_broken_harms_its_own_command_only(tmp_path: Path) -> None:
    folder = package(tmp_path, "raise RuntimeError('no\\ngood')\n")
    done = run(START, "hello", path=folder)
    assert (done.returncode, done.stderr) == (2, "quad4fhe: toy can't be loaded (no good); install it again\n")
    assert run(START, "fit", "--help", path=folder).returncode == 0


def test_the_library_knows_nothing_of_it() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("quad4fhe_reproduce")], path
