"""Every Python block in README and docs runs, and every local link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quad4fhe import MissingExtraError

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in BLOCK.findall(page.read_text()):
        try:
            exec(compile(block, str(page), "exec"), scope)
        except (MissingExtraError, ModuleNotFoundError) as error:
            if (error.name or "").split(".")[0] == "quad4fhe":  # a page that names what is not there is wrong
                raise
            pytest.skip(f"a block of {page.name} needs a part that is not installed: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing
