"""Canaries: samples whose logits the client knows, at secret random places among the others.

A server can't tell canaries from samples, so wrong logits for all samples, or for many, are detected. SECURITY.md lists
what canaries do not detect.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quad4fhe._arrays import Array, IntArray, tensor
from quad4fhe.errors import InputError
from quad4fhe.he.session import ReplyError
from quad4fhe.io.files import open_npz, opened, read_npz
from quad4fhe.layouts import LAYOUTS, layout_of
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.noise import between, deciding
from quad4fhe.planning.plan import Plan

# A plan made with calibration samples bounds errors on these samples only. Elsewhere in the box they can be several
# times as large, so canaries must be calibration samples. A plan made without samples bounds errors in the whole box.
SLACK = 1.25
_EMPTY = -1


@dataclass(frozen=True, eq=False)
class Known:
    """Samples X (m, d) and their plaintext logits (m, K).

    Use calibration samples of the fit: others can raise a false alarm if the plan bounds errors only on those.
    """

    X: Array
    logits: Array

    def __post_init__(self) -> None:
        if len(self.X) != len(self.logits):
            raise InputError(f"{len(self.X)} known samples have {len(self.logits)} logits; wanted one row for each")

    @classmethod
    def load(cls, path: str | Path) -> Known:
        """Read an .npz file with the arrays X and logits, as written by `quad4fhe predict FIT CALIB -o known.npz`."""
        fix = "make it with: quad4fhe predict FIT CALIB -o known.npz"
        with opened(path) as file, open_npz(file, fix) as archive:
            missing = {"X", "logits"} - set(archive.files)
            if missing:
                raise InputError(f"has no array {sorted(missing)[0]!r}; {fix}")
            return cls(tensor("X", read_npz(archive, "X"), 2), tensor("logits", read_npz(archive, "logits"), 2))

    @property
    def slack(self) -> float:
        """A bound on the float64 rounding error of the known logits."""
        return 1e-9 * float(np.abs(self.logits).max(initial=0.0))

    def centred(self) -> Array:
        """The logits as a client decrypts them: for K >= 2, their mean over the classes is subtracted."""
        one = self.logits.shape[1] == 1
        out: Array = self.logits if one else self.logits - self.logits.mean(axis=1, keepdims=True)
        return out


class Mixture:
    """Samples X (n, d) mixed with `count` canaries in every request; only the client knows the random order."""

    def __init__(self, plan: Plan, X: Array, known: Known, count: int) -> None:
        _check(plan, known, count)
        self._plan, self._X, self._known, self._count = plan, X, known, count
        room = plan.per_request - count
        order = _shuffled(len(X))
        self.requests = -(-len(X) // room)
        # In each slot of each request: the number of a sample, -2 - the number of a canary, or -1 for none.
        self._places = np.full((self.requests, plan.per_request), _EMPTY, dtype=np.int64)
        for number, places in enumerate(self._places):
            own = order[number * room : (number + 1) * room]
            slots = _shuffled(plan.per_request)
            places[slots[: len(own)]] = own
            places[slots[len(own) : len(own) + count]] = -2 - _shuffled(len(known.X))[:count]

    def blocks(self) -> Iterator[Array]:
        """Yield the samples in the slots of each request, (per_request, d); an empty slot holds a point of the box."""
        for places in self._places:
            block = np.repeat(self._plan.shift[None], len(places), axis=0)
            block[places >= 0] = self._X[places[places >= 0]]
            block[places < _EMPTY] = self._known.X[-2 - places[places < _EMPTY]]
            yield block

    def read(self, logits: Array) -> Array:
        """Pick the samples' logits (n, K) from those of all slots, in order; raises ReplyError if a canary is wrong."""
        places = self._places.ravel()
        tolerance, hidden = self.tolerance, places < _EMPTY
        wanted, found = self._known.centred()[-2 - places[hidden]], logits[hidden]
        # Check each logit against its bound, and the margin against its own, which is tighter.
        pair = deciding(wanted)
        off = np.abs(between(found, pair) - between(wanted, pair))
        alone = np.abs(found - wanted).max(axis=1, initial=0.0)
        wrong = int(np.count_nonzero(~((off <= tolerance) & (alone <= self.tolerance_alone))))
        if wrong:
            raise ReplyError(
                f"{wrong} of {off.size} canaries have wrong logits (margins are off by up to {float(off.max()):.3g}, "
                f"encryption explains at most {tolerance:.3g}): the server did not evaluate this model on these samples"
                f"{self._doubt}, so its answers are discarded"
            )
        out = np.empty((len(self._X), logits.shape[1]))
        out[places[places >= 0]] = logits[places >= 0]
        return out

    @property
    def _doubt(self) -> str:
        """The other possible reason, in words, if there is one."""
        if self._plan.error.source != "samples":
            return ""
        return ", or the known samples are not the calibration samples on which this plan bounds errors"

    @property
    def tolerance(self) -> float:
        """How far the margin of an honest reply may be from a known one; see SLACK."""
        return SLACK * self._plan.error.bound + self._known.slack

    @property
    def tolerance_alone(self) -> float:
        """How far a logit of an honest reply may be from a known one."""
        return SLACK * self._plan.error.logit + self._known.slack


def _check(plan: Plan, known: Known, count: int) -> None:
    shape = plan.shape
    if not layout_of(plan).canaries:
        fitting = " or ".join(each.name for each in LAYOUTS if each.canaries)
        raise InputError(
            f"canaries are for layout {fitting}, where a request has thousands of slots; take a plan of that layout"
        )
    if not 1 <= count < plan.per_request:
        raise InputError(f"{count} canaries in {plan.per_request} slots; wanted at least 1, and room for samples")
    if len(known.X) < count:
        raise InputError(f"{count} canaries need as many known samples, got {len(known.X)}; give more of them")
    if (known.X.shape[1], known.logits.shape[1]) != (shape.features, shape.outputs):
        raise InputError(
            f"known samples have {known.X.shape[1]} features and {known.logits.shape[1]} logits, the plan "
            f"{shape.features} and {shape.outputs}; use known samples of this model"
        )
    if not (0 <= plan.error.bound < np.inf and 0 <= plan.error.logit < np.inf):
        raise InputError("the plan has no error bound, which canaries need; plan again")
    try:
        check_inside(known.X, plan)
    except InputError as error:
        raise InputError(f"the known samples: {error}") from None


def _shuffled(count: int) -> IntArray:
    """A random order from the operating system; two keys are equal, which biases it, with chance count^2 / 2^64."""
    keys = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
    return np.argsort(keys, kind="stable").astype(np.int64)
