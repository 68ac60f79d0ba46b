"""An estimate of the cost of known lattice attacks on ring-LWE with a ternary secret, without Sage.

The tool of the field is lattice-estimator, which needs Sage. This is a compact estimate by the same published formulas,
checked against what lattice-estimator printed for parameters like ours (`tests/test_security_estimate.py`). All costs
are log2 of a number of operations, samples are unlimited, memory is free, and the ring gives an attacker nothing.

Attacks
- `usvp`: the primal attack by the estimate of 2016 (Alkim, Ducas, Poeppelmann, Schwabe): BKZ-b finds the secret when
  sqrt(b) sigma <= delta^(2b - d - 1) vol^(1/d), secret and error brought to one size.
- `bdd`: the same with a smaller block, and one larger sieve at the end of the basis.
- `dual_hybrid`: short dual vectors by BKZ and a sieve, some coordinates guessed, some by an FFT modulo a small p
  (Guo and Johansson, ASIACRYPT 2021; MATZOV, "Report on the Security of LWE", 2022, Theorem 7.6). It takes the
  independence heuristic, which favours the attacker and is disputed (Ducas and Pulles, CRYPTO 2023).

Cost models of lattice reduction
- `core`: one sieve, 2^(0.292 b), nothing else: a lower bound for every sieve known.
- `bdgl16`: 8 d sieves of 2^(0.292 b + 16.4): the model behind the guidelines' table.
- `matzov`: gate counts of list-decoding sieves with dimensions for free, the default of lattice-estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

BLOCKS = np.arange(50, 1800, dtype=np.float64)  # sizes of BKZ blocks that are tried

# Gates of a sieve in dimension b: 2^(SLOPE b + GATES), fitted by lattice-estimator's authors to Albrecht, Gheorghiu,
# Postlethwaite and Schanck (ASIACRYPT 2020) with MATZOV's improvements.
SLOPE, GATES = 0.29613500308205365, 20.387885985467914
PROGRESSIVE = math.log2(1 / (1 - 2**-SLOPE))  # a progressive sieve costs this factor more than its last dimension
LIST = 0.2075  # a sieve in dimension b leaves 2^(LIST b) short vectors


@dataclass(frozen=True)
class Instance:
    """LWE of dimension n modulo 2^log_q; standard deviations of secret and error; samples, if they are limited.

    By default a ternary secret and the guidelines' error. SEAL's error is a little larger, 3.24.
    """

    n: int
    log_q: float
    secret: float = math.sqrt(2 / 3)
    error: float = 3.19
    samples: int | None = None


@dataclass(frozen=True)
class Attack:
    """The cheapest parameters of an attack that were found: log2 of its cost, and the BKZ block size."""

    name: str
    bits: float
    block: int


def root_hermite(b: Any) -> Any:
    """The root Hermite factor delta of BKZ with blocks of size b (Chen, 2013)."""
    return (b / (2 * math.pi * math.e) * (math.pi * b) ** (1 / b)) ** (1 / (2 * (b - 1)))


def free_dimensions(b: Any) -> Any:
    """Dimensions for free of a sieve (Ducas, EUROCRYPT 2018)."""
    return np.maximum(b * math.log(4 / 3) / np.log(b / (2 * math.pi * math.e)), 0)


def _core(b: Any, d: Any) -> Any:
    return 0.292 * b + 0.0 * d


def _bdgl16(b: Any, d: Any) -> Any:
    return np.logaddexp2(0.292 * b + 16.4 + np.log2(np.where(b < d, 8.0 * d, 1.0)), 3 * np.log2(d))


def _matzov(b: Any, d: Any) -> Any:
    calls = PROGRESSIVE + np.log2(np.maximum(d - b, 1.0))
    return np.logaddexp2(calls + PROGRESSIVE + SLOPE * (b - free_dimensions(b)) + GATES, 3 * np.log2(d))


MODELS: dict[str, Callable[[Any, Any], Any]] = {"core": _core, "bdgl16": _bdgl16, "matzov": _matzov}


def _found(lwe: Instance, d: Any, b: Any, tail: Any) -> Any:
    """Whether a sieve over the last `tail` vectors of a BKZ-b reduced basis of dimension d meets the secret.

    By the geometric series assumption; secret and error are scaled to one size.
    """
    volume = (d - lwe.n - 1) * lwe.log_q + lwe.n * math.log2(lwe.error / lwe.secret)
    left = (2 * tail - d - 1) * np.log2(root_hermite(b)) + volume / d
    return left >= math.log2(lwe.error) + 0.5 * np.log2(tail)


def _dimensions(lwe: Instance) -> Any:
    most = 2 * lwe.n if lwe.samples is None else lwe.samples
    return lwe.n + 1 + np.unique(np.linspace(1, most, 2000).astype(np.int64)).astype(np.float64)


def _primal(lwe: Instance, model: str, more: int) -> Attack:
    """The cheapest of the smallest blocks that find the secret, with a last sieve `more` dimensions larger."""
    d = _dimensions(lwe)
    low, high = 0, len(BLOCKS)
    while low < high:  # larger blocks find whatever smaller ones do
        middle = (low + high) // 2
        if _found(lwe, d, BLOCKS[middle], BLOCKS[middle] + more).any():
            high = middle
        else:
            low = middle + 1
    best = Attack("primal", math.inf, 0)
    for b in BLOCKS[low : low + 4]:
        cost = float(MODELS[model](b, d[_found(lwe, d, b, b + more)].min()))
        if more:
            cost = float(np.logaddexp2(cost, MODELS[model](b + more, b + more)))
        best = min(best, Attack("primal", cost, int(b)), key=lambda attack: attack.bits)
    return best


def usvp(lwe: Instance, model: str) -> Attack:
    """The primal attack."""
    return replace(_primal(lwe, model, 0), name="usvp")


def bdd(lwe: Instance, model: str) -> Attack:
    """The primal attack with a last sieve in a larger dimension than the blocks'."""
    tried = (_primal(lwe, model, more) for more in range(0, 80, 2))
    return replace(min(tried, key=lambda attack: attack.bits), name="bdd")


