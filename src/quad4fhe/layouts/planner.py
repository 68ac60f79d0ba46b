"""`plan`: find the cheapest layout and parameters that keep a fit's decisions."""

from __future__ import annotations

import dataclasses

import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, tensor
from quad4fhe._arrays import samples as checked_samples
from quad4fhe._box import default_share, widened
from quad4fhe._threads import few_threads
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.layouts import LAYOUTS
from quad4fhe.layouts.base import Layout
from quad4fhe.names import NONE, Names
from quad4fhe.planning.bounds import Domain, bound
from quad4fhe.planning.box import Room
from quad4fhe.planning.fold import checked_box
from quad4fhe.planning.plan import VERSION, Fitted, Plan, Precision
from quad4fhe.planning.target import Choice, Question
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.guarantee import Guarantee, HoldOut

AUTO = "auto"
PRIVATE, PLAIN = "private", "plain"


@few_threads()
def plan(
    fit: Fitted,
    *,
    samples: int,
    layout: str = AUTO,
    precision: Precision = "strict",
    replies: str = PRIVATE,
    X: ArrayLike | None = None,
    box: ArrayLike | None = None,
    widen: float | None = None,
    clip: bool = False,
) -> Plan:
    """Choose every encryption parameter for a fit.

    Parameters
    ----------
    fit
        The fit to run encrypted: its model, input box and margins decide.
    samples
        How many samples are scored together.
    layout
        How samples lie in ciphertexts: "lift" (one question), "batch" (many samples at once), or "auto", the cheapest.
    precision
        "strict": no calibration decision may change, and of a quarter as many unseen ones none in 99 of 100 cases.
        "fast": at most one in a thousand.
    replies
        "private": a reply tells the client the logits at its own ciphertext and nothing else about the weights.
        "logits": the same, without the noise of the client's encryption; layout lift alone has it. "plain": replies
        hand out the weights.
    X
        The calibration samples (n, d), in the order of the fit's margins. With them the error is forecast at each
        sample; without, for the whole box, which is rigorous, larger, and so costs more primes.
    box
        The smallest and largest value of each feature, (2, d), that inputs may have. By default the calibration range
        with room on both sides, by `widen`.
    widen
        The share of each feature's calibration range that is added on both sides; for a given `box`, the share of its
        range. By default 0.5 for degree 2 and less above, which costs about two bits at any degree; 0 for a given
        `box`. A feature that was constant gets a range too: see `_box.filled`.
    clip
        Clients of this plan move samples outside the box to its edge; by default they reject them.
    """
    corners, share = _box(fit, box, widen)
    question = _question(fit, samples, precision, replies, X, corners)
    found = [choice for each in _offering(layout, replies) for choice in each.search(question)]
    return made_plan(fit, question, _best(question, layout, found), share, clip=clip)


@few_threads()
def plans(
    fit: Fitted,
    *,
    samples: int,
    precision: Precision = "strict",
    replies: str = PRIVATE,
    X: ArrayLike | None = None,
    box: ArrayLike | None = None,
    widen: float | None = None,
    clip: bool = False,
) -> list[Plan]:
    """The best plan of each layout that fits, in the order in which `plan` would take them; see there."""
    corners, share = _box(fit, box, widen)
    question = _question(fit, samples, precision, replies, X, corners)
    found = [each.search(question) for each in _offering(AUTO, replies)]
    best = [min(choices, key=_rank) for choices in found if choices] or [_best(question, AUTO, [])]
    return [made_plan(fit, question, choice, share, clip=clip) for choice in sorted(best, key=_rank)]


def _box(fit: Fitted, box: ArrayLike | None, widen: float | None) -> tuple[Array, float | None]:
    """The box (2, d) that is asked for, and its share of room; None where the box was given."""
    if box is None:
        share = default_share(fit.model.degree) if widen is None else widen
        return checked_box(widened(fit.box, share), fit.model.features), share
    corners = checked_box(box, fit.model.features)
    return (corners if not widen else checked_box(widened(corners, widen), fit.model.features)), None


def _question(
    fit: Fitted, samples: int, precision: Precision, replies: str, X: ArrayLike | None, box: Array
) -> Question:
    if samples < 1:
        raise InputError(f"samples is {samples}, wanted at least 1")
    if precision not in ("strict", "fast"):
        raise InputError(f"precision {precision!r}: wanted strict or fast")
    margins = tensor("margins", fit.margins, 1)
    points = None
    if X is not None:
        points = np.asarray(checked_samples("X", X, fit.model.features), dtype=np.float64)
        if len(points) != len(margins):
            raise InputError(f"X has {len(points)} samples, but the fit has {len(margins)} margins")
        _check_margins(fit.model, points, margins)
    return Question(fit.model, box, margins, points, precision, samples, replies)


