"""The interface between layouts and a CKKS library, which `he.seal` implements; see docs/backend.md.

Ciphertexts and plaintexts are opaque to a layout. A layout holds residues in NTT form and in SEAL's order (see
docs/protocol.md), and passes them to the backend for operations that need a key or a key switch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import Array
from quad4fhe.layouts.forms import Words
from quad4fhe.layouts.lift.arithmetic import Arithmetic
from quad4fhe.layouts.residues import KernelName
from quad4fhe.planning.chains import Chain

Ciphertext = Any
Plaintext = Any
SwitchingKeys = Any


class Context(Protocol):
    """One chain: encoding, and arithmetic on ciphertexts that needs no secret.

    `drops` counts the primes that were dropped from the end of the chain.
    """

    @property
    def chain(self) -> Chain:
        """The chain."""

    def dithered(self, values: Array, scale: float, drops: int = 0, reach: float | None = None) -> list[Plaintext]:
        """Plaintexts of real slots (r, N/2), rounded at random; `reach` bounds the slots beforehand."""

    def residues(self, coefficients: Array, drops: int = 0, size: float | None = None) -> Words:
        """Whole coefficients (r, N) to residues in NTT form (r, primes, N)."""

    def ciphertext(self, words: Words, scale: float, drops: int = 0) -> Ciphertext:
        """A ciphertext from its residues (polynomials, primes, N)."""

    def words(self, x: Ciphertext) -> Words:
        """The residues (polynomials, primes, N) of a ciphertext."""

    def is_zero(self, plain: Plaintext) -> bool:
        """Whether a plaintext is zero; a product with it is refused."""

    def scaled(self, x: Ciphertext, scale: float) -> Ciphertext:
        """The same ciphertext, which from now on counts as having this scale."""

    def add(self, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        """x + y, in the place of x; the result has the scale of x."""

    def add_plain(self, x: Ciphertext, plain: Plaintext) -> Ciphertext:
        """x + plain, in the place of x."""

    def multiply_plain(self, x: Ciphertext, plain: Plaintext) -> Ciphertext:
        """A new ciphertext x * plain; scales multiply."""

    def rescale(self, x: Ciphertext) -> Ciphertext:
        """x divided by the last prime of its chain, in the place of x."""

    def square(self, x: Ciphertext, keys: SwitchingKeys) -> Ciphertext:
        """A new ciphertext x * x, relinearised."""

    def rotate(self, x: Ciphertext, step: int, keys: SwitchingKeys) -> Ciphertext:
        """A new ciphertext with the slots of x turned left by `step`."""

    def exact(self, kernel: KernelName) -> Arithmetic:
        """Exact arithmetic on residues: compiled, or by the library's own calls ("numpy")."""

    def zero_encryptor(self, seed: bytes, first: Words) -> Callable[[], Words]:
        """Fresh encryptions of zero (2, primes, N) under a public key: its seed, and its first half (all primes, N).

        The second half is always expanded from the seed: a client that chose it could switch the masking off.
        """

    def switching_keys(self, words: Words, steps: list[int]) -> SwitchingKeys:
        """Keys for `square` and `rotate` from residues (1 + steps, primes, 2, primes + 1, N).

        The first is the relinearisation key, the others are Galois keys in the order of the steps.
        """


class SeededEncryptor(Protocol):
    """Encrypts plaintexts, the second halves of which follow from one public seed."""

    @property
    def seed(self) -> bytes:
        """The seed, `masks.SEED_BYTES` long."""

    def encrypt(self, plains: Sequence[Plaintext]) -> Words:
        """The first halves (n, primes, N) of fresh encryptions; their second halves are the next masks of the seed."""


class Key(Protocol):
    """A secret key: what only its holder can do."""

    @property
    def context(self) -> Context:
        """The context of its chain."""

    def encrypt_plain(self, plain: Plaintext) -> Words:
        """A fresh symmetric encryption of a plaintext: residues (2, primes, N)."""

    def decrypt(self, x: Ciphertext) -> Array:
        """The N/2 slots of a ciphertext."""

    def seeded(self) -> SeededEncryptor:
        """An encryptor with a fresh seed, which its ciphertexts' second halves follow from."""

    def seeded_zeros(self, count: int) -> tuple[bytes, Words]:
        """Fresh encryptions of zero, their second halves from a fresh seed: the seed, first halves (count, primes, N).

        No other form of the same encryptions may ever be seen, and no seed can be passed in.
        """

    def seeded_public_key(self) -> tuple[bytes, Words]:
        """A fresh public key, its second half from a fresh seed: the seed, and its first half (all primes, N)."""

    @property
    def ternary(self) -> NDArray[np.int8]:
        """The secret's coefficients (N,): for layouts that read single coefficients."""

    def switching_words(self, steps: list[int]) -> Words:
        """Fresh relinearisation and Galois keys as residues (1 + steps, primes, 2, primes + 1, N)."""


class Backend(Protocol):
    """A CKKS library."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises for ciphertexts and keys it refuses."""

    def context(self, chain: Chain) -> Context:
        """A context for one chain."""
