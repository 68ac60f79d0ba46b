"""Private replies in layout batch: what is added to a reply so that it tells its values and nothing else.

(x0, x1 + y0, y1) from two encryptions of zero x and y decrypts to the noise of x plus s times that of y, so a public
key is enough to re-randomise all polynomials of a reply. Every coefficient of the first is flooded, to hide that noise.
docs/private_replies.md has the proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quad4fhe.layouts.blinding import draw
from quad4fhe.layouts.flooding import blinding_deviation, draw_flood, flood_security, zero_noise
from quad4fhe.layouts.forms import Words
from quad4fhe.layouts.lift._compiled import add_zeros
from quad4fhe.planning.chains import Chain


@dataclass(frozen=True)
class Flooding:
    """Every coefficient of the K first polynomials gets a number even on [-2^bits, 2^bits)."""

    chain: Chain
    outputs: int
    degree: int
    bits: int

    @property
    def hidden(self) -> float:
        """The deviation of a coefficient of what the encryptions of zero add."""
        return blinding_deviation(self.chain.ring, self.degree)

    @property
    def security(self) -> float:
        """How far a reply is, at most, from one made of its values alone: 2^-security."""
        return flood_security(self.hidden, self.bits, self.outputs * self.chain.ring)

    @property
    def deviation(self) -> float:
        """Of a slot's real part: N coefficients with cosine weights of mean square 1/2."""
        return 2.0**self.bits * math.sqrt(self.chain.ring / 6)

    @property
    def hard(self) -> float:
        """What a slot moves at most beyond that: the encryption of zero, and the flooding's mean of -1/2."""
        return self.chain.ring * (zero_noise(self.chain.ring, self.degree) + 0.5)


class Blinding:
    """Re-randomises replies; every one takes fresh encryptions of zero and a fresh flooding."""

    def __init__(self, flooding: Flooding) -> None:
        self._flooding = flooding

    def blind(self, reply: NDArray[np.uint32], first: Words, second: Words) -> None:
        """Re-randomise a reply (K, degree + 1, primes, N) in place.

        `first` and `second` (primes, N) are the halves of the client's public key, in NTT form.
        """
        chain, own = self._flooding.chain, self._flooding
        keys = np.stack([first, second]).astype(np.uint64)
        for row in reply:
            flood = draw_flood(own.bits, chain.ring, chain.primes)
            add_zeros(row, flood, keys, draw(chain.ring, own.degree), chain.primes)
