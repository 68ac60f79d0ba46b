"""Folders of encrypted batches: what the client writes, and what a run answers, quarantines, repeats or never sees."""

from __future__ import annotations

import json
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
from quad4fhe.he import container, keys
from quad4fhe.he.session import Server
from quad4fhe.io.files import locked, writing
from quad4fhe.mlp import decide
from support.inline import InlineWorkers
from support.serving import small_fit

REQUESTS = 4


@dataclass(frozen=True)
class Given:
    """A fit, a plan, a key, samples for four requests, and the folder they were encrypted into."""

    fit: Fit
    plan: Plan
    key: keys.StoredKey
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
        plan = make_plan(fit, samples=2048 if layout == "batch" else 4, layout=layout, precision="strict")
        n = (REQUESTS - 1) * plan.per_request + 1  # the last request is not full
        drawn = np.clip(np.random.default_rng(3).normal(size=(4 * n, 4)), *fit.box)
        ordered = np.sort(fit.model.logits(drawn), axis=1)
        X = drawn[ordered[:, -1] - ordered[:, -2] > 0.02][:n]  # encryption is approximate: no near ties
        assert len(X) == n
        folder = tmp_path_factory.mktemp(layout) / "requests"
        key = keys.generate(plan)
        write_requests(plan, key, X, folder)
        return Given(fit, plan, key, X, folder)

    return made


def _copy(original: Given, tmp_path: Path) -> Given:
    """A copy of the folder, which a test may change."""
    folder = tmp_path / "requests"
    shutil.copytree(original.folder, folder)
    shutil.copy(f"{original.folder}.index", f"{folder}.index")
    return Given(original.fit, original.plan, original.key, original.X, folder)


@pytest.fixture(params=["batch", "packed"])
def given(request: pytest.FixtureRequest, originals: Callable[[Any], Given], tmp_path: Path) -> Given:
    return _copy(originals(request.param), tmp_path)


@pytest.fixture
def batch(originals: Callable[[Any], Given], tmp_path: Path) -> Given:
    return _copy(originals("batch"), tmp_path)


@pytest.fixture
def packed(originals: Callable[[Any], Given], tmp_path: Path) -> Given:
    return _copy(originals("packed"), tmp_path)


def run(given: Given, **options: Any) -> Score:
    return score(given.fit, given.folder, given.folder.with_name("replies"), pool=InlineWorkers(), **options)


def answers(given: Given) -> list[Any]:
    return list(read_replies(given.key, given.X, given.folder, given.folder.with_name("replies")))


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
    server = Server(given.fit, given.plan)
    if given.plan.layout == "packed":
        with next(given.folder.glob("*.keys")).open("rb") as file:
            server.register(*container.read_keys(given.plan, file))
    for i in range(REQUESTS):
        with (given.folder / f"{i:08d}.request").open("rb") as file:
            reply = server.evaluate(container.read_request(given.plan, file))
        written = b"".join(container.write_reply(given.plan, reply))
        found = (replies / f"{i:08d}.reply").read_bytes()
        if given.plan.layout == "batch":  # in layout packed every server rounds its weights at random
            assert found == written
        assert (len(found), found[: container.HEADER_BYTES]) == (len(written), written[: container.HEADER_BYTES])


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
    good = [(replies / f"{i:08d}.reply").read_bytes() for i in range(2)]
    (replies / "00000000.reply").unlink()
    (replies / "00000001.reply").write_bytes(good[1][:-40] + b"!" + good[1][-39:])
    found = run(batch)
    assert (found.answered, found.answered_before) == (2, 2)
    assert [(replies / f"{i:08d}.reply").read_bytes() for i in range(2)] == good


def test_a_request_that_was_replaced_is_answered_again(batch: Given) -> None:
    run(batch)
    other = write_other(batch, batch.folder.with_name("other"))
    shutil.copy(other / "00000001.request", batch.folder / "00000001.request")
    found = run(batch)
    assert (found.answered, found.answered_before) == (1, REQUESTS - 1)


