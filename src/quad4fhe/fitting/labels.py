"""What labels say of a network: how often it is right, and whether that is more than chance.

A fit keeps the decisions of the network, right or wrong, so it needs no labels. But where labels are at hand, they show
at once what the fit itself can't: a network that is fed with other features than it was trained on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray
from quad4fhe.errors import InputError
from quad4fhe.fitting import notes
from quad4fhe.fitting.diagnostics import Accuracy
from quad4fhe.io.rows import ArrayRows, Rows
from quad4fhe.mlp import MLP
from quad4fhe.names import class_ids, strange_label
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.exact import shard_decisions, target_labels
from quad4fhe.proof.guarantee import Split
from quad4fhe.proof.holdout import calibration_part
from quad4fhe.workers.shards import SHARD_ROWS, Shard, Shards

_FEWEST = 50  # labels: with fewer, a good network may look like chance
_ERRORS = 3.0  # standard errors that a share must be above chance
_LITTLE = 0.1  # of the way from chance to all right
_EXPLAINED = 0.5  # of the way from the most frequent label to all right


def labels_of(mlp: MLP, name: str, rows: Rows, given: ArrayLike | None) -> tuple[IntArray | None, list[str]]:
    """The labels of the rows as class ids (n,), and notes about how they were read; without ids if there are none.

    Labels that come with the rows are only noted if they can't be read, because a fit can do without; `given` ones are
    an error.
    """
    if given is not None:
        ids, note = read_labels(mlp, name, given, rows.shape[0])
        return ids, [note] if note else []
    try:
        own = rows.labels()
        if own is None:
            return None, []
        ids, note = read_labels(mlp, name, own, rows.shape[0])
    except InputError:
        return None, [notes.LABELS_UNKNOWN.format(mlp.classes)]
    return ids, [note] if note else []


def read_labels(mlp: MLP, name: str, given: ArrayLike, n: int) -> tuple[IntArray, str]:
    """Class ids of labels (by name, by number, from 1, or in sorted order as in scikit-learn), and a note or ""."""
    labels = np.asarray(given)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise InputError(f"{name} has shape {labels.shape}, wanted one label for each of the {n} rows")
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.rint(labels))).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "O":  # a column of text in a DataFrame
        labels = labels.astype(str)
    K = mlp.classes
    if (ids := class_ids(labels, mlp.names, K)) is not None:
        return ids, ""
    if labels.dtype.kind in "iu" and (labels.min(), labels.max()) == (1, K):
        return labels.astype(np.int64) - 1, notes.LABELS_FROM_ONE.format(K, K - 1)
    if labels.dtype.kind in "iuUS":
        values, place = np.unique(labels, return_inverse=True)
        if values.size == K:
            return place.reshape(-1).astype(np.int64), notes.LABELS_SORTED.format(K, K - 1)
    raise InputError(f"{strange_label(labels, mlp.names)}; give class ids from 0 to {K - 1}, or names of the classes")


def calibration_labels(ids: IntArray, split: Split) -> IntArray:
    """The labels (n,) of the rows that a split leaves for calibration."""
    rows = calibration_part(split, ArrayRows(ids[:, None]))
    return np.asarray(rows.part(0, rows.shape[0])[:, 0], dtype=np.int64)


def decisions(shards: Shards) -> IntArray:
    """The network's decisions on all rows (n,), in the smallest integers that hold them."""
    return np.concatenate(shards.map(_decided))


def _decided(shard: Shard) -> IntArray:
    mlp: MLP = shard.subject
    return target_labels(shard, mlp)[0].astype(np.min_scalar_type(mlp.classes - 1))


def both_decisions(mlp: MLP, model: PolynomialModel, rows: Rows, name: str) -> tuple[IntArray, IntArray]:
    """The decisions of the network and of its replacement (n,) each, in exact arithmetic."""
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        own, replaced = zip(*shards.map(_both, model), strict=True)
    return np.concatenate(own), np.concatenate(replaced)


def _both(shard: Shard, model: PolynomialModel) -> tuple[IntArray, IntArray]:
    small = np.min_scalar_type(shard.subject.classes - 1)
    return shard_decisions(shard.subject, shard).label.astype(small), shard_decisions(model, shard).label.astype(small)


def accuracy(labels: IntArray, own: IntArray, replaced: IntArray) -> Accuracy:
    """How often the network's decisions and those of its replacement are right."""
    right = (int(np.count_nonzero(decided == labels)) for decided in (own, replaced))
    return Accuracy(samples=labels.size, network=next(right), replacement=next(right))


def check_accuracy(labels: IntArray, decided: IntArray, classes: int, *, insist: bool) -> list[str]:
    """A warning if the network is less often right than its most frequent label.

    Raises InputError, unless told to `insist`, if it is no better than chance, or another order of the classes explains
    the labels.
    """
    n = labels.size
    if n < _FEWEST:
        return []
    pairs = np.bincount(labels * classes + decided, minlength=classes * classes)
    table = pairs.reshape(classes, classes).astype(np.float64)  # labels by decisions
    counts = table.sum(axis=1)
    right, most = float(np.trace(table)) / n, float(counts.max()) / n
    if right > most + _ERRORS * np.sqrt(most * (1 - most) / n):
        return []
    reordered = _reordered(table)
    explained = reordered - most > _EXPLAINED * (1 - most)
    if not insist and (explained or _is_chance(table)):
        raise InputError(
            f"the network is right on {100 * right:.1f}% of the {n} labels, no better than chance (answering class "
            f"{counts.argmax()} each time is right on {100 * most:.1f}%); {_causes(reordered if explained else None)}; "
            "to fit it all the same, add insist=True"
        )
    return [notes.BELOW_MOST.format(100 * right, counts.argmax(), 100 * most)] if right < most else []


def _is_chance(table: Array) -> bool:
    """Whether decisions match labels no more than shuffled ones would, or so little more that they are of no use.

    A network may be less often right than the most frequent class and still be good, if it was trained to find a rare
    one. It is then right on many rows of every class.
    """
    n = table.sum()
    labels, decided = table.sum(axis=1), table.sum(axis=0)
    right, expected = np.trace(table), float(labels @ decided) / n
    # The variance of the matches when labels are shuffled among the rows.
    residual = np.eye(len(table)) - decided[:, None] / n - labels[None, :] / n + expected / n
    variance = float(labels @ np.square(residual) @ decided) / (n - 1)
    if right <= expected + _ERRORS * np.sqrt(variance):
        return True
    present = labels > 0
    recall, chance = float(np.mean(np.diag(table)[present] / labels[present])), 1 / max(2, int(present.sum()))
    finds_classes = recall > (1 + chance) / 2
    return not finds_classes and (right - expected) / (n - expected) < _LITTLE


def _reordered(table: Array) -> float:
    """The share of labels that are right in the best order of the classes."""
    from scipy.optimize import linear_sum_assignment

    return float(table[linear_sum_assignment(-table)].sum() / table.sum())


def _causes(reordered: float | None) -> str:
    """The likely causes in words."""
    others = "features not scaled as in training, columns in another order, another activation"
    if reordered is None:
        return f"likely causes: {others}, labels in another order than the network's outputs"
    return (
        f"with the classes in another order {100 * reordered:.1f}% would be right, so the labels are likely in another "
        f"order than the network's outputs; other causes: {others}"
    )
