from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import re
import resource
import stat
from pathlib import Path

import pytest

from quad4fhe import Client, InputError
from quad4fhe.he import keys
from quad4fhe.he.session import Server
from quad4fhe.layouts.planner import plan
from support.standins import random_model, random_samples, stand_in

SMALL = plan(stand_in(random_model(3, 8, 3), random_samples(200, 3)), samples=4, layout="batch", precision="fast")
REAL = dict(keys._SCRYPT)


@pytest.fixture(autouse=True)
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_SCRYPT", {"n": 2**12, "r": 8, "p": 1})


def test_the_cost_of_a_guess_is_at_least_what_owasp_asks_for() -> None:
    assert REAL["n"] >= 2**17
    assert REAL["r"] >= 8


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_key_comes_back_as_it_was(tmp_path: Path, passphrase: str | None) -> None:
    key = keys.generate(SMALL)
    file = tmp_path / "own.key"
    keys.save(key, file, passphrase)
    back = keys.load(file, passphrase)
    assert (back.plan, back.salt, back.created, back.secret) == (key.plan, key.salt, key.created, key.secret)
    assert back.key_id == key.key_id
    assert len(key.secret) == len(back.open(SMALL).to_bytes())
    assert list(tmp_path.iterdir()) == [file]
    assert (key.secret in file.read_bytes()) == (passphrase is None)


@pytest.mark.parametrize("layout", ["batch", "packed"])
def test_a_client_with_a_stored_key_decides_across_restarts(tmp_path: Path, layout) -> None:
    fit = stand_in(random_model(3, 8, 3), random_samples(200, 3))
    made = plan(fit, samples=4, layout=layout, precision="fast")
    keys.save(keys.generate(made), tmp_path / "own.key")
    X = random_samples(3, 3).clip(*fit.box)
    first, second = (Client(made, keys.load(tmp_path / "own.key")) for _ in range(2))
    assert first.key_id == second.key_id
    server = Server(fit, made)
    server.register(first.key_id, first.evaluation_keys())
    assert (second.decide([server.evaluate(r) for r in second.encrypt(X)]) == fit.model.decide(X)).all()


def test_the_file_is_its_owners_alone_from_its_first_moment(tmp_path: Path, monkeypatch) -> None:
    seen = []
    real = os.open

    def spy(path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags, mode)
        if flags & os.O_CREAT:
            seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    old = os.umask(0)
    try:
        keys.save(keys.generate(SMALL), tmp_path / "own.key")
    finally:
        os.umask(old)
    assert set(seen) == {0o600}
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keys.save(keys.generate(SMALL), tmp_path / "own.key")
    (tmp_path / "own.key").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        keys.load(tmp_path / "own.key")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "own.key"
    file.write_bytes(b"mine")
    with pytest.raises(InputError, match="never overwritten"):
        keys.save(keys.generate(SMALL), file)
    assert file.read_bytes() == b"mine"
    (tmp_path / "link.key").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="never overwritten"):
        keys.save(keys.generate(SMALL), tmp_path / "link.key")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.key", "own.key"]


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_rotation_gives_a_new_key_and_keeps_the_old_one(tmp_path: Path, passphrase: str | None) -> None:
    file = tmp_path / "own.key"
    old = keys.generate(SMALL)
    keys.save(old, file, passphrase)
    fresh, kept = keys.rotate(file, passphrase)
    assert keys.load(file, passphrase).key_id == fresh.key_id != old.key_id
    assert keys.load(kept, passphrase).secret == old.secret
    assert old.key_id.hex()[:8] in kept.name
    assert sorted(tmp_path.iterdir()) == sorted([file, kept])
    assert {stat.S_IMODE(p.stat().st_mode) for p in (file, kept)} == {0o600}


def test_rotation_does_not_lose_the_passphrase(tmp_path: Path) -> None:
    keys.save(keys.generate(SMALL), tmp_path / "own.key", "correct horse")
    for wrong in (None, "wrong"):
        with pytest.raises(InputError, match="passphrase"):
            keys.rotate(tmp_path / "own.key", wrong)
    assert [p.name for p in tmp_path.iterdir()] == ["own.key"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    key = keys.generate(SMALL)
    keys.save(key, tmp_path / "old.key")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(InputError, match="nothing was changed"):
            keys.save(key, tmp_path / "own.key")
        with pytest.raises(InputError, match="nothing was changed"):
            keys.rotate(tmp_path / "old.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["old.key"]
    assert keys.load(tmp_path / "old.key").secret == key.secret


def test_a_folder_that_is_missing_or_a_folder_in_the_way_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't write .*No such file"):
        keys.save(keys.generate(SMALL), tmp_path / "no" / "own.key")
    with pytest.raises(InputError, match="is a folder"):
        keys.save(keys.generate(SMALL), tmp_path)


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_damage_anywhere_is_detected(tmp_path: Path, passphrase: str | None) -> None:
    file = tmp_path / "own.key"
    keys.save(keys.generate(SMALL), file, passphrase)
    data = file.read_bytes()
    places = [*range(0, 400, 7), len(data) // 2, len(data) - 1]
    for damaged in [data[:40], data[:-1], data + b"x", b"", *(_flip(data, place) for place in places)]:
        file.write_bytes(damaged)
        with pytest.raises(InputError):
            keys.load(file, passphrase)


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_a_wrong_or_missing_passphrase_is_refused(tmp_path: Path) -> None:
    keys.save(keys.generate(SMALL), tmp_path / "own.key", "correct horse")
    with pytest.raises(InputError, match="wrong passphrase"):
        keys.load(tmp_path / "own.key", "incorrect")
    with pytest.raises(InputError, match="needs its passphrase; give it with --ask-passphrase"):
        keys.load(tmp_path / "own.key")
    with pytest.raises(InputError, match="empty"):
        keys.save(keys.generate(SMALL), tmp_path / "two.key", "")


def test_a_key_opens_for_the_plan_it_was_made_for_and_no_other(tmp_path: Path) -> None:
    keys.save(keys.generate(SMALL), tmp_path / "own.key")
    key = keys.load(tmp_path / "own.key")
    wider = dataclasses.replace(SMALL.domain, low=tuple(low - 1e-9 for low in SMALL.domain.low))
    other = dataclasses.replace(SMALL, domain=wider)
    assert other.chain == SMALL.chain
    with pytest.raises(
        InputError, match=r"this key is for plan .*, not for plan .*: make a key for it: quad4fhe\.he\.keys"
    ):
        Client(other, key)
    with pytest.raises(InputError, match=r"make a key for it: quad4fhe keygen 'the plan.key' --plan 'the plan.json'$"):
        key.require_plan(other, Path("the plan.json"))
    keys.save(keys.generate(other), tmp_path / "second.key", "secret")  # found without its passphrase
    (tmp_path / "a.key").write_bytes(b"no key")
    with pytest.raises(InputError, match=rf": use the key in {re.escape(str(tmp_path / 'second.key'))}$"):
        Client(other, key)
    Client(SMALL, key)
    fresh, _ = keys.rotate(tmp_path / "own.key")
    assert fresh.plan == SMALL


def test_two_keys_of_one_chain_have_two_names_and_none_shows_the_secret() -> None:
    one, two = keys.generate(SMALL), keys.generate(SMALL)
    assert one.key_id != two.key_id
    assert one.secret.hex()[200:240] not in repr(one)
    assert "secret" not in repr(one)


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_a_secret_key_is_not_pickled(way) -> None:
    with pytest.raises(TypeError, match="can't be pickled"):
        way(keys.generate(SMALL))