def _offering(layout: str, replies: str) -> list[Layout]:
    """The layouts to try: the one of this name, or all that offer such replies."""
    if layout not in (AUTO, *LAYOUTS.names()):
        raise InputError(f"layout {layout!r}: wanted one of {', '.join((AUTO, *LAYOUTS.names()))}")
    tried = list(LAYOUTS) if layout == AUTO else [LAYOUTS.get(layout)]
    found = [each for each in tried if replies in each.replies]
    if not found:
        offered = dict.fromkeys(kind for each in tried for kind in each.replies)
        raise InputError(f"replies {replies!r} with layout {layout}: wanted one of {', '.join(offered)}")
    return found


def _best(question: Question, layout: str, found: list[Choice]) -> Choice:
    """A choice that keeps every decision wins over one that does not; then the cheaper one."""
    if not found:
        raise InputError(_why_none(question, layout))
    return min(found, key=_rank)


def _why_none(question: Question, layout: str) -> str:
    """Why there is no plan; where only plain replies have one, that too."""
    why = _offering(layout, question.replies)[0].why_not(question)
    if question.replies == PLAIN:
        return why
    plain = dataclasses.replace(question, replies=PLAIN)
    if not any(each.search(plain) for each in _offering(layout, PLAIN)):
        return why
    return (
        f"there is no plan with {question.replies} replies: {why}; or take plain ones, which give the weights away "
        "within a few replies: quad4fhe plan FIT --replies plain"
    )


def _rank(choice: Choice) -> tuple[bool, float]:
    return choice.missed, choice.cost.price


def _check_margins(model: PolynomialModel, X: Array, margins: Array) -> None:
    """Reject samples that are not the calibration set: the plan promises something about that set."""
    logits = model.logits(X)
    ordered = np.sort(logits, axis=1)
    found = np.abs(logits[:, 0]) if model.outputs == 1 else ordered[:, -1] - ordered[:, -2]
    size = float(np.abs(logits).max(initial=0.0))
    wrong = np.flatnonzero(np.abs(found - margins) > 1e-9 * size)
    if wrong.size:
        raise InputError(f"X is not the fit's calibration data: the margin of row {int(wrong[0])} is not the fit's")


def made_plan(
    fit: Fitted,
    question: Question,
    choice: Choice,
    share: float | None = None,
    *,
    clip: bool = False,
) -> Plan:
    """The plan of a choice; `share` is the room of its box, None if the box was given."""
    margins = question.margins
    held: HoldOut | None = getattr(fit, "holdout", None)  # only what `quad4fhe.fit` makes has one
    names: Names = getattr(fit, "names", NONE)
    part: FeaturePart | None = getattr(getattr(fit, "mlp", None), "feature_part", None)
    return Plan(
        version=VERSION,
        layout=choice.layout,
        precision=question.precision,
        samples=question.samples,
        shape=question.shape,
        chain=choice.chain,
        scales=choice.scales,
        per_request=choice.per_request,
        settings=choice.settings,
        domain=Domain(
            low=tuple(question.box[0].tolist()),
            high=tuple(question.box[1].tolist()),
            bound=choice.slot_bound,
            logit=choice.bound.logit,
            method=choice.bound.method,
            interval=choice.bound.interval,
            ellipsoid=choice.bound.ellipsoid,
            outlier_bits=_outlier_bits(question, choice),
        ),
        error=choice.error,
        calibration=int(margins.size),
        smallest_margin=float(margins.min()) if margins.size else 0.0,
        forecast=choice.cost,
        model_id=fit.model_id,
        promise=_promise(held, question, choice, clip=clip),
        room=Room(share, _bits_over(choice, question.box, fit.box)),
        clip=clip,
        feature_names=names.features,
        class_names=names.classes,
        feature_part=None if part is None else part.sha256,
    )


def _promise(held: HoldOut | None, question: Question, choice: Choice, *, clip: bool) -> Guarantee | None:
    """The promise about encrypted decisions; None without hold-out rows, or for a box that they were not judged for."""
    if held is None or not np.array_equal(question.box, held.box):
        return None
    made = held.guarantee(max(question.shape.outputs, 2), "moved" if clip else "inside", choice.anywhere())
    return structs.replace(made, by_class=[], reliable=made.reliable)


def _outlier_bits(question: Question, choice: Choice) -> float | None:
    """How many bits of the bound the outermost thousandth of each feature costs; None with few samples."""
    if question.points is None or len(question.points) < 1000:
        return None
    inner = np.quantile(question.points, [0.0005, 0.9995], axis=0)
    return _bits_over(choice, question.box, inner) if _inner(question.box, inner) is not None else None


def _bits_over(choice: Choice, box: Array, other: Array) -> float:
    """How many bits larger the bound of the logits is over the box than over its part in the `other` box."""
    inner = _inner(box, other)
    without = 0.0 if inner is None else bound(choice.circuit, inner).logit
    return max(0.0, float(np.log2(choice.bound.logit / without))) if without > 0 else 0.0


def _inner(box: Array, other: Array) -> Array | None:
    """What two boxes have in common; None if that is nothing."""
    found = np.stack([np.maximum(box[0], other[0]), np.minimum(box[1], other[1])])
    return found if (found[0] <= found[1]).all() else None
