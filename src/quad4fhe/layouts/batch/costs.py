"""The messages of layout batch, the operations of one request, and their cost."""

from __future__ import annotations

from typing import Any

from quad4fhe.layouts.forms import Form, Part
from quad4fhe.layouts.masks import SEED_BYTES
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, Machine, Shape, groups

_MASK, _REBASE = 3.5, 5.5  # a residue expanded from a seed, and moved to another mask, in units of `element`
_ZERO = 30.0  # a residue of an encryption of zero and of its share of flooding
_REQUEST, _MOVED = 4e5, 2.5  # nanoseconds of either side for each request, and for each residue that travels
Numbers = Any  # a number, or an array of them
CHUNK_BYTES = 128 * 2**20  # encrypted features held at once by either side; more features are streamed


def chunk_features(chain: Chain) -> int:
    """How many encrypted features travel together."""
    return max(1, CHUNK_BYTES // (8 * len(chain.primes) * chain.ring))


def request_form(shape: Shape, chain: Chain, *, private: bool) -> Form:
    """A seed, from which the second halves follow, and the first half of one ciphertext per feature.

    For private replies one more encryption follows, without a message: the public key.
    """
    rows = (shape.features + private, 1, len(chain.primes), chain.ring)
    return Form((Part((SEED_BYTES,), (), 1), Part(rows, chain.primes, 4)))


def reply_form(shape: Shape, chain: Chain, degree: int) -> Form:
    """One ciphertext of degree + 1 polynomials per output."""
    return Form((Part((shape.outputs, degree + 1, len(chain.primes), chain.ring), chain.primes, 4),))


def batch_forecast(
    shape: Shape,
    chain: Chain,
    samples: int,
    products: tuple[float, float, float],
    machine: Machine,
    degree: int = 2,
    hidden: int | None = None,
    *,
    private: bool = False,
) -> Forecast:
    """The bill; see `batch_seconds`."""
    count = groups(samples, chain.slots)
    client, server = batch_seconds(
        shape, chain.ring, len(chain.primes), samples, products, machine, degree, hidden, private=private
    )
    return Forecast(
        upload_bytes=count * request_form(shape, chain, private=private).payload,
        download_bytes=count * reply_form(shape, chain, degree).payload,
        client_seconds=client,
        server_seconds=server,
    )


def batch_seconds(
    shape: Shape,
    ring: Numbers,
    primes: Numbers,
    samples: int,
    products: tuple[Numbers, Numbers, Numbers],
    machine: Machine,
    degree: int,
    hidden: int | None,
    *,
    private: bool,
) -> tuple[Numbers, Numbers]:
    """Seconds of client and server for rings of degree N and so many primes, one chain or many at once.

    `products` are matrix products per prime for W, V and the skip (0 without). `hidden` is the number of distinct rows
    of W, where some units share one. Of a seed, each side makes a mask per feature. With private replies the server
    adds `degree` encryptions of zero to each output.
    """
    rows = shape.units if hidden is None else hidden
    d, m, K = shape.features, shape.units, shape.outputs
    count = -(-samples // (ring // 2))
    parts = degree + 1
    per_prime = 2 * rows * d * products[0] + parts * K * m * products[1] + 2 * K * d * products[2]
    # Products of residues in the expansion of a polynomial, see `kernels.expand`; 0.7 of an element each, with its sum.
    unit = 5.0 if degree == 2 else 1.5 + 0.7 * (degree * (degree - 1) // 2 + 2 * degree)
    elements = unit * m + 2 * d + parts * K + 2 * rows * (products[0] - 1) + parts * K * (products[1] - 1)
    server = ring * primes * (per_prime * machine.multiply + elements * machine.element)
    server += ring * primes * d * _MASK * machine.element
    if private:
        server += ring * primes * degree * K * _ZERO * machine.element
    encrypt = machine.encrypt + (_MASK + _REBASE) * machine.element
    client = ring * primes * (d * encrypt + parts / 2 * K * machine.decrypt)
    fixed = _REQUEST + ring * primes * (d + private + parts * K) * _MOVED
    return count * (client + fixed) * 1e-9, count * (server + fixed) * 1e-9
