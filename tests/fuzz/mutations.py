"""Mutated inputs without a fuzzer: seeded, so that a run can be repeated, and aware of headers and of JSON.

Coverage-guided fuzzing is atheris's work (`run.py`); this is what the tests use, and where atheris can't be had.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|\"[^\"]{0,80}\"")
_VALUES = (
    b"0", b"-1", b"1", b"2", b"1e308", b"-1e308", b"1e400", b"5e-324", b"NaN", b"Infinity", b"-Infinity", b"null",
    b"true", b'""', b"[]", b"{}", b"[[]]", b"4096", b"2147483648", b"9223372036854775807", b"18446744073709551616",
    b"1" * 400, b'"\\ud800"', b'"\\u0000"', b'"a\\nb"', b"[" * 2000, b'{"a":' * 500, b"0.1", b"-0.0",
    b'"batch"', b'"lift"',
)  # fmt: skip
_WORDS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutated(seeds: list[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` inputs, each a seed after one to four changes."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            rng.choice(_CHANGES)(data, rng, seeds)
        yield bytes(data)


def _place(data: bytearray, rng: random.Random) -> int:
    """Anywhere, but half of the time within the first bytes, where headers are."""
    end = len(data) if rng.random() < 0.5 else min(len(data), 300)
    return rng.randrange(end) if end else 0


def _flip(data: bytearray, rng: random.Random, _: list[bytes]) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _word(data: bytearray, rng: random.Random, _: list[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    place = _place(data, rng)
    data[place : place + size] = (rng.choice(_WORDS) % 256**size).to_bytes(size, "little")


def _cut(data: bytearray, rng: random.Random, _: list[bytes]) -> None:
    place = _place(data, rng)
    del data[place : place + rng.choice((1, 2, 8, 64, len(data)))]


def _insert(data: bytearray, rng: random.Random, _: list[bytes]) -> None:
    place = _place(data, rng)
    data[place:place] = rng.randbytes(rng.choice((1, 4, 32, 1000)))


def _splice(data: bytearray, rng: random.Random, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    start, place = rng.randrange(len(other)), _place(data, rng)
    part = other[start : start + rng.choice((4, 64, 1024))]
    data[place : place + len(part)] = part


def _literal(data: bytearray, rng: random.Random, _: list[bytes]) -> None:
    """Another value for a number, a word or a string of JSON; of other bytes, any place."""
    found = list(_NUMBER.finditer(bytes(data[:20_000])))
    if found:
        start, stop = rng.choice(found).span()
        data[start:stop] = rng.choice(_VALUES)


_CHANGES = (_flip, _word, _cut, _insert, _splice, _literal, _literal)
