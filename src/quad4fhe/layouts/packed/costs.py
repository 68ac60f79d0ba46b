"""The messages of layout packed, the operations of one request, and their cost.

Its primes have up to 60 bits, so residues travel in words of eight bytes.
"""

from __future__ import annotations

from quad4fhe.layouts.forms import Form
from quad4fhe.layouts.packed.packing import Packing
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.costs import Counts, Forecast, Machine, groups


def request_form(packing: Packing, chain: Chain) -> Form:
    """One ciphertext per chunk of features."""
    return Form.of((packing.chunks, 2, len(chain.primes), chain.ring), chain.primes, width=8, opaque=True, step=1)


def reply_form(chain: Chain) -> Form:
    """One ciphertext; the last prime was rescaled away."""
    return Form.of((1, 2, len(chain.primes) - 1, chain.ring), chain.primes[:-1], width=8)


def keys_form(packing: Packing, chain: Chain) -> Form:
    """One row per prime, of the relinearisation key and of the Galois key of each step."""
    rows = (1 + len(packing.steps())) * len(chain.primes)
    return Form.of((rows, 2, len(chain.every), chain.ring), chain.every, width=8, opaque=True)


def packed_counts(packing: Packing) -> Counts:
    """One request."""
    return Counts(
        encryptions=packing.chunks,
        ct_ct=1,
        ct_pt=packing.diagonals * packing.chunks + 2 * packing.columns + (1 if packing.columns > 1 else 0),
        rotations=sum(packing.rotations()),
        relinearisations=1,
        rescales=1,
        depth=3,
    )


def packed_forecast(chain: Chain, samples: int, packing: Packing, machine: Machine) -> Forecast:
    """The bill: rotations before and after the one rescale, and plaintext products."""
    primes, ring = len(chain.primes), chain.ring
    count = groups(samples, packing.samples)
    low = primes - 1
    before, after = packing.rotations()
    switch = before * primes * (primes + 1) + (after + 1) * low * (low + 1)
    plains = packing.diagonals * packing.chunks + 2 * packing.columns
    server = ring * (switch * machine.rotate + plains * primes * machine.plain)
    client = ring * (packing.chunks * primes * machine.encrypt + low * machine.decrypt)
    return Forecast(
        machine=machine.name,
        upload_bytes=count * request_form(packing, chain).payload,
        download_bytes=count * reply_form(chain).payload,
        key_bytes=keys_form(packing, chain).payload,
        client_seconds=count * client * 1e-9,
        server_seconds=count * server * 1e-9,
    )
