"""Explains a plan in plain words, using only the numbers in the plan."""

from __future__ import annotations

import math

from quad4fhe.planning import layout_named
from quad4fhe.planning.box import Room
from quad4fhe.planning.chains import SECURE_BITS
from quad4fhe.planning.costs import readable_bytes, readable_count, readable_seconds
from quad4fhe.planning.plan import Plan

_LISTED = 10  # close decisions that are listed; the rest is counted


def describe(plan: Plan) -> str:
    """The plan as paragraphs of plain text."""
    return "\n".join(
        [*_layout(plan), *_told(plan), *_security(plan), *_domain(plan), *_error(plan), *_promise(plan), *_bill(plan)]
    )


def table(plans: list[Plan]) -> str:
    """One line per plan: its cost, and whether it keeps every calibration decision."""
    head = ("layout", "replies", "kept", "ring", "client", "server", "up", "down")
    rows = [head]
    for plan in plans:
        bill = plan.forecast
        rows.append(
            (
                plan.layout,
                plan.settings.get("replies", "plain"),
                "all" if plan.kept else f"all but {len(plan.error.close)}",
                str(plan.chain.ring),
                readable_seconds(bill.client_seconds),
                readable_seconds(bill.server_seconds),
                readable_bytes(bill.upload_bytes),
                readable_bytes(bill.download_bytes),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _layout(plan: Plan) -> list[str]:
    shape = plan.shape
    network = f"{shape.features}-{shape.units}-{shape.outputs} network"
    head = f"{readable_count(plan.samples, 'sample')}, {network}, precision {plan.precision}"
    return [head, *layout_named(plan.layout).describe(plan)]


def _told(plan: Plan) -> list[str]:
    """What the answers give away of the model; figures of docs/lift.md, "Extraction"."""
    if plan.plain:
        return [
            "copies: the weights follow from a few plain replies; serve private ones to clients that must not copy it"
        ]
    return [
        "copies: private replies hide the weights beyond the answers, and answers are enough to copy a small model (50 "
        "answers copy 99% of the decisions of a network of 30 features, 200 copy all); serve --numbers-per-day slows it"
    ]


def _security(plan: Plan) -> list[str]:
    primes = "+".join(str(q.bit_length()) for q in plan.chain.primes)
    return [
        f"ring N = {plan.chain.ring}, primes of {primes} bits: "
        f"{plan.chain.bits} of {SECURE_BITS[plan.chain.ring]} bits allowed for 128-bit security"
    ]


def _domain(plan: Plan) -> list[str]:
    domain = plan.domain
    spare = (
        math.log2(plan.reply_chain.modulus) - layout_named(plan.layout).reply_scale(plan) - math.log2(2 * domain.bound)
    )
    how = "by intervals"
    if domain.method != "interval":
        how = f"by {domain.method}; intervals alone give {domain.interval:.4g}"
    lines = [
        f"inputs: the box in the plan, enforced by the client; |logit| stays below {domain.logit:.4g} there "
        f"({how}); {spare:.2f} bits to spare before overflow"
    ]
    if plan.room is not None:
        outside = "moved to the edge" if plan.clip else "rejected"
        lines.append(f"box: {_box(plan.room)}; a sample outside is {outside}")
    if domain.outlier_bits is not None and domain.outlier_bits >= 0.5:
        lines.append(
            f"outliers: without the outermost thousandth of each feature the bound would be {domain.outlier_bits:.1f} "
            "bits smaller; clip them if precision is short"
        )
    return lines


def _box(room: Room) -> str:
    """Where the box comes from, and its cost."""
    if room.share is None:
        return f"as given; {room.bits:.1f} bits over the calibration range"
    if room.share == 0:
        return "the calibration range"
    return (
        f"the calibration range and {room.share:.2g} of it on both sides (--widen {room.share:.3g}), which costs "
        f"{room.bits:.1f} bits of the bound"
    )


def _error(plan: Plan) -> list[str]:
    error = plan.error
    where = "over the calibration samples" if error.source == "samples" else "over the whole box"
    lines = [
        f"error of a deciding difference: typically {error.typical:.2g}, at most {error.bound:.2g} {where}; "
        f"smallest calibration margin {plan.smallest_margin:.2g}"
    ]
    if not error.close:
        lines.append(
            f"all {plan.calibration} calibration decisions lie further than their error bound: none can change, "
            f"but for a probability of 2^{math.log2(error.failure):.0f} for all of them together"
        )
        return lines
    named = ", ".join(str(i) for i in error.close[:_LISTED])
    more = f" and {len(error.close) - _LISTED} more" if len(error.close) > _LISTED else ""
    lines.append(
        f"{len(error.close)} of {plan.calibration} calibration decisions lie closer than the error bound "
        f"(samples {named}{more}); expected to change: {error.changes:.2g}"
    )
    if plan.precision == "strict":
        lines.append("strict could not be met: these margins are too small for any chain up to the largest ring")
    return lines


def _promise(plan: Plan) -> list[str]:
    """The fit's promise, counted for the deployment; `verify` checks it with the hold-out rows."""
    if plan.promise is None:
        return ["promise about new inputs: none; it needs a fit with --holdout, and its own box (no --box, no --widen)"]
    lines = [f"promise, encryption included: {plan.promise.sentence()}; verify counts the fit's hold-out again"]
    return lines if plan.reliable is None else [*lines, f"reliable decisions: {plan.promise.flags()}"]


def _bill(plan: Plan) -> list[str]:
    bill = plan.forecast
    each = plan.samples
    return [
        f"bill: {readable_bytes(bill.upload_bytes)} up, {readable_bytes(bill.download_bytes)} down",
        f"time on one core of the reference machine: client {readable_seconds(bill.client_seconds)}, server "
        f"{readable_seconds(bill.server_seconds)} ({readable_seconds(bill.seconds / each)} a sample together)",
    ]
