"""Evaluation keys that the server keeps: one owner's uploads do not cost the others theirs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx

from quad4fhe import Fit
from quad4fhe.he import container
from quad4fhe.he.key_cache import KeyCache
from quad4fhe.he.session import Client
from quad4fhe.serve.client import Remote
from support.serving import RunningServer

PLAN = b"p" * 32


def keep(store: KeyCache[Path], folder: Path, owner: str, number: int) -> Path:
    file = folder / f"{owner}{number}"
    file.touch()
    store.put(PLAN, file.name.encode(), file, size=1, owner=owner)
    return file


def left(folder: Path) -> Counter[str]:
    return Counter(file.name[0] for file in folder.iterdir())


def test_one_owners_uploads_evict_nobody_elses_keys(tmp_path: Path) -> None:
    store: KeyCache[Path] = KeyCache(8, Path.unlink)
    keep(store, tmp_path, "v", 0)
    keep(store, tmp_path, "w", 0)
    for number in range(30):
        keep(store, tmp_path, "a", number)
        assert store.get(PLAN, b"v0") == tmp_path / "v0"
    assert (len(store), left(tmp_path)) == (8, Counter(a=6, v=1, w=1))
    assert store.get(PLAN, b"a29") is not None
    assert store.get(PLAN, b"a23") is None


def test_owners_get_equal_shares_and_then_evict_only_their_own(tmp_path: Path) -> None:
    store: KeyCache[Path] = KeyCache(8, Path.unlink)
    for owner in "abab":
        for number in range(20):
            keep(store, tmp_path, owner, number + 100 * len(list(tmp_path.iterdir())))
    assert len(store) == 8
    before = left(tmp_path)
    assert set(before.values()) <= {3, 4, 5}
    files = {file for file in tmp_path.iterdir() if file.name[0] == "a"}
    for number in range(20):
        keep(store, tmp_path, "b", 10_000 + number)
    assert files <= set(tmp_path.iterdir())


def test_the_keys_used_longest_ago_are_evicted_and_a_newcomer_is_always_let_in(tmp_path: Path) -> None:
    store: KeyCache[Path] = KeyCache(3, Path.unlink)
    for owner in "abc":
        keep(store, tmp_path, owner, 0)
    store.get(PLAN, b"a0")
    keep(store, tmp_path, "d", 0)
    assert left(tmp_path) == Counter("acd")
    keep(store, tmp_path, "d", 1)
    assert left(tmp_path) == Counter("acd")
    assert store.get(PLAN, b"d1") is not None
    assert store.get(PLAN, b"d0") is None


def test_the_limit_is_on_the_sum_of_sizes() -> None:
    cache: KeyCache[int] = KeyCache(10)
    for number, size in enumerate((4, 4, 4, 9)):
        cache.put(PLAN, bytes([number]), number, size)
        assert cache.get(PLAN, bytes([number])) == number
    assert len(cache) == 1  # nine and nothing else
    cache.put(PLAN, b"large", 5, 50)  # larger than the limit: kept, as it is needed now
    assert (len(cache), cache.get(PLAN, b"large")) == (1, 5)
    cache.drop(PLAN, b"large")
    assert len(cache) == 0


def test_one_token_does_not_evict_the_keys_of_another(fitted: tuple[Path, Fit], tmp_path: Path) -> None:
    a, b = "a" * 32, "b" * 32
    (tmp_path / "tokens").write_text(f"{a}\n{b}\n")
    words = ("--layout", "packed", "--precision", "fast", "--workers", "1", "--max-keys", "3")
    with RunningServer(fitted[0], *words, "--token-file", tmp_path / "tokens") as server:
        with Remote(server.url, token=a) as remote:
            plan = remote.plan
        places = []
        for token in (b, a, a, a, a):
            client = Client(plan)
            data = b"".join(container.write_keys(plan, client.key_id, client.evaluation_keys()))
            headers = {"content-type": "application/octet-stream", "authorization": f"Bearer {token}"}
            places.append(f"{server.url}/models/{plan.model_id}/keys/{client.key_id.hex()}")
            assert httpx.put(places[-1], content=data, headers=headers, timeout=300).status_code == 204
        assert [httpx.get(place, headers=headers).status_code for place in places] == [204, 404, 404, 204, 204]
