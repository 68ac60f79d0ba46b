"""What of a fit's promise holds for its encrypted deployment, and the margin of reliable decisions for its clients.

Decides which hold-out rows encryption could change: those whose margin lies within what it can move a deciding
difference anywhere in the box. The bound itself is left to `target`, the promise to `proof`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quad4fhe.proof.guarantee import delta_of, lost_share_bound
from quad4fhe.proof.holdout import CLOSE, Guarantee, kept_share


@dataclass(frozen=True)
class ReliableAbove:
    """Decisions with a margin of at least `threshold` are kept in at least the share `level` of cases.

    This holds with the `confidence`, for inputs from where the hold-out came from; `coverage` is the share of hold-out
    rows with such a margin. Without a threshold no decision is reliable.
    """

    level: float
    confidence: float
    threshold: float | None
    coverage: float


@dataclass(frozen=True)
class Deployed:
    """At least the share `agreement` of new inputs in the box keeps its decision under encryption.

    Of the `samples` hold-out rows `lost` count as lost: their decision differs, or its margin is at most `error`, what
    encryption can add to a deciding difference anywhere in the box (but for the plan's probability of failure).
    """

    agreement: float
    confidence: float
    samples: int
    lost: int
    error: float


def reliable_above(promised: Guarantee | None) -> ReliableAbove | None:
    """The margin of reliable decisions, for clients."""
    if promised is None or promised.reliable is None:
        return None
    found = promised.reliable
    return ReliableAbove(found.level, promised.confidence, found.threshold, found.accepted / promised.samples)


def deployed(promised: Guarantee | None, anywhere: Callable[[], float]) -> Deployed | None:
    """The promise of the encrypted deployment; None without hold-out rows, or where the error is too large to say."""
    if promised is None or promised.kind != "hold-out":
        return None
    error = anywhere()
    within = sum(margin <= error for margin, _ in promised.close)
    if within == CLOSE:  # there may be more of them, and the fit does not say how many
        return None
    lost = promised.lost + within
    share = kept_share(lost_share_bound(promised.samples, lost, delta_of(promised.confidence)))
    return Deployed(share, promised.confidence, promised.samples, lost, error)
