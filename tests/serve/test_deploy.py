"""The systemd unit and the container file of the manual: their commands have the options that `serve` has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from quad4fhe.cli.app import app

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"


def unit() -> dict[str, str]:
    text = (DEPLOY / "quad4fhe.service").read_text().replace("\\\n", " ")
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return dict(parser["Service"])


def container() -> list[str]:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^CMD (.*)$", text, re.MULTILINE)
    words: list[str] = json.loads(command)
    return words


@pytest.mark.parametrize("words", [shlex.split(unit()["ExecStart"])[1:], container()], ids=["systemd", "container"])
def test_the_command_is_one_that_serve_takes(words: list[str]) -> None:
    assert words[0] == "serve"
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    context = serve.make_context("serve", words[1:])  # raises for an unknown option or a wrong value
    assert context.params["port"] == 8443
    assert context.params["token_file"] is not None


def test_the_unit_waits_as_long_as_the_server_may_take_to_stop() -> None:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    deadline = next(each.default for each in serve.params if each.name == "deadline")
    assert int(unit()["TimeoutStopSec"]) >= deadline + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "quad4fhe.service").read_text().replace("/opt/quad4fhe/bin/quad4fhe", "/bin/true")
    (tmp_path / "quad4fhe.service").write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / "quad4fhe.service"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
