"""What the tests of the page need: Node with the packages of `clients/web`, and Chromium."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.browser import CHROMIUM

CLIENT = Path(__file__).parents[2] / "clients" / "web"
NODE = CLIENT / "node_modules" / ".bin" / "node"

needs_node = pytest.mark.skipif(not NODE.exists(), reason="clients/web is not installed: npm --prefix clients/web ci")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


def run_node(*arguments: str, environment: dict[str, str] | None = None) -> None:
    """Run Node in the folder of the client, and fail with its output."""
    done = subprocess.run(
        [NODE, *arguments],
        cwd=CLIENT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
