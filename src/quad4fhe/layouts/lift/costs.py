"""The messages of layout lift, in bytes, and what a request costs."""

from __future__ import annotations

from dataclasses import dataclass

from quad4fhe.layouts.bits import packed_bytes
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.masks import seeded_bytes
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, Machine, groups

NARROW = 2**50  # primes below this are computed with in float64, which is several times as fast


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


def lift_forecast(
    place: Placement, chain: Chain, samples: int, bits: int, machine: Machine, *, private: bool
) -> Forecast:
    """The bill."""
    count = groups(samples, place.samples)
    ring, J, R = chain.ring, place.inputs, place.replies
    residues = ring * len(chain.primes)
    slow = sum(1.0 if q < NARROW else 4.0 for q in chain.primes) * ring
    # Per residue, in units of `element`: expanding a seed 5, a transform 4 to 6, a product 0.9, an answer 1, switching
    # and packing 4.5.
    element = machine.element
    monomials = place.samples * place.size * 10 * element
    sent = J + private  # ciphertexts of a request, the public key included
    encrypt = sent * (residues * (machine.encrypt + 7 * element) + slow * 4 * element) + monomials
    read = place.replies * ring * (2 + place.places * place.group) * element
    answers = place.reads * (place.used // place.samples) * len(chain.primes) * element
    masks = sent * residues * 5 * element + (0.9 * J * R + 6 * R) * slow * element
    finish = R * (4.5 * residues + 3 * ring) * element + (2 * R * residues * element if private else 0.0)
    zero = 20 * R * slow * element if private else 0.0
    server = count * (answers + masks + finish + zero)
    found = sizes(place, chain, bits, private=private)
    return Forecast(
        upload_bytes=count * found.request,
        download_bytes=count * found.reply,
        client_seconds=count * (encrypt + read) * 1e-9,
        server_seconds=server * 1e-9,
    )
