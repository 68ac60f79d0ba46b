"""The search for layout lift: rings, primes, groups and flooding, cheapest first, until one keeps the decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from quad4fhe._arrays import Array
from quad4fhe.layouts.flooding import LEAST_SECURITY, MOST_SECURITY, blinding_deviation, flood_bits, flood_security
from quad4fhe.layouts.lift.arithmetic import MOST_BITS
from quad4fhe.layouts.lift.costs import lift_forecast
from quad4fhe.layouts.lift.monomials import (
    Lift,
    Placement,
    with_offset,
)
from quad4fhe.layouts.lift.noise import (
    LiftNoise,
    Norms,
    Scales,
    check_tolerance,
    lift_confidence,
)
from quad4fhe.layouts.lift.powers import count_monomials, lift_of_degree, weights_of
from quad4fhe.planning.chains import SECURE_BITS, Chain, chain
from quad4fhe.planning.noise import BINOMIAL, Pair, box_points, deciding, evaluation_error, expected_changes
from quad4fhe.planning.target import (
    GUARD,
    SMALLEST_BOUND,
    Question,
    Verdict,
    allowed_changes,
    allowed_unseen,
    unseen_changes,
    verdict,
)

Replies = Literal["private", "logits", "plain"]
REPLIES: tuple[Replies, ...] = ("private", "logits", "plain")
CHECKED = 2.0**-20  # the share of wrong keys that should pass the check of a reply
MOST_MONOMIALS = 2**20
MOST_INPUTS = 255  # ciphertexts whose products a compiled kernel adds up without a reduction
MOST_LIFT = 128  # log2 of the scale of monomials
_PLAIN = (
    (2048, (50,)),
    (2048, (53,)),
    (4096, (60,)),
    (4096, (30, 30)),
    (4096, (46, 46)),
    (8192, (50, 50)),
    (8192, (50,) * 3),
)
_PRIVATE = ((4096, (46, 46)), (8192, (50, 50)), (8192, (50, 50, 50)), (8192, (49,) * 4))
_WORD = 61  # bits of a coefficient of a request, and of a weight
_LARGEST_WEIGHT = 2.0**200
_SPARE_BITS = 1  # of a reply, beyond those that just keep the decisions
_LEAST_BITS = 16
_FEW = 4096  # closest decisions looked at while searching; all of them are in the verdict


def shown_bits(chain: Chain, place: Placement, flood: int) -> float:
    """What one ciphertext of a private reply can show of the server's u, in bits, to a client with a malformed key."""
    return place.places * place.group * max(0.0, math.log2(chain.modulus) - flood)


def most_shown(chain: Chain) -> float:
    """How much of u may be shown so: what is left of it keeps 128 bits, by a table that is linear in the dimension."""
    return chain.ring * math.log2(3) * (1 - chain.bits / SECURE_BITS[chain.ring])


def hides_mask(chain: Chain, place: Placement) -> bool:
    """Whether a malformed key shows little enough, with the least flooding."""
    least = flood_bits(blinding_deviation(chain.ring), LEAST_SECURITY, place.reads)
    return shown_bits(chain, place, least) <= most_shown(chain)


def lift_chains(replies: Replies) -> Iterator[Chain]:
    """The chains of this layout."""
    for ring, sizes in _PLAIN if replies == "plain" else _PRIVATE:
        yield chain(ring, sizes)


def groupings(ring: int, size: int, outputs: int) -> list[int]:
    """How many outputs may share a ciphertext of a reply: the smallest group for each pair of J and R.

    With larger groups a request has more ciphertexts and a reply fewer: J R is about K D / N.
    """
    found: dict[tuple[int, int], int] = {}
    for group in range(1, min(outputs, ring) + 1):
        place = Placement(ring, size, outputs, group, 1)
        if place.inputs > MOST_INPUTS:
            break
        found.setdefault((place.inputs, place.replies), group)
    return list(found.values())


