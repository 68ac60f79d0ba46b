"""The server's encryptions of zero, at length: their noise, and what a distinguisher makes of private replies.

    python benchmarks/blinding.py [--coefficients 1000000] [--replies 3000] [--seed N]

Two models have equal answers at a request that its client crafted without noise; they differ in one weight whose
monomial is zero there. The client knows both models, its key and everything it sent. From each reply it computes what
is left of the second half after either guess, and what the answers show; a least-squares rule learns from as many
replies again which model answered. It is right about half the time if and only if the encryption of zero does its work,
so the same rule is tried without one.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe.layouts.blinding import Draws, PublicKey, draw
from quad4fhe.layouts.flooding import blinding_deviation, draw_flood
from quad4fhe.layouts.lift._compiled import Compiled, add_zeros
from quad4fhe.layouts.lift.arithmetic import add, residues, switched
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.masks import expand
from quad4fhe.planning.chains import Chain, chain

Words = NDArray[np.uint64]
Floats = NDArray[np.float64]
RING, PRIMES, BITS, FLOOD = 4096, (46, 46), 41, 54
FEATURES, OUTPUTS, TURNED = 15, 2, 3  # monomials, classes, the monomial whose weight differs


class Owner:
    """A client that knows its own secret, and a public key that is well formed."""

    def __init__(self, made: Chain, seed: bytes = bytes(32)) -> None:
        self.chain, self.exact = made, Compiled(made)
        own = draw(made.ring, 1)
        self.secret, self.noise = own.u[0].astype(np.int64), own.noise[0].astype(np.int64)
        self._values = self.exact.to_ntt(residues(self.secret[None], made.primes))[0]
        self.masks = expand(seed, 2, made.primes, made.ring)
        first = add(self.times(self.masks[1]), residues(self.noise, made.primes), made.primes)
        self.key = PublicKey(self.minus(first), self.masks[1])

    def times(self, values: Words) -> Words:
        """Coefficients (primes, N) of the product of values (primes, N) in NTT form with the secret."""
        linear = np.stack([_times(x, y, q) for x, y, q in zip(values, self._values, self.chain.primes, strict=True)])
        return self.exact.from_ntt(linear[None])[0]

    def minus(self, words: Words) -> Words:
        """The negative of residues (primes, N)."""
        modulus = np.array(self.chain.primes, dtype=np.uint64)[:, None]
        return (modulus - words) % modulus


def _times(x: Words, y: Words, q: int) -> Words:
    return np.array([a * b % q for a, b in zip(x.tolist(), y.tolist(), strict=True)], dtype=np.uint64)


def noise(coefficients: int) -> None:
    """What encryptions of zero decrypt to."""
    made = chain(RING, PRIMES)
    q, rows = made.primes[0], []
    for _ in range(math.ceil(coefficients / (8 * RING))):
        owner = Owner(made)
        keys = np.stack([owner.exact.to_ntt(owner.key.first[None])[0], owner.key.second])
        for _ in range(8):
            zero = np.zeros((2, len(made.primes), RING), dtype=np.uint64)
            add_zeros(zero, zero[0].copy(), keys, draw(RING, 1), made.primes)
            back = owner.exact.from_ntt(zero)
            found = add(back[0], owner.times(zero[1]), made.primes)[0].astype(np.int64)
            rows.append(np.where(found > q // 2, found - q, found))
    values = np.stack(rows).astype(np.float64)
    wanted = math.sqrt(RING * 10.5 * 4 / 3)
    means = values.mean(axis=1)
    centred = (values - values.mean()) / values.std()
    print(
        f"noise: {values.size} coefficients, deviation {values.std():.2f}, predicted {wanted:.2f} "
        f"(ratio {values.std() / wanted:.4f}; counted in the plan: {blinding_deviation(RING):.1f}), "
        f"mean {values.mean():+.3f} ({means.mean() / means.std() * math.sqrt(len(means)):+.1f} sigma), "
        f"kurtosis {(centred**4).mean() - 3:+.3f}, largest {np.abs(values).max() / wanted:.2f} deviations"
    )


class Replies:
    """Replies of two models to one crafted request, and what a client that knows everything makes of them."""

    def __init__(self, seed: int) -> None:
        self.rng, made = np.random.default_rng(seed), chain(RING, PRIMES)
        self.owner, self.place = Owner(made), Placement(RING, FEATURES, OUTPUTS, 1, 1)
        weights = self.rng.integers(-(2**22), 2**22, (OUTPUTS, FEATURES))
        changed = weights.copy()
        changed[:, TURNED] += 2**21
        maps = [self.owner.exact.linear(self.place.weights(each), self.place) for each in (weights, changed)]
        message = np.zeros(RING, dtype=np.int64)
        message[0] = 2**20
        first = self.owner.minus(self.owner.times(self.owner.masks[0]))
        first = add(first, residues(message, made.primes), made.primes)  # b = m - a s, without noise
        self.used, self.maps = self.place.cut(first[:, None]), maps
        self.plain = [m.apply(self.owner.masks[:1], self.used, None, None, BITS)[1].astype(np.int64) for m in maps]

    def reply(self, model: int, draws: Draws) -> tuple[Words, Words]:
        """Answers and second halves, flooded and switched as a server sends them."""
        made = self.owner.chain
        reads, halves = self.maps[model].apply(self.owner.masks[:1], self.used, self.owner.key, draws, BITS)
        flat = np.ascontiguousarray(reads.reshape(-1, len(made.primes)).T)
        return switched(add(flat, draw_flood(FLOOD, OUTPUTS, made.primes), made.primes), made, BITS), halves

    def features(self, model: int, draws: Draws) -> list[float]:
        """Numbers to tell the models apart by."""
        reads, halves = self.reply(model, draws)
        half, secret = 1 << (BITS - 1), self.owner.secret
        out: list[float] = []
        for guess in self.plain:
            left = ((halves.astype(np.int64) - guess + half) % (2 * half) - half) / half
            for row in left:
                out += [row.mean(), np.abs(row).mean(), (row * secret).mean(), (row[1:] * row[:-1]).mean()]
                out += [row[0], row[TURNED], row[-TURNED], np.cos(np.pi * row).mean(), np.sin(np.pi * row).mean()]
        turned = np.concatenate([secret[:1], -secret[:0:-1]]).view(np.uint64)  # of coefficient 0 of a product
        answers = (reads.reshape(-1) + halves @ turned).astype(np.int64)
        return [*out, *(((answers + half) % (2 * half) - half) / 2.0**20)]


def distinguish(name: str, replies: Replies, count: int, draws: Any) -> None:
    """How often a rule that learns from `count` replies names the right model in `count` others."""
    truth = replies.rng.integers(0, 2, 2 * count)
    rows = np.array([replies.features(int(t), draws()) for t in truth])
    rows = (rows - rows[:count].mean(axis=0)) / (rows[:count].std(axis=0) + 1e-30)
    rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    rule, *_ = np.linalg.lstsq(rows[:count], 2.0 * truth[:count] - 1, rcond=None)
    right = int(np.count_nonzero((rows[count:] @ rule > 0) == truth[count:]))
    print(f"{name}: {right} of {count} right ({(right - count / 2) / math.sqrt(count / 4):+.1f} sigma)", flush=True)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coefficients", type=int, default=1_000_000)
    parser.add_argument("--replies", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    noise(options.coefficients)
    replies = Replies(options.seed)
    none = np.zeros((OUTPUTS, RING), dtype=np.int8)
    distinguish("without an encryption of zero", replies, max(200, options.replies // 10), lambda: Draws(none, none))
    distinguish("with it", replies, options.replies, lambda: draw(RING, OUTPUTS))


if __name__ == "__main__":
    main()
