"""Folders that strangers write to: no link is followed, and file names are escaped before they are printed."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import Fit, Plan
from quad4fhe import plan as make_plan
from quad4fhe.cli import main
from quad4fhe.errors import InputError
from quad4fhe.folders import read_replies, score, write_requests
from quad4fhe.folders.journal import Journal
from quad4fhe.io.files import locked
from support.inline import InlineWorkers
from support.serving import small_fit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")

SECRET = b"a secret of another user\n"


class Given:
    """Two requests in a folder, and a private file beside it."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.fit: Fit = small_fit(3, 4, 2, seed=5)
        self.fit.save(folder / "fit.safetensors")
        self.plan: Plan = make_plan(self.fit, samples=1, layout=layout, precision="fast")  # type: ignore[arg-type]
        self.X = np.repeat(np.mean(self.fit.box, axis=0)[None], self.plan.per_request + 1, axis=0)
        self.requests, self.replies, self.secret = folder / "requests", folder / "replies", folder / "secret"
        write_requests(self.plan, self.X, self.requests)
        self.secret.write_bytes(SECRET)

    def run(self, payload: str = "files") -> object:
        return score(self.fit, self.requests, self.replies, pool=InlineWorkers(), payload=payload)  # type: ignore[arg-type]

    def told(self) -> str:
        """All files in the folder of replies."""
        return "".join(p.read_text(errors="replace") for p in self.replies.rglob("*") if p.is_file())


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path, "batch")


@pytest.mark.parametrize("payload", ["files", "bytes"])
def test_a_request_that_is_a_link_fails_and_says_nothing_of_its_target(given: Given, payload: str) -> None:
    (given.requests / "link.request").symlink_to(given.secret)
    (given.requests / "loop.request").symlink_to(given.requests / "loop.request")
    (given.requests / "gone.request").symlink_to(given.requests / "nothing")
    for _ in range(2):
        found = given.run(payload)
        assert {problem.file for problem in found.failed} == {"link.request", "loop.request", "gone.request"}
        assert all("symbolic link" in problem.reason for problem in found.failed)
        assert not found.quarantined
        assert hashlib.sha256(SECRET).hexdigest() not in given.told()
    assert found.answered + found.answered_before == 2


def test_a_quarantined_request_that_becomes_a_link_is_not_hashed(given: Given) -> None:
    bad = given.requests / "bad.request"
    bad.write_bytes(SECRET)
    assert [problem.file for problem in given.run().quarantined] == ["bad.request"]
    bad.unlink()
    bad.symlink_to(given.secret)
    found = given.run()
    assert [problem.file for problem in found.failed] == ["bad.request"]
    assert not found.quarantined


def test_pipes_devices_and_folders_are_not_requests(given: Given) -> None:
    os.mkfifo(given.requests / "pipe.request")
    (given.requests / "folder.request").mkdir()
    found = given.run()
    assert {problem.file for problem in found.failed} == {"pipe.request", "folder.request"}
    assert found.answered == 2


def test_a_lock_that_is_a_link_does_not_touch_its_target(given: Given) -> None:
    given.replies.mkdir()
    (given.replies / ".lock").symlink_to(given.secret)
    with pytest.raises(InputError, match="symbolic link"):
        given.run()
    (given.requests / ".lock").unlink(missing_ok=True)
    (given.requests / ".lock").symlink_to(given.secret)
    with pytest.raises(InputError, match="symbolic link"), locked(given.requests):
        pass
    assert given.secret.read_bytes() == SECRET
    (given.replies / ".lock").unlink()
    (given.replies / ".lock").symlink_to(given.secret.with_name("fresh"))
    with pytest.raises(InputError, match="symbolic link"):
        given.run()
    assert not given.secret.with_name("fresh").exists()


@pytest.mark.parametrize("how", ["symlink_to", "hardlink_to"])
def test_a_manifest_that_is_a_link_does_not_touch_its_target(given: Given, how: str) -> None:
    given.secret.write_bytes(SECRET.rstrip())  # like a journal with an unfinished first line, which is emptied
    given.replies.mkdir()
    getattr(given.replies / "manifest.jsonl", how)(given.secret)
    with pytest.raises(InputError, match=r"symbolic link|second name"):
        given.run()
    assert given.secret.read_bytes() == SECRET.rstrip()
    with pytest.raises(InputError, match=r"symbolic link|second name"):
        Journal(given.replies / "manifest.jsonl", {})


def test_replies_and_quarantine_are_not_written_through_links(given: Given, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    given.replies.mkdir()
    (given.replies / "00000000.reply").symlink_to(given.secret)
    assert given.run().answered == 2
    assert not (given.replies / "00000000.reply").is_symlink()
    assert given.secret.read_bytes() == SECRET
    (given.requests / "bad.request").write_bytes(b"not a request")
    (given.replies / "quarantine").symlink_to(elsewhere)
    with pytest.raises(InputError, match=r"quarantine.*symbolic link"):
        given.run()
    assert not list(elsewhere.iterdir())


def test_a_plan_that_is_a_link_is_not_read(given: Given) -> None:
    (given.requests / "plan.json").unlink()
    (given.requests / "plan.json").symlink_to(given.secret)
    with pytest.raises(InputError, match="symbolic link") as refused:
        given.run()
    assert "secret of another" not in str(refused.value)


def test_a_reply_that_is_a_link_is_not_read(given: Given) -> None:
    given.run()
    reply = given.replies / "00000000.reply"
    reply.rename(given.replies / "moved")
    reply.symlink_to(given.replies / "moved")
    first, second = read_replies(given.X, given.requests, given.replies)
    assert "symbolic link" in first.reason
    assert second.logits is not None


@pytest.mark.parametrize("name", ["\x1b[2Jgone", "a\rb", "x\u202etxt", "line\nbreak", os.fsdecode(b"bytes\xff\x9b")])
def test_control_characters_of_a_name_do_not_reach_a_terminal(
    given: Given, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(given.requests.glob("*.request"))
    (given.requests / f"{name}.request").write_bytes(source.read_bytes())
    words = [str(given.secret.with_name("fit.safetensors"))]
    words += [str(given.requests), str(given.replies), "--workers", "1"]
    for json in ([], ["--json"]):
        assert main(["score", *words, *json]) == 1
        told = capsys.readouterr()
        assert "unprintable characters" in told.out
        for text in (told.out, told.err):
            assert all(c.isprintable() or c == "\n" for c in text), repr(text)
            assert "line\nbreak" not in text
    assert main(["score", f"{name}.safetensors", *words[1:]]) == 2
    assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().err)