def placements(ring: int, size: int, outputs: int, samples: int) -> Iterator[Placement]:
    """Ways to lay out the monomials in a ring: groups of outputs, and several samples where they fit."""
    for group in groupings(ring, size, outputs):
        room = max(1, ring // (group * size))
        for count in {1, min(room, 2, samples), min(room, 4, samples), min(room, 8, samples), min(room, samples)}:
            yield Placement(ring, size, outputs, group, count)


@dataclass(frozen=True, eq=False)
class Found:
    """A way to answer the question in this layout."""

    chain: Chain
    place: Placement
    scales: Scales
    security: float | None
    noise: LiftNoise
    slot_bound: float
    judged: Verdict


def search_lift(question: Question, replies: Replies) -> Found | None:
    """The cheapest way that keeps the decisions, or the most precise one; None if the model does not fit."""
    shape = question.shape
    if count_monomials(shape.features, question.model.degree) > MOST_MONOMIALS:
        return None
    aim = _Aim(question)
    if not aim.fits:
        return None
    candidates = [
        (lift_forecast(place, made, question.samples, 40, private=replies != "plain").price, made, place)
        for made in lift_chains(replies)
        for place in placements(made.ring, aim.lift.size, shape.outputs, question.samples)
        if replies == "plain" or hides_mask(made, place)
    ]
    coarse: tuple[float, Chain, Placement, Scales] | None = None
    nearest: Found | None = None
    for _, made, place in sorted(candidates, key=lambda c: c[0]):
        scales = _scales(aim, made, place, replies)
        if scales is None:
            continue
        noise = aim.noise(made, place, scales)
        if not aim.met(noise):
            size = noise.anywhere()
            if coarse is None or size < coarse[0]:
                coarse = (size, made, place, scales)
            continue
        found = _judged(aim, made, place, _filled(aim, made, place, scales, replies), replies)
        if found is not None and not found.judged.missed:
            return found
        if found is not None and (nearest is None or found.judged.error.bound < nearest.judged.error.bound):
            nearest = found
    if nearest is None and coarse is not None:
        nearest = _judged(aim, *coarse[1:], replies)
    return nearest


@dataclass(frozen=True, eq=False)
class _Aim:
    """The closest decisions: what steers the search. Nothing is proved with it."""

    question: Question

    @cached_property
    def offset(self) -> float:
        """What is added to every answer."""
        return offset_of(self.question)

    @cached_property
    def lift(self) -> Lift:
        """The monomials over the box."""
        return lift_of_degree(self.question.box, self.question.reference.shift, self.question.model.degree)

    @cached_property
    def fits(self) -> bool:
        """Whether monomials and weights have sizes that a plan can have; others overflow floats on the way."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.lift.largest <= 2.0 ** (_WORD - 1) and bool(np.abs(self._map).max() < _LARGEST_WEIGHT)

    @cached_property
    def _map(self) -> Array:
        return weights_of(self.lift, self.question.reference)

    @cached_property
    def weights(self) -> Array:
        """The map with its offset, (K, D)."""
        return with_offset(self._map, self.offset)

    @cached_property
    def points(self) -> Array:
        """Where the error is looked at."""
        question = self.question
        return box_points(question.box) if question.points is None else question.points

    @cached_property
    def close(self) -> tuple[Array, Array, Pair, Array]:
        """Of the closest certain decisions: |z|, evaluation errors, deciding classes, and margins."""
        question = self.question
        order = np.argsort(question.margins, kind="stable")
        order = order[question.certain[order]][:_FEW]
        if question.points is None:
            points, pair = self.points, deciding(question.reference.logits(self.points))
        else:
            points, pair = question.points[order], (question.deciding[0][order], question.deciding[1][order])
        lost = evaluation_error(question.reference, np.abs(points - question.reference.shift))
        return self.lift.norms(points), lost, pair, question.margins[order]

    @cached_property
    def length(self) -> float:
        """A typical |z|."""
        lengths = self.close[0]
        return float(np.sqrt((lengths**2).mean())) if lengths.size else 1.0

    @cached_property
    def _known(self) -> dict[int, Norms]:
        return {}

    def noise(self, chain: Chain, place: Placement, scales: Scales) -> LiftNoise:
        """The noise of a candidate."""
        confidence = lift_confidence(self.question.decisions, place)
        norms = self._norms(place)
        return LiftNoise(self.question.reference, self.lift, norms, place, chain, scales, confidence)

    def _norms(self, place: Placement) -> Norms:
        if place.group not in self._known:
            self._known[place.group] = Norms.of(self.weights, place.group)
        return self._known[place.group]

    def met(self, noise: LiftNoise) -> bool:
        """Whether this noise should keep the decisions."""
        question = self.question
        lengths, lost, pair, margins = self.close
        if not margins.size:
            return True
        typical = noise.deviation_at(lengths, pair)
        if unseen_changes(question.margins, 1.0) * float(typical.mean()) > allowed_unseen(question):
            return False
        if question.precision == "strict":
            if question.points is None:
                return question.sides * noise.anywhere() + question.lost < float(margins[0])
            return bool((noise.bound_at(lengths, lost, pair) < margins).all())
        spread = typical if question.points is not None else float(np.sqrt((typical**2).mean()))
        return expected_changes(margins, spread) <= allowed_changes(question.margins.size)


def _filled(aim: _Aim, chain: Chain, place: Placement, scales: Scales, replies: Replies) -> Scales:
    """Scales that keep the decisions, with as few bits a reply and as much flooding as still do.

    Where it can be had, a wrong key passes the check of a reply once in a million times only.
    """
    first = aim.noise(chain, place, scales)
    most = max(CHECKED * aim.question.limits.logit, 1.25 * check_tolerance(first))

    def met(changed: Scales) -> bool:
        noise = aim.noise(chain, place, changed)
        return check_tolerance(noise) <= most and aim.met(noise)

    least = _smallest(_LEAST_BITS, MOST_BITS, lambda bits: met(replace(scales, bits=bits)))
    scales = replace(scales, bits=min(MOST_BITS, least + _SPARE_BITS))
    if replies == "plain":
        return scales
    security = -_smallest(
        -MOST_SECURITY, -LEAST_SECURITY, lambda s: met(_flooded(aim, chain, place, scales, -s, replies))
    )
    return _flooded(aim, chain, place, scales, security, replies)


def _flooded(aim: _Aim, chain: Chain, place: Placement, scales: Scales, security: int, replies: Replies) -> Scales:
    hidden = _hidden(aim, place, scales, replies)
    return replace(scales, flood=flood_bits(hidden, security, place.reads))


def _hidden(aim: _Aim, place: Placement, scales: Scales, replies: Replies) -> float:
    """The deviation of what flooding hides: the encryption of zero, and for logits the noise of the request as well."""
    own = request_noise(aim.weights, place, scales.weights) if replies == "logits" else 0.0
    return math.hypot(blinding_deviation(place.ring), own)


def request_noise(weights: Array, place: Placement, scale: float) -> float:
    """The deviation of what the noise of an honest request adds to an answer."""
    norms = np.sqrt((weights * weights).sum(axis=1)) * scale + math.sqrt(weights.shape[1])
    return math.sqrt(BINOMIAL * place.group) * float(norms.max())


def _scales(aim: _Aim, chain: Chain, place: Placement, replies: Replies) -> Scales | None:
    """The scales of least noise that fill the chain, with the least flooding; None where nothing fits."""
    lift, weights = aim.lift, aim.weights
    limit = aim.question.limits.logit + aim.offset
    out = chain.modulus / (2 * GUARD * max(limit, SMALLEST_BOUND))
    grain = math.floor(_WORD - math.log2(lift.largest))
    most = 2.0 ** (_WORD - math.log2(max(float(np.abs(weights).max()), 2.0**-500)))
    best: tuple[float, Scales] | None = None
    for log2 in range(1, min(math.ceil(math.log2(max(out, 2.0))), MOST_LIFT + 1)):
        found = Scales(log2, min(grain, log2), min(out / 2.0**log2, most), MOST_BITS, None)
        if replies != "plain":
            found = _flooded(aim, chain, place, found, LEAST_SECURITY, replies)
            assert found.flood is not None
            if found.flood + 2 > math.log2(chain.modulus):
                continue
        size = aim.noise(chain, place, found).typical(aim.length)
        if best is None or size < best[0]:
            best = (size, found)
    return None if best is None else best[1]


def _smallest(low: int, high: int, fine: Callable[[int], bool]) -> int:
    """The smallest of low..high that is fine; high is taken for fine."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fine(middle) else (middle + 1, high)
    return high


def _judged(aim: _Aim, chain: Chain, place: Placement, scales: Scales, replies: Replies) -> Found | None:
    """The candidate as it would run: bound and verdict. None if its answers could overflow."""
    question = aim.question
    noise = aim.noise(chain, place, scales)
    slot_bound = lift_bound(question, noise, aim.offset)
    if chain.modulus < 2 * slot_bound * scales.out:
        return None
    judged = verdict(question, question.reference, noise, slot_bound * 2.0**-51)
    security = None
    if scales.flood is not None:
        hidden = _hidden(aim, place, scales, replies)
        security = flood_security(hidden, scales.flood, place.reads)
    return Found(chain, place, scales, security, noise, slot_bound, judged)


def lift_bound(question: Question, noise: LiftNoise, offset: float) -> float:
    """What no answer exceeds anywhere in the box, noise included."""
    return max((question.limits.logit + noise.anywhere() + offset) * (1 + 1e-6), 2.0**-500)


def offset_of(question: Question) -> float:
    """What is added to every answer: far more than noise, and little compared with the answers; 0 for one output."""
    return question.limits.logit / 1024 if question.shape.outputs > 1 else 0.0


def why_not_lift(question: Question) -> str:
    """What keeps a model from this layout, and what to do instead."""
    degree = question.model.degree
    count = count_monomials(question.shape.features, degree)
    if count > MOST_MONOMIALS:
        return (
            f"{question.shape.features} features have {count} monomials of degree {degree} or less, layout lift takes "
            f"{MOST_MONOMIALS}; take another layout"
        )
    return (
        "the logits, monomials or weights are too large over the box for layout lift; standardise the features, or "
        "take another layout"
    )
