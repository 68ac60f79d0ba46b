"""Folders of encrypted batches: what the client writes, and what a run answers, quarantines, repeats or never sees."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quad4fhe import Fit, Plan
from quad4fhe import plan as make_plan
from quad4fhe.errors import InputError
from quad4fhe.folders import Score, read_replies, score, write_requests
from quad4fhe.folders.batches import index_path
from quad4fhe.folders.journal import Journal
from quad4fhe.he import message
from quad4fhe.io.files import locked, writing
from quad4fhe.mlp import decide
from support.inline import InlineWorkers
from support.serving import small_fit

REQUESTS = 4


@dataclass(frozen=True)
class Given:
    """A fit, a plan, samples for four requests, and the folder they were encrypted into."""

    fit: Fit
    plan: Plan
    X: NDArray[np.float64]
    folder: Path

    def expected(self) -> NDArray[np.int64]:
        return np.asarray(self.fit.model.decide(self.X))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Given]:
    """Requests that all tests share, by layout."""

    @cache
    def made(layout: Any) -> Given:
        fit = small_fit(4, 6, 3, seed=5)
        plan = make_plan(fit, samples=2048 if layout == "batch" else 1, layout=layout, precision="strict")
        n = (REQUESTS - 1) * plan.per_request + 1  # the last request is not full
        drawn = np.clip(np.random.default_rng(3).normal(size=(4 * n, 4)), *fit.box)
        ordered = np.sort(fit.model.logits(drawn), axis=1)
        X = drawn[ordered[:, -1] - ordered[:, -2] > 0.02][:n]  # encryption is approximate: no near ties
        assert len(X) == n
        folder = tmp_path_factory.mktemp(layout) / "requests"
        write_requests(plan, X, folder)
        return Given(fit, plan, X, folder)

    return made


def _copy(original: Given, tmp_path: Path) -> Given:
    """A copy of the folder, which a test may change."""
    folder = tmp_path / "requests"
    shutil.copytree(original.folder, folder)
    shutil.copy(f"{original.folder}.index", f"{folder}.index")
    return Given(original.fit, original.plan, original.X, folder)


@pytest.fixture(params=["batch", "lift"])
def given(request: pytest.FixtureRequest, originals: Callable[[Any], Given], tmp_path: Path) -> Given:
    return _copy(originals(request.param), tmp_path)


@pytest.fixture
def batch(originals: Callable[[Any], Given], tmp_path: Path) -> Given:
    return _copy(originals("batch"), tmp_path)


def run(given: Given, **options: Any) -> Score:
    return score(given.fit, given.folder, given.folder.with_name("replies"), pool=InlineWorkers(), **options)


def answers(given: Given) -> list[Any]:
    return list(read_replies(given.X, given.folder, given.folder.with_name("replies")))


def names(problems: Any) -> list[str]:
    return [problem.file for problem in problems]


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def manifest(given: Given) -> list[dict[str, Any]]:
    lines = (given.folder.with_name("replies") / "manifest.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.mark.parametrize("payload", ["files", "bytes"])
def test_decisions_come_back_as_the_model_makes_them(given: Given, payload: Any) -> None:
    found = run(given, payload=payload)
    assert (found.requests, found.answered, found.complete, found.payload) == (REQUESTS, REQUESTS, True, payload)
    got = answers(given)
    assert [one.rows.start for one in got] == [i * given.plan.per_request for i in range(REQUESTS)]
    np.testing.assert_array_equal(decide(np.concatenate([one.logits for one in got])), given.expected())


def test_every_request_gets_exactly_one_reply_and_stays_unchanged(given: Given) -> None:
    before = {path.name: path.read_bytes() for path in given.folder.iterdir()}
    run(given)
    assert {path.name: path.read_bytes() for path in given.folder.iterdir()} == before
    replies = given.folder.with_name("replies")
    assert listed(replies) == [*(f"{i:08d}.reply" for i in range(REQUESTS)), "manifest.jsonl"]
    assert [line["request"] for line in manifest(given)] == [f"{i:08d}.request" for i in range(REQUESTS)]
    for i in range(REQUESTS):
        request = (given.folder / f"{i:08d}.request").read_bytes()
        reply = (replies / f"{i:08d}.reply").read_bytes()
        assert message.peek(reply).answers == message.digest(request)


def test_a_second_run_repeats_nothing(given: Given) -> None:
    run(given)
    replies = given.folder.with_name("replies")
    before = {path.name: path.stat().st_mtime_ns for path in replies.iterdir() if path.suffix == ".reply"}
    inline = InlineWorkers()
    found = score(given.fit, given.folder, replies, pool=inline)
    assert (found.answered, found.answered_before, inline.sent) == (0, REQUESTS, [])
    assert {path.name: path.stat().st_mtime_ns for path in replies.iterdir() if path.suffix == ".reply"} == before
    assert len(manifest(given)) == REQUESTS


def test_a_reply_that_is_missing_or_damaged_is_made_again(batch: Given) -> None:
    run(batch)
    replies = batch.folder.with_name("replies")
    good = (replies / "00000001.reply").read_bytes()
    (replies / "00000000.reply").unlink()
    (replies / "00000001.reply").write_bytes(good[:-40] + b"!" + good[-39:])
    found = run(batch)
    assert (found.answered, found.answered_before) == (2, 2)
    np.testing.assert_array_equal(decide(np.concatenate([one.logits for one in answers(batch)])), batch.expected())


def test_a_request_that_was_replaced_is_answered_again(batch: Given) -> None:
    run(batch)
    other = write_other(batch, batch.folder.with_name("other"))
    shutil.copy(other / "00000001.request", batch.folder / "00000001.request")
    found = run(batch)
    assert (found.answered, found.answered_before) == (1, REQUESTS - 1)


def write_other(given: Given, folder: Path) -> Path:
    write_requests(given.plan, given.X, folder)
    return folder


def test_a_run_that_was_killed_while_writing_is_continued(batch: Given) -> None:
    run(batch)
    replies = batch.folder.with_name("replies")
    journal = replies / "manifest.jsonl"
    journal.write_bytes(journal.read_bytes()[:-10])  # the last line was not finished
    (replies / ".00000000.reply.0123456789ab.part").write_bytes(b"half a reply")
    found = run(batch)
    assert (found.answered, found.answered_before) == (1, REQUESTS - 1)
    assert [line["request"] for line in manifest(batch)] == [f"{i:08d}.request" for i in range(REQUESTS)]
    assert not list(replies.glob(".*.part"))


def spoilt(given: Given) -> Iterator[tuple[str, bytes, str]]:
    """Names, contents, and the words that the error must have."""
    good = (given.folder / "00000000.request").read_bytes()
    middle = len(good) // 2
    yield "cut.request", good[:middle], "send the whole message"
    yield "empty.request", b"", "not a quad4fhe message"
    yield "flipped.request", good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], "damaged"
    yield "junk.request", bytes(range(256)) * 64, "not a quad4fhe message"
    yield "long.request", good + b"more", "send the whole message"
    yield "other.request", good[:12] + bytes(32) + good[44:], "another plan"
    yield "reply.request", good[:10] + b"\x02" + good[11:], "is a reply, wanted a request"


@pytest.mark.parametrize("payload", ["files", "bytes"])
def test_damaged_requests_are_quarantined_and_named_and_the_rest_goes_on(given: Given, payload: Any) -> None:
    wanted = {}
    for name, content, said in spoilt(given):
        (given.folder / name).write_bytes(content)
        wanted[name] = said
    found = run(given, payload=payload)
    assert not found.complete
    assert (found.answered, found.failed) == (REQUESTS, ())
    assert names(found.quarantined) == sorted(wanted)
    for problem in found.quarantined:
        assert wanted[problem.file] in problem.reason, problem
    replies = given.folder.with_name("replies")
    assert listed(replies / "quarantine") == sorted(f"{name}.txt" for name in wanted)
    assert "send the whole message" in (replies / "quarantine" / "cut.request.txt").read_text()
    assert len(list(replies.glob("*.reply"))) == REQUESTS

    # They are named again, and not tried again, until their bytes change.
    inline = InlineWorkers()
    again = score(given.fit, given.folder, replies, pool=inline)
    assert (names(again.quarantined), again.answered_before, inline.sent) == (sorted(wanted), REQUESTS, [])
    shutil.copy(given.folder / "00000000.request", given.folder / "cut.request")
    mended = run(given)
    assert (mended.answered, mended.answered_before) == (1, REQUESTS)
    assert names(mended.quarantined) == sorted(set(wanted) - {"cut.request"})
    assert not (replies / "quarantine" / "cut.request.txt").exists()


def test_the_advice_about_a_damaged_journal_works(batch: Given, tmp_path: Path) -> None:
    replies = tmp_path / "answers"
    score(batch.fit, batch.folder, replies, pool=InlineWorkers())
    for journal in (index_path(batch.folder), replies / "manifest.jsonl"):
        with journal.open("ab") as file:
            file.write(b"garbage\n")
    advice = "not JSON.* start again in another folder"
    with pytest.raises(InputError, match=advice):
        write_requests(batch.plan, batch.X, batch.folder)
    with pytest.raises(InputError, match=advice):
        score(batch.fit, batch.folder, replies, pool=InlineWorkers())
    folder, others = tmp_path / "another", tmp_path / "others"
    write_requests(batch.plan, batch.X, folder)
    assert score(batch.fit, folder, others, pool=InlineWorkers()).complete
    logits = [one.logits for one in read_replies(batch.X, folder, others)]
    np.testing.assert_array_equal(decide(np.concatenate(logits)), batch.expected())


def test_the_folder_that_travels_says_nothing_about_rows(given: Given) -> None:
    sizes = {path.stat().st_size for path in given.folder.glob("*.request")}
    assert len(sizes) == 1  # the last request holds one sample and is as long as the others
    assert not any("samples" in path.read_text() for path in given.folder.glob("*.index"))
    assert f"{given.folder.name}.index" not in listed(given.folder)


def test_writing_requests_goes_on_where_it_was_interrupted(batch: Given, tmp_path: Path) -> None:
    folder = tmp_path / "again"

    def interrupt(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_requests(batch.plan, batch.X, folder, progress=interrupt)
    first = {path.name: path.read_bytes() for path in folder.glob("*.request")}
    assert len(first) == 2
    written = write_requests(batch.plan, batch.X, folder)
    assert (written.requests, written.before) == (REQUESTS, 2)
    assert {name: (folder / name).read_bytes() for name in first} == first
    score(batch.fit, folder, tmp_path / "replies", pool=InlineWorkers())
    logits = [one.logits for one in read_replies(batch.X, folder, tmp_path / "replies")]
    np.testing.assert_array_equal(decide(np.concatenate(logits)), batch.expected())


def test_requests_of_others_are_not_written_over(batch: Given, tmp_path: Path) -> None:
    own = index_path(batch.folder)
    lines = own.read_text().splitlines(keepends=True)
    (batch.folder / f"{REQUESTS - 1:08d}.request").unlink()  # killed between the last line and its file
    assert write_requests(batch.plan, batch.X, batch.folder).before == REQUESTS - 1
    assert len(own.read_text().splitlines()) == len(lines) + 1
    before = {path.name: path.read_bytes() for path in batch.folder.iterdir()}
    own.unlink()
    with pytest.raises(InputError, match="choose an empty folder"):
        write_requests(batch.plan, batch.X, batch.folder)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(batch.folder / "00000000.request", other)
    with pytest.raises(InputError, match="choose an empty folder"):
        write_requests(batch.plan, batch.X, other)
    assert {path.name: path.read_bytes() for path in batch.folder.iterdir()} == before


def test_nothing_is_written_for_a_sample_outside(batch: Given, tmp_path: Path) -> None:
    X = batch.X.copy()
    X[-1, 2] = 2 * batch.plan.domain.high[2]
    with pytest.raises(InputError, match="outside the box"):
        write_requests(batch.plan, X, tmp_path / "new")
    assert not list(tmp_path.glob("new*"))


def test_replies_that_are_missing_swapped_or_damaged_are_named_and_not_returned(batch: Given) -> None:
    run(batch)
    replies = batch.folder.with_name("replies")
    (replies / "00000000.reply").unlink()
    shutil.copy(replies / "00000001.reply", replies / "00000002.reply")
    (replies / "00000003.reply").write_bytes(bytes(1000))
    got = answers(batch)
    assert [one.logits is None for one in got] == [True, False, True, True]
    assert "missing" in got[0].reason
    assert "answers no open request" in got[2].reason
    assert "not a quad4fhe message" in got[3].reason


def test_replies_are_read_with_the_same_data_and_the_index_only(batch: Given, tmp_path: Path) -> None:
    run(batch)
    replies = batch.folder.with_name("replies")
    with pytest.raises(InputError, match="other samples"):
        next(read_replies(batch.X[1:], batch.folder, replies))
    with pytest.raises(InputError, match=r"index is missing"):
        next(read_replies(batch.X, tmp_path / "elsewhere", replies))
    with pytest.raises(InputError, match="is not a folder"):
        next(read_replies(batch.X, batch.folder, tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"belongs to another data"):
        write_requests(batch.plan, batch.X[1:], batch.folder)
    index = index_path(batch.folder)
    index.write_text(index.read_text().replace('"version":2', '"version":1', 1))
    with pytest.raises(InputError, match="was written by another release"):
        next(read_replies(batch.X, batch.folder, replies))


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_what_reads_the_replies_stays_out_of_the_folder_and_is_private(batch: Given, tmp_path: Path) -> None:
    write_requests(batch.plan, batch.X[:1], tmp_path / "own")
    index = index_path(tmp_path / "own")
    assert index.stat().st_mode & 0o777 == 0o600
    secret = json.loads(index.read_text().splitlines()[1])["secret"]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "own").iterdir())
    assert bytes.fromhex(secret)[-200:] not in everything
    assert secret.encode() not in everything


def test_a_sample_outside_the_box_is_named_by_its_row_before_anything_is_written(batch: Given, tmp_path: Path) -> None:
    X = batch.X.copy()
    row = batch.plan.per_request + 7
    X[row, 2] = 1e3
    with pytest.raises(InputError, match=rf"outside the box.*X\[{row}, 2\] = 1000"):
        write_requests(batch.plan, X, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert write_requests(batch.plan, X, tmp_path / "new", clip=True).clipped == 1


def test_what_can_not_be_scored_is_refused_in_one_line(batch: Given, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    replies = batch.folder.with_name("replies")
    with pytest.raises(InputError, match="is not a folder"):
        score(batch.fit, tmp_path / "none", replies, pool=InlineWorkers())
    with pytest.raises(InputError, match=r"has no files named \*\.request"):
        score(batch.fit, empty, replies, pool=InlineWorkers())
    with pytest.raises(InputError, match="model"):
        score(small_fit(4, 6, 3, seed=6), batch.folder, replies, pool=InlineWorkers())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"can't use .* for replies"):
        score(batch.fit, batch.folder, tmp_path / "file", pool=InlineWorkers())
    run(batch)
    other = make_plan(batch.fit, samples=2048, layout="batch", box=2 * batch.fit.box)
    with pytest.raises(InputError, match=r"belongs to another plan"):
        run(batch, plan=other)
    (batch.folder / "plan.json").unlink()
    with pytest.raises(InputError, match=r"plan\.json: no such file"):
        run(batch)


def test_a_folder_has_one_writer_at_a_time(batch: Given) -> None:
    replies = batch.folder.with_name("replies")
    replies.mkdir()
    with locked(replies), pytest.raises(InputError, match="another run is writing"):
        run(batch)
    assert run(batch).complete


def test_a_reply_that_can_not_be_written_ends_the_run_in_one_line(batch: Given) -> None:
    (batch.folder.with_name("replies") / "00000001.reply").mkdir(parents=True)
    with pytest.raises(InputError, match=r"can't write .*00000001\.reply.*then run again: 1 are done"):
        run(batch)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def interrupted() -> None:
        with writing(place, durable=False) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert listed(tmp_path) == ["file"]
    assert place.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("cut", [0, 5, 30, 31, 45, 61])
def test_a_journal_keeps_every_line_that_was_finished(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    with Journal(path, {"head": "of this journal"}) as journal:
        journal.add({"line": 1})
        journal.add({"line": 2})
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    whole = [json.loads(line) for line in data[:cut].split(b"\n")[:-1]][1:]
    with Journal(path, {"head": "of this journal"}) as journal:
        assert journal.lines == whole
        journal.add({"line": 3})
    assert [json.loads(line) for line in path.read_bytes().splitlines()][1:] == [*whole, {"line": 3}]
