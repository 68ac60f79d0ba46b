"""Parts of requests that are made ahead: each is used once, also by several processes and after a crash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import InputError
from quad4fhe.he import keys
from quad4fhe.he import prepared as module
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.prepared import Part, PreparedFolder
from quad4fhe.he.session import Client, Server
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.plan import Plan
from support.standins import StandInFit, random_model, random_samples, stand_in


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(5, 6, 3), random_samples(200, 5))


@pytest.fixture(scope="module")
def made(fit: StandInFit) -> Plan:
    return plan(fit, samples=1, layout="lift", X=random_samples(200, 5))


@pytest.fixture(scope="module")
def key(made: Plan) -> StoredKey:
    return keys.generate(made)


def test_a_prepared_request_is_answered_like_any_other(
    fit: StandInFit, made: Plan, key: StoredKey, tmp_path: Path
) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    client, server = Client(made, key, folder), Server(fit, made)
    server.register(client.key_id, client.evaluation_keys())
    assert client.prepare(3, folder) == 3
    X = random_samples(200, 5)[:5]  # more questions than parts
    requests = [client.encrypt(x[None])[0] for x in X]
    found = np.concatenate([client.decrypt(server.evaluate(request)) for request in requests])
    assert (found.argmax(axis=1) == fit.model.decide(X)).all()
    assert len(folder) == 0
    seeds = {np.asarray(request.chunks[0]).reshape(-1)[:32].tobytes() for request in requests}
    assert len(seeds) == 5


def test_a_part_is_gone_from_the_disk_before_it_is_used(
    made: Plan, key: StoredKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    client = Client(made, key, folder)
    client.prepare(1, folder)
    order: list[str] = []
    sync = module.sync_folder
    monkeypatch.setattr(module, "sync_folder", lambda path: (order.append(str(sorted(os.listdir(path)))), sync(path)))
    inner = client._layout.encrypt_prepared
    monkeypatch.setattr(
        type(client._layout), "encrypt_prepared", lambda _, *a: (order.append("used"), inner(*a))[1], raising=True
    )
    client.encrypt(np.zeros((1, 5)))
    assert order == ["[]", "used"]


@pytest.mark.parametrize("step", ["rename", "read_bytes", "unlink", "sync"])
def test_after_a_crash_at_any_step_a_part_is_used_at_most_once(
    key: StoredKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    folder.put(Part(b"one"))

    class CrashError(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        if step == "sync":
            patch.setattr(module, "sync_folder", crash)
        else:
            patch.setattr(Path, step, crash)
        with pytest.raises(CrashError):
            folder.take()
    again = PreparedFolder(tmp_path / "parts", key)
    again.tidy()
    # The crash came before the part was handed out, so once is fine, and twice never happens.
    found = [again.take(), again.take()]
    assert [None if part is None else part.zeros for part in found] in ([b"one", None], [None, None])
    assert [again.take(), again.take()][0] is None
    assert os.listdir(tmp_path / "parts") == []


def test_a_disk_that_does_not_confirm_means_no_part(
    key: StoredKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    folder.put(Part(b"one"))

    def refuse(_: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_folder", refuse)
        with pytest.raises(InputError, match="Input/output error"):
            folder.take()
    assert folder.take() is None


def test_processes_that_take_at_once_get_different_parts(key: StoredKey, tmp_path: Path) -> None:
    keys.save(key, tmp_path / "own.key")
    folder = PreparedFolder(tmp_path / "parts", key)
    for i in range(60):
        folder.put(Part(b"%d" % i))
    program = (
        "from pathlib import Path; from quad4fhe.he import keys; from quad4fhe.he.prepared import PreparedFolder\n"
        f"folder = PreparedFolder(Path({str(tmp_path / 'parts')!r}), keys.load({str(tmp_path / 'own.key')!r}))\n"
        "while (part := folder.take()) is not None: print(part.zeros.decode(), flush=True)"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    seen = Counter(line for process in running for line in process.communicate()[0].split())
    assert sorted(map(int, seen)) == list(range(60))
    assert set(seen.values()) == {1}


def test_parts_of_another_key_or_damaged_or_planted_ones_are_not_used(
    made: Plan, key: StoredKey, tmp_path: Path
) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    folder.put(Part(b"one"))
    assert PreparedFolder(tmp_path / "parts", keys.generate(made)).take() is None
    (path,) = (tmp_path / "parts").glob("*.ready")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert folder.take() is None
    # The key's id and the plan's hash are public; without the secret nobody makes a part that passes.
    body = module.MAGIC + key.key_id + made.sha256 + bytes(64)
    (tmp_path / "parts" / "planted.ready").write_bytes(body + hashlib.sha256(body).digest())
    assert folder.take() is None
    assert PreparedFolder(tmp_path / "nothing", key).take() is None


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")
def test_only_the_owner_may_read_parts(key: StoredKey, tmp_path: Path) -> None:
    folder = PreparedFolder(tmp_path / "parts", key)
    folder.put(Part(b"one"))
    (path,) = (tmp_path / "parts").glob("*.ready")
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "parts").stat().st_mode & 0o077 == 0
    (tmp_path / "parts").chmod(0o755)
    with pytest.raises(InputError, match="chmod 700"):
        folder.put(Part(b"two"))


def test_layouts_that_have_nothing_to_prepare_say_so(fit: StandInFit, tmp_path: Path) -> None:
    own = keys.generate(plan(fit, samples=200, layout="batch"))
    with pytest.raises(InputError, match="layout batch has nothing to prepare"):
        Client(own.plan, own).prepare(1, PreparedFolder(tmp_path / "parts", own))
