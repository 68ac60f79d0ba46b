"""What a layout asks of the secret key of one request; `he.seal` has it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.planning.chains import Chain

Words = NDArray[Any]


class Context(Protocol):
    """One chain, and the encoding of slots."""

    @property
    def chain(self) -> Chain:
        """The chain."""

    def encoded(self, values: Array, scale: float, reach: float) -> Words:
        """Real slots (r, N/2), bounded by `reach`, as residues in NTT form (r, primes, N), rounded at random."""


class Key(Protocol):
    """A secret key and its public seed. No seed can be passed in, and each encryption takes the next mask."""

    @property
    def context(self) -> Context:
        """The context of its chain."""

    @property
    def seed(self) -> bytes:
        """The public seed, from which the second halves of all encryptions follow."""

    @property
    def ternary(self) -> NDArray[np.int8]:
        """The secret's coefficients (N,): for layouts that read single coefficients."""

    def zeros(self, count: int) -> Words:
        """The first halves (count, primes, N) of fresh encryptions of zero, in NTT form."""

    def decrypt(self, words: Words, scale: float) -> Array:
        """The N/2 slots of a ciphertext (polynomials, primes, N)."""
