"""Encryptions of zero that make a reply tell its answers and nothing else, made ahead while a server is idle.

Each is used once: it is taken out of the pool before it is used, pools are never copied or written anywhere, and a
forked process starts with an empty one. docs/lift.md has the proof that rests on this.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from quad4fhe.layouts.lift.arithmetic import Arithmetic
from quad4fhe.layouts.lift.monomials import Placement

Words = NDArray[np.uint64]
POOL_BYTES = 2**24  # of one client's pool
MOST = 64  # replies prepared for one client


@dataclass(frozen=True, eq=False)
class Zeros:
    """One encryption of zero for each ciphertext of a reply.

    Of the first halves only what is read, (places, rows, primes); the second halves as coefficients (R, primes, N).
    """

    answers: Words
    masks: Words


def pool_capacity(place: Placement, primes: int) -> int:
    """How many replies a pool is made ahead for."""
    return max(1, min(MOST, POOL_BYTES // _reply_bytes(place, primes)))


def pool_bytes(place: Placement, primes: int) -> int:
    """The bytes of a full pool, with one reply more in the making."""
    return (pool_capacity(place, primes) + 2) * _reply_bytes(place, primes)


def _reply_bytes(place: Placement, primes: int) -> int:
    return 8 * primes * (place.replies * place.ring + place.reads)


class ZeroPool:
    """Encryptions of zero under one client's public key; `encrypt` makes one, residues (2, primes, N) in NTT form."""

    def __init__(self, encrypt: Callable[[], Words], place: Placement, arithmetic: Arithmetic, primes: int) -> None:
        self._encrypt, self._place, self._arithmetic = encrypt, place, arithmetic
        self.capacity = pool_capacity(place, primes)
        self._ready: deque[Zeros] = deque()
        self._begun: list[tuple[Words, Words]] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._ready) if self._process == os.getpid() else 0

    def __reduce__(self) -> NoReturn:
        raise TypeError("encryptions of zero are used once, so they can't be copied, pickled or sent")

    def take(self) -> Zeros:
        """Fresh encryptions of zero; nobody else gets them."""
        with self._lock:
            self._forget_after_fork()
            while not self._ready:
                self._step()
            return self._ready.popleft()

    def fill(self) -> bool:
        """Make one encryption of zero ahead; False where the pool is full."""
        with self._lock:
            self._forget_after_fork()
            if len(self._ready) < self.capacity:
                self._step()
            return len(self._ready) < self.capacity

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():  # the parent has the same ones
            self._ready.clear()
            self._begun.clear()
            self._process = os.getpid()

    def _step(self) -> None:
        """One more ciphertext; those of a whole reply become ready together."""
        place = self._place
        whole = self._arithmetic.from_ntt(self._encrypt())
        first = np.moveaxis(whole[0][:, place.positions], 0, -1)  # (places, group, primes)
        self._begun.append((first, whole[1]))
        if len(self._begun) == place.replies:
            begun, self._begun = self._begun, []
            answers = np.concatenate([first for first, _ in begun], axis=1)[:, : place.rows]
            self._ready.append(Zeros(answers, np.stack([second for _, second in begun])))
