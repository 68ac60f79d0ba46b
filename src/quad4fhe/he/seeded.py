"""Encryptions whose second halves follow from a public seed, so that only the first are sent; proof in docs/lift.md.

SEAL encrypts; the first half is then moved to another mask (`Arithmetic.rebased`). Two mistakes would reveal the key:
to show both forms of an encryption, and to use a mask for two encryptions. So SEAL's own form never leaves
`SeededEncryptor.encrypt`, no seed can be passed in, and a mask counts as used before its encryption is made.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from quad4fhe.errors import Quad4FHEError
from quad4fhe.he.seal_bytes import Words
from quad4fhe.layouts.masks import SEED_BYTES, expand_into
from quad4fhe.planning.chains import Chain

_REMEMBERED = 4096  # earlier seeds of a key that a new seed is compared with


class SeedError(Quad4FHEError):
    """A seed or mask would be used twice; nothing is encrypted with it."""


class Seeds:
    """The seeds of one key."""

    def __init__(self) -> None:
        self._seen: deque[bytes] = deque(maxlen=_REMEMBERED)

    def fresh(self) -> bytes:
        """A new seed from the operating system."""
        seed = secrets.token_bytes(SEED_BYTES)
        if seed in self._seen:
            raise SeedError("the operating system's random bytes repeat; nothing is encrypted with them")
        self._seen.append(seed)
        return seed


class SeededEncryptor:
    """Encrypts plaintexts under one fresh seed; each gets the next mask.

    It can't be copied, sent, or used in a forked process: masks would repeat.
    """

    def __init__(
        self,
        seeds: Seeds,
        encrypt: Callable[[Any], Words],
        rebased: Callable[[Iterable[Words], Words], Words],
        chain: Chain,
    ) -> None:
        self._seed, self._encrypt, self._rebased = seeds.fresh(), encrypt, rebased
        self._primes, self._ring = chain.primes, chain.ring
        self._count, self._process, self._lock = 0, os.getpid(), threading.Lock()
        self._masks: Words | None = None

    @property
    def seed(self) -> bytes:
        """The public seed."""
        return self._seed

    def __reduce__(self) -> NoReturn:
        raise TypeError("only one encryptor may use a seed, so it can't be copied, pickled or sent")

    def encrypt(self, plains: Sequence[Any]) -> Words:
        """The first halves (n, primes, N) of fresh encryptions; their second halves are the next masks of the seed."""
        if self._process != os.getpid():  # before the lock: it may have been taken when the process forked
            raise SeedError("this request was begun in another process; encrypt it again here")
        with self._lock:
            number, self._count = self._count, self._count + len(plains)
            # Kept, because allocating memory takes longer than filling it.
            if self._masks is None or len(self._masks) < len(plains):
                self._masks = np.empty((len(plains), len(self._primes), self._ring), dtype=np.uint64)
            masks = self._masks[: len(plains)]
            expand_into(masks, self._seed, "request", number, self._primes)
            return self._rebased(map(self._encrypt, plains), masks)
