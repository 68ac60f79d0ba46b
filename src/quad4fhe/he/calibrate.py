"""Measure this machine in about a second, to forecast the run time of a plan.

The parameters of a plan do not depend on it: they are chosen for the reference machine, so that they are the same
everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quad4fhe.he.seal import Context, SecretKey, words
from quad4fhe.layouts.batch.evaluation import multiply
from quad4fhe.layouts.packed.search import PACKED_CHAINS
from quad4fhe.layouts.residues import kernels
from quad4fhe.planning.chains import chain
from quad4fhe.planning.costs import Machine
from quad4fhe.planning.exactness import exact_matrix

_UNITS, _FEATURES, _TILE = 256, 128, 512


def calibrate() -> Machine:
    """Measure products, kernels, encryption and key switching: CPU time, the best of a few runs."""
    made = chain(4096, (31, 31, 31))
    q, kernel = made.primes[0], kernels()
    rng = np.random.default_rng(0)
    matrix = exact_matrix(rng.integers(-1000, 1000, size=(_UNITS, _FEATURES)), q)
    operand = rng.integers(-(q // 2), q // 2, size=(_FEATURES, 2 * _TILE)).astype(np.float64)
    hidden, squares = np.empty((_UNITS, 2, _TILE)), np.empty((_UNITS, 3, _TILE))
    flat, bias = hidden.reshape(_UNITS, -1), np.zeros(_UNITS)
    product = _best(lambda: multiply(matrix, operand, flat, kernel))
    square = _best(lambda: kernel.square(hidden, bias, q, squares))
    key = SecretKey(Context(made))
    values = rng.normal(size=made.slots)
    scale = 2.0**20

    def encrypt() -> NDArray[np.uint32]:
        return words(key.encrypt(values, scale)).astype(np.uint32)

    sent = encrypt()
    size = made.ring * len(made.primes)
    switching = chain(*PACKED_CHAINS[0])
    turner = SecretKey(Context(switching))
    keys = turner.context.switching_keys(turner.switching_words([1]), [1])
    turned = turner.encrypt(values, 2.0**40)
    plain = turner.context.encode(values, 2.0**40)
    primes = len(switching.primes)
    switched = switching.ring * primes
    return Machine(
        name="this",
        multiply=1e9 * product / (_UNITS * _FEATURES * 2 * _TILE),
        element=1e9 * square / (_UNITS * 5 * _TILE),
        encrypt=1e9 * _best(encrypt) / size,
        decrypt=1e9 * _best(lambda: key.decrypt(key.context.ciphertext(sent, scale))) / size,
        rotate=1e9 * _best(lambda: turner.context.rotate(turned, 1, keys)) / (switched * (primes + 1)),
        plain=1e9 * _best(lambda: turner.context.multiply_plain(turned, plain)) / switched,
    )


def _best(step: Callable[[], object], repeats: int = 9) -> float:
    step()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return min(times)