def write_other(given: Given, folder: Path) -> Path:
    write_requests(given.plan, given.key, given.X, folder)
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
    yield "cut.request", good[:middle], "bytes early"
    yield "empty.request", b"", "not a quad4fhe container"
    yield "flipped.request", good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], "damaged"
    yield "junk.request", bytes(range(256)) * 64, "not a quad4fhe container"
    yield "long.request", good + b"more", "bytes follow the end"
    yield "other.request", good[:12] + bytes(32) + good[44:], "another plan or model"
    yield "reply.request", good[:10] + b"\x02" + good[11:], "holds reply, wanted request"


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
    assert "bytes early" in (replies / "quarantine" / "cut.request.txt").read_text()
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


def test_missing_or_damaged_evaluation_keys_fail_requests_until_they_are_there(packed: Given) -> None:
    (file,) = packed.folder.glob("*.keys")
    good = file.read_bytes()
    file.unlink()
    found = run(packed)
    assert (found.answered, found.quarantined, len(found.failed)) == (0, (), REQUESTS)
    assert "no evaluation keys of client" in found.failed[0].reason
    file.write_bytes(good[:-1])
    assert "can't be used: the container ends 1 bytes early" in run(packed).failed[0].reason
    file.write_bytes(good)
    assert run(packed).complete


@pytest.mark.parametrize("payload", ["files", "bytes"])
def test_two_files_that_name_the_same_evaluation_keys_are_refused_until_one_is_gone(packed: Given, payload) -> None:
    (file,) = packed.folder.glob("*.keys")
    good = file.read_bytes()
    second = packed.folder / "zz\n.keys"  # sorts after the client's own
    second.write_bytes(good[: container.HEADER_BYTES] + bytes(len(good) - container.HEADER_BYTES))
    with pytest.raises(InputError, match=rf"zz.*\.keys and {file.name} both hold keys of client") as caught:
        run(packed, payload=payload)
    assert "\n" not in str(caught.value)
    second.unlink()
    assert run(packed, payload=payload).complete


def test_the_advice_about_a_damaged_journal_works(batch: Given, tmp_path: Path) -> None:
    replies = tmp_path / "answers"
    score(batch.fit, batch.folder, replies, pool=InlineWorkers())
    for journal in (index_path(batch.folder), replies / "manifest.jsonl"):
        with journal.open("ab") as file:
            file.write(b"garbage\n")
    advice = "not JSON.* start again in another folder"
    with pytest.raises(InputError, match=advice):
        write_requests(batch.plan, batch.key, batch.X, batch.folder)
    with pytest.raises(InputError, match=advice):
        score(batch.fit, batch.folder, replies, pool=InlineWorkers())
    folder, others = tmp_path / "another", tmp_path / "others"
    write_requests(batch.plan, batch.key, batch.X, folder)
    assert score(batch.fit, folder, others, pool=InlineWorkers()).complete
    logits = [one.logits for one in read_replies(batch.key, batch.X, folder, others)]
    np.testing.assert_array_equal(decide(np.concatenate(logits)), batch.expected())


@pytest.mark.parametrize("here", [True, False])
def test_no_secret_key_reaches_a_worker_even_if_it_lies_in_the_folder(given: Given, here: bool) -> None:
    keys.save(given.key, given.folder / "own.request")
    keys.save(given.key, given.folder / "own.keys")
    keys.save(given.key, given.folder / "own.key")
    secret = given.key.secret[64:-64]
    assert secret in (given.folder / "own.request").read_bytes()
    inline = InlineWorkers(on_this_machine=here)
    found = score(given.fit, given.folder, given.folder.with_name("replies"), pool=inline)
    assert found.payload == ("files" if here else "bytes")
    assert (found.answered, names(found.quarantined)) == (REQUESTS, ["own.request"])
    everything = b"".join(inline.sent)
    assert secret not in everything
    for name in ("own.request", "own.keys", "own.key"):
        assert name.encode() not in everything
    assert not any(secret in path.read_bytes() for path in given.folder.with_name("replies").glob("*.reply"))


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
        write_requests(batch.plan, batch.key, batch.X, folder, progress=interrupt)
    first = {path.name: path.read_bytes() for path in folder.glob("*.request")}
    assert len(first) == 2
    written = write_requests(batch.plan, batch.key, batch.X, folder)
    assert (written.requests, written.before) == (REQUESTS, 2)
    assert {name: (folder / name).read_bytes() for name in first} == first
    score(batch.fit, folder, tmp_path / "replies", pool=InlineWorkers())
    logits = [one.logits for one in read_replies(batch.key, batch.X, folder, tmp_path / "replies")]
    np.testing.assert_array_equal(decide(np.concatenate(logits)), batch.expected())


