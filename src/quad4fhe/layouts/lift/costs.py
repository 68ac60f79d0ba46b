"""The messages of layout lift, in bytes, and what a request costs on a machine."""

from __future__ import annotations

from dataclasses import dataclass

from quad4fhe.layouts.bits import packed_bytes
from quad4fhe.layouts.lift.monomials import Placement
from quad4fhe.layouts.lift.zeros import pool_capacity
from quad4fhe.layouts.masks import seeded_bytes
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Forecast, Machine, groups

NARROW = 2**50  # primes below this are computed with in float64, which is several times as fast


@dataclass(frozen=True)
class Sizes:
    """Bytes of a request, of a reply, and of the public key that private replies need."""

    request: int
    reply: int
    key: int


def sizes(place: Placement, chain: Chain, bits: int, *, private: bool) -> Sizes:
    """Residues and replies are packed to their bit length; masks are sent as seeds."""
    request = seeded_bytes(chain.primes, place.used)
    reply = packed_bytes(place.reads + place.replies * chain.ring, bits)
    key = seeded_bytes(chain.every, chain.ring)
    return Sizes(request, reply, key if private else 0)


def lift_forecast(
    place: Placement, chain: Chain, samples: int, bits: int, machine: Machine, *, private: bool
) -> Forecast:
    """The bill. A full pool of encryptions of zero was made ahead; those of further requests are part of it."""
    count = groups(samples, place.samples)
    ring, J, R = chain.ring, place.inputs, place.replies
    residues = ring * len(chain.primes)
    slow = sum(1.0 if q < NARROW else 4.0 for q in chain.primes) * ring
    # Per residue, in units of `element`: expanding a seed 5, a transform 4 to 6, a product 0.9, an answer 1, switching
    # and packing 4.5.
    element = machine.element
    monomials = place.samples * place.size * 10 * element
    encrypt = J * (residues * (machine.encrypt + 7 * element) + slow * 4 * element) + monomials
    read = place.replies * ring * (2 + place.places * place.group) * element
    answers = place.reads * (place.size if place.blanks else place.used // place.samples) * len(chain.primes) * element
    masks = J * residues * 5 * element + (0.9 * J * R + 6 * R) * slow * element
    finish = R * (4.5 * residues + 3 * ring) * element + (2 * R * residues * element if private else 0.0)
    zero = 2.4 * R * residues * machine.encrypt  # SEAL encrypts with a public key modulo the special prime as well
    ahead = pool_capacity(place, len(chain.primes)) if private else count
    server = count * (answers + masks + finish) + max(0, count - ahead) * zero
    found = sizes(place, chain, bits, private=private)
    return Forecast(
        machine=machine.name,
        upload_bytes=count * found.request,
        download_bytes=count * found.reply,
        key_bytes=found.key,
        client_seconds=count * (encrypt + read) * 1e-9,
        server_seconds=server * 1e-9,
    )
