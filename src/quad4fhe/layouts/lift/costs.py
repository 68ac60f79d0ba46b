"""The messages of layout lift, in bytes, and what a request costs."""

from __future__ import annotations

from dataclasses import dataclass

from quad4fhe.layouts.bits import packed_bytes
from quad4fhe.layouts.lift._compiled import MOST_DOTS
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.masks import seeded_bytes
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, groups

NARROW = 2**50  # primes below this are computed with in float64, which is several times as fast
_CALL = 100_000.0  # for each encryption by SEAL, whatever its size
_DRAW = 60_000.0  # for each private reply, whatever its size
_CLIENT, _SERVER = 180_000.0, 120_000.0  # for each request, whatever its size


@dataclass(frozen=True)
class Sizes:
    """Bytes of a request and of a reply."""

    request: int
    reply: int


def sizes(place: Placement, chain: Chain, bits: int, *, private: bool) -> Sizes:
    """Residues and replies are packed to their bit length; masks are sent as seeds. A public key is as large as N."""
    request = seeded_bytes(chain.primes, place.used + (chain.ring if private else 0))
    reply = packed_bytes(place.reads + place.replies * chain.ring, bits)
    return Sizes(request, reply)


def lift_forecast(place: Placement, chain: Chain, samples: int, bits: int, *, private: bool) -> Forecast:
    """The bill, in nanoseconds measured on the reference machine: whole requests, and all that is made for them."""
    count = groups(samples, place.samples)
    ring, J, R = chain.ring, place.inputs, place.replies
    primes = len(chain.primes)
    residues, slow = ring * primes, sum(1.0 if q < NARROW else 4.0 for q in chain.primes) * ring
    each = sizes(place, chain, bits, private=private)
    sent = J + private  # ciphertexts of a request, the public key included
    encrypt = sent * (_CALL + 62 * residues + 16 * (slow - residues)) + 10 * place.samples * place.size
    read = R * ring * (4.5 + 0.6 * place.places * place.group)
    halves = R * slow * (5 + 0.9 * J) + (_DRAW + R * (4 * slow + 2 * ring) if private else 0.0)
    if place.places * place.group > MOST_DOTS:
        answers = 3.5 * J * slow + R * slow * (5 + 0.4 * J)
    else:
        n = place.used // place.samples
        answers = place.reads * primes * (0.6 * n + (0.75 * ring if private else 0.0))
    server = 9 * sent * residues + halves + answers
    moved = 0.7 * (each.request + each.reply)
    scale = count * 1e-9
    return Forecast(
        upload_bytes=count * each.request,
        download_bytes=count * each.reply,
        client_seconds=scale * (encrypt + read + moved + _CLIENT),
        server_seconds=scale * (server + moved + _SERVER),
    )