def dual_hybrid(lwe: Instance, model: str) -> Attack:
    """The dual attack with guessing and an FFT, over p, guessed coordinates, FFT coordinates and blocks."""
    best = Attack("dual_hybrid", math.inf, 0)
    guessed = np.arange(0.0, 45.0, 5.0)[None, :, None]
    transformed = np.arange(0.0, 200.0, 5.0)[None, None, :]
    near = usvp(lwe, model).block or BLOCKS[-1]
    blocks = BLOCKS[(near - 80 <= BLOCKS) & (near + 20 >= BLOCKS)]
    for p in (2, 3, 4, 5):
        cost = _dual(lwe, model, blocks[:, None, None], guessed, transformed, p)
        place = np.unravel_index(int(np.argmin(cost)), cost.shape)
        best = min(best, Attack("dual_hybrid", float(cost[place]), int(blocks[place[0]])), key=lambda a: a.bits)
    return best


def _dual(lwe: Instance, model: str, b: Any, guessed: Any, transformed: Any, p: int) -> Any:
    """log2 of the cost of MATZOV's attack with n samples, for arrays of its parameters."""
    lattice = lwe.n - guessed - transformed
    d = lwe.n + lattice
    if model == "matzov":
        # The last sieve is as large as costs no more than the reduction before it.
        sieve = np.floor(b - np.floor(free_dimensions(b)) + (np.log2(d - b) + PROGRESSIVE) / SLOPE)
        last = PROGRESSIVE + SLOPE * sieve + GATES
    else:
        sieve, last = b, -np.inf
    length = (
        (lwe.n * math.log2(lwe.error) + lattice * (math.log2(lwe.secret) + lwe.log_q)) / d
        + 0.5 * math.log2(4 / 3)
        + 0.5 * np.log2(sieve / (2 * math.pi * math.e))
        + (d - sieve) * np.log2(root_hermite(b))
    )
    # log2 of the number of vectors that tell the right guess from all others.
    bias = 4 * (math.pi * 2.0 ** np.minimum(length - lwe.log_q, 20)) ** 2
    bias = bias + transformed / 3 * (lwe.secret * math.pi / p) ** 2
    needed = bias / math.log(2) + np.log2(guessed * math.log(3) + transformed * math.log(p) + math.log(2))
    reduction = np.maximum(needed - LIST * sieve, 0) + np.logaddexp2(MODELS[model](b, d), last)
    # Multiplications of 2^10 gates and additions of 160, as in the report.
    fft = 10 + np.log2(np.maximum(transformed, 1)) + (transformed + 1) * math.log2(p)
    table = math.log2(4 * 160) + needed
    return np.logaddexp2(reduction, guessed * math.log2(3) + np.logaddexp2(fft, table))


def estimate(lwe: Instance, model: str) -> list[Attack]:
    """Every attack under one cost model, the cheapest first."""
    return sorted((attack(lwe, model) for attack in (usvp, bdd, dual_hybrid)), key=lambda attack: attack.bits)
