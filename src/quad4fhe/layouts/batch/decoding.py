"""The verdict on a circuit of layout batch, and how large the slots of a reply may be for it to hold."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from quad4fhe.layouts.batch.noise import BatchNoise
from quad4fhe.planning.chains import Chain
from quad4fhe.planning.fold import Circuit
from quad4fhe.planning.noise import decoding_error, transform_error
from quad4fhe.planning.target import Question, Verdict, verdict

_TRUSTED = 16.0  # times the largest logit on the calibration set: the least that clients accept
_CLOSEST = 1e-3  # share of the smallest margins; a decoding error above these would make decisions close
_LEAST = 2.0**-20  # a model whose logits are all equal still needs a limit above zero


def judged_by_slots(
    question: Question, running: Circuit, noise: BatchNoise, made: Chain, out: int, slot_bound: float
) -> tuple[Verdict, float | None]:
    """The verdict, and the largest slot that a client may accept for it to hold; None for all that the box allows.

    Decoding loses a share of the largest slot. Over the box a polynomial of degree 8 can be so large that this share
    would hide decisions, so the client then rejects replies with slots far beyond those of the calibration set. The
    widest range of slots is taken for which no decision becomes close. See docs/error_bound.md, decoding.
    """
    decode = partial(decoding_error, made, out)

    def judge(slot: float) -> Verdict:
        # What else decoding loses depends on the chain: another one may lose nothing.
        return verdict(question, running, noise, decode(slot), transform_error(made.ring) * slot)

    if running.a is None or question.points is None:
        return judge(slot_bound), None
    beside = noise.slot()  # imaginary parts, which the client does not see
    least = _TRUSTED * float(np.abs(question.logits).max(initial=_LEAST))
    if least + beside >= slot_bound:
        return judge(slot_bound), None
    narrow = judge(least + beside)
    if not narrow.missed:
        small = float(np.quantile(question.margins, _CLOSEST)) if question.margins.size else 0.0
        for reach in (slot_bound, math.sqrt(slot_bound * least)):
            slot = slot_bound if reach == slot_bound else reach + beside
            if question.sides * decode(slot) > small:
                continue
            wide = judge(slot)
            if not wide.missed and len(wide.error.close) <= len(narrow.error.close):
                return wide, None if reach == slot_bound else reach - decode(slot)
    return narrow, least - decode(least + beside)
