"""Evidence that no shared quadratic keeps every decision: a few rows with a contradictory exact combination.

Evidence is checked from the weights and inputs, in rationals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from quad4fhe.errors import CertificateError
from quad4fhe.io.rows import Rows, as_rows
from quad4fhe.mlp import MLP
from quad4fhe.proof.exact import WholeNumbers, decisions

Row = Annotated[int, msgspec.Meta(ge=0)]
Targets = Mapping[int, int] | NDArray[Any]
"""The ReLU model's decisions, by row."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples whose rows have a nonnegative combination that rules out every shared quadratic.

    In the `plane` (two classes, any threshold) the rows are s (Q, L, 1) with s = +1 or -1 by target, at most four: a
    point common to both hulls. For `pairs` (the threshold as it is) they are the pairwise lifts against `rivals`, at
    most five, the row lambda > 0 among them if `scale`: Farkas' alternative. With a `degree` p above 2 the same is said
    of every shared polynomial of that degree: the sums P_p, ..., P_1 of powers take the place of (Q, L), with at most
    p + 2 rows in the plane and p + 3 for pairs. A decision for the lower of two classes
    survives a tie, so at least one row with weight must be for the higher one, or be the scale row.
    """

    geometry: Literal["plane", "pairs"]
    samples: list[Row]
    rivals: list[Row] = []
    scale: bool = False
    degree: Annotated[int, msgspec.Meta(ge=2, le=8)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def power(self) -> int:
        """The degree of the polynomials that it speaks of."""
        return 2 if isinstance(self.degree, msgspec.UnsetType) else self.degree


def check_evidence(mlp: MLP, X: ArrayLike | Rows, targets: Targets, evidence: Evidence) -> list[Fraction]:
    """The exact weights (adding up to one) with which the rows of `evidence` contradict each other."""
    rows = evidence_rows(mlp, X, targets, evidence)
    most = evidence.power + (2 if evidence.geometry == "plane" else 3)
    if not 1 <= len(rows) <= most:
        raise CertificateError(f"evidence in the {evidence.geometry} has 1 to {most} rows, this one has {len(rows)}")
    weights = evidence_weights(targets, evidence, rows)
    if weights is None:
        raise CertificateError(f"the rows of samples {evidence.samples} do not contradict each other")
    return weights


def smallest_evidence(mlp: MLP, X: Rows, named: Evidence, most: int) -> Evidence | None:
    """The fewest of the named rows of X that contradict each other exactly, or None if no `most` of them do."""
    decided = decisions(mlp, np.stack([X.row(i) for i in named.samples]), "X_cal").label.tolist()
    targets = dict(zip(named.samples, decided, strict=True))
    rows = evidence_rows(mlp, X, targets, named)
    first = int(named.scale)  # the scale row, if any, comes first
    sizes = range(1, min(most, len(rows)) + 1)
    if named.power > 2:  # all subsets would be too many: the rows come from a basic solution, which is minimal
        sizes = range(min(most, len(rows)), max(0, len(rows) - 3), -1)
    for chosen in chain.from_iterable(combinations(range(len(rows)), size) for size in sizes):
        picked = [k - first for k in chosen if k >= first]
        found = Evidence(
            geometry=named.geometry,
            samples=[named.samples[k] for k in picked],
            rivals=[named.rivals[k] for k in picked] if named.rivals else [],
            scale=named.scale and chosen[0] == 0,
            degree=named.degree,
        )
        if evidence_weights(targets, found, [rows[k] for k in chosen]) is not None:
            return found
    return None


def evidence_weights(targets: Targets, evidence: Evidence, rows: list[list[Fraction]]) -> list[Fraction] | None:
    """The weights with which these rows contradict each other although ties are kept by the lower class, or None."""
    weights = contradiction_weights(rows)
    if weights is None or evidence.geometry == "plane":
        return weights  # a combination in the plane has both sides, and the positive one must be strict
    pairs = weights[1:] if evidence.scale else weights
    strict = any(
        weight > 0 and int(targets[i]) > c
        for weight, i, c in zip(pairs, evidence.samples, evidence.rivals, strict=True)
    )
    return weights if strict or (evidence.scale and weights[0] > 0) else None


def evidence_rows(mlp: MLP, X: ArrayLike | Rows, targets: Targets, evidence: Evidence) -> list[list[Fraction]]:
    """The rows that `evidence` names, exact from the weights and inputs."""
    source = as_rows("X_cal", X, mlp.features)
    _check_indices(mlp, source.shape[0], targets, evidence)
    whole = WholeNumbers(mlp)
    zero, one = Fraction(0), Fraction(1)
    B, b = whole.offsets()
    rows = [[zero] * (evidence.power + 1) + [one]] if evidence.scale else []
    for at, i in enumerate(evidence.samples):
        lift = whole.lift(source.row(i), evidence.power)
        t = int(targets[i])
        c = 1 - t if evidence.geometry == "plane" else evidence.rivals[at]
        if evidence.geometry == "plane":
            rows.append([*(P[t] - P[c] for P in lift), one if t == 1 else -one])
        else:
            rows.append([*(P[t] - P[c] for P in lift), B[t] - B[c], b[t] - b[c]])
    return rows


def _check_indices(mlp: MLP, n: int, targets: Targets, evidence: Evidence) -> None:
    if evidence.geometry == "plane" and (mlp.classes != 2 or evidence.rivals or evidence.scale):
        raise CertificateError("evidence in the plane is for two classes, without rivals or scale")
    if evidence.geometry == "pairs" and len(evidence.rivals) != len(evidence.samples):
        raise CertificateError("evidence for pairs names one rival per sample")
    for i in evidence.samples:
        if not 0 <= i < n:
            raise CertificateError(f"evidence names calibration row {i}, but there are {n}")
    for i, c in zip(evidence.samples, evidence.rivals, strict=False):
        if not 0 <= c < mlp.classes or c == int(targets[i]):
            raise CertificateError(f"class {c} is not a rival of the decision on calibration row {i}")


def contradiction_weights(rows: Sequence[Sequence[Fraction]]) -> list[Fraction] | None:
    """Nonnegative weights, adding up to one, with which the rows combine to zero; None unless they are unique.

    Only the one combination that affinely independent rows allow is looked for: minimal evidence has no other.
    """
    columns = len(rows)
    system = [list(equation) for equation in zip(*rows, strict=True)]
    pivots = eliminated(system, columns)
    free = [column for column in range(columns) if column not in pivots]
    if len(free) != 1:
        return None
    weights = [Fraction(0)] * columns
    weights[free[0]] = Fraction(1)
    for r, column in enumerate(pivots):
        weights[column] = -system[r][free[0]]
    if min(weights) < 0:
        return None
    total = sum(weights, Fraction(0))
    return [weight / total for weight in weights]


def eliminated(system: list[list[Fraction]], columns: int) -> list[int]:
    """Reduce the first columns of equations in place (Gauss and Jordan); the column of the pivot of each equation."""
    pivots: list[int] = []
    for column in range(columns):
        done = len(pivots)
        pivot = next((r for r in range(done, len(system)) if system[r][column] != 0), None)
        if pivot is None:
            continue
        system[done], system[pivot] = system[pivot], system[done]
        lead = system[done][column]
        system[done] = [value / lead for value in system[done]]
        for r, equation in enumerate(system):
            if r != done and (factor := equation[column]):
                system[r] = [value - factor * base for value, base in zip(equation, system[done], strict=True)]
        pivots.append(column)
    return pivots