def test_requests_of_others_are_not_written_over(batch: Given, tmp_path: Path) -> None:
    own = index_path(batch.folder)
    lines = own.read_text().splitlines(keepends=True)
    own.write_text("".join(lines[:-1]))  # killed between the last file and its line
    assert write_requests(batch.plan, batch.key, batch.X, batch.folder).before == REQUESTS - 1
    before = {path.name: path.read_bytes() for path in batch.folder.iterdir()}
    own.unlink()
    with pytest.raises(InputError, match="choose an empty folder"):
        write_requests(batch.plan, batch.key, batch.X, batch.folder)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(batch.folder / "00000000.request", other)
    with pytest.raises(InputError, match="choose an empty folder"):
        write_requests(batch.plan, keys.generate(batch.plan), batch.X, other)
    assert {path.name: path.read_bytes() for path in batch.folder.iterdir()} == before


def test_a_key_writes_requests_for_its_own_plan_only_and_nothing_for_a_sample_outside(
    batch: Given, tmp_path: Path
) -> None:
    other = make_plan(batch.fit, samples=4, layout=batch.plan.layout, precision="fast", box=2 * batch.fit.box)
    with pytest.raises(InputError, match="this key is for plan"):
        write_requests(other, batch.key, batch.X, tmp_path / "new")
    X = batch.X.copy()
    X[-1, 2] = 2 * batch.plan.domain.high[2]
    with pytest.raises(InputError, match="outside the box"):
        write_requests(batch.plan, batch.key, X, tmp_path / "new")
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
    assert "another request" in got[2].reason
    assert "not a quad4fhe container" in got[3].reason


def test_replies_are_read_with_the_same_data_and_key_only(batch: Given, tmp_path: Path) -> None:
    run(batch)
    replies = batch.folder.with_name("replies")
    with pytest.raises(InputError, match="other samples"):
        next(read_replies(batch.key, batch.X[1:], batch.folder, replies))
    with pytest.raises(InputError, match=r"was encrypted with key .*no key file beside it has this id"):
        next(read_replies(keys.generate(batch.plan), batch.X, batch.folder, replies))
    keys.save(batch.key, tmp_path / "right.key")
    keys.save(keys.generate(batch.plan), tmp_path / "wrong.key")
    with pytest.raises(InputError, match=r"was encrypted with key .*; that is --key \S*right\.key$"):
        next(read_replies(keys.load(tmp_path / "wrong.key"), batch.X, batch.folder, replies))
    with pytest.raises(InputError, match=r"index is missing"):
        next(read_replies(batch.key, batch.X, tmp_path / "elsewhere", replies))
    with pytest.raises(InputError, match="is not a folder"):
        next(read_replies(batch.key, batch.X, batch.folder, tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"belongs to another data"):
        write_requests(batch.plan, batch.key, batch.X[1:], batch.folder)


def test_a_sample_outside_the_box_is_named_by_its_row_before_anything_is_written(batch: Given, tmp_path: Path) -> None:
    X = batch.X.copy()
    row = batch.plan.per_request + 7
    X[row, 2] = 1e3
    with pytest.raises(InputError, match=rf"outside the box.*X\[{row}, 2\] = 1000"):
        write_requests(batch.plan, batch.key, X, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert write_requests(batch.plan, batch.key, X, tmp_path / "new", clip=True).clipped == 1


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
