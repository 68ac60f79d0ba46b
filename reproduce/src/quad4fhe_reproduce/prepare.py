"""From a data set to the arrays a model is trained, fitted and judged on.

Decides splits, text features and scaling, all fitted on the training part alone. Reading files is left to `data`, what
is done with the parts to `train` and `measure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quad4fhe._arrays import IntArray
from quad4fhe_reproduce import missing
from quad4fhe_reproduce.data.prepared import Rows, read_rows
from quad4fhe_reproduce.recipes import Recipe, Text

Features = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Parts:
    """Standardised features and labels: train and validation (together the calibration set), test, and reserve.

    `reserve` is what the small-pool experiment draws its fitting pools from, empty in the full-train one.
    """

    X_train: Features
    y_train: IntArray
    X_val: Features
    y_val: IntArray
    X_test: Features
    y_test: IntArray
    X_reserve: Features
    y_reserve: IntArray
    classes: int
    rows: int
    sha256: str
    origin: str

    @property
    def X_cal(self) -> Features:
        """Train, then validation."""
        return np.concatenate([self.X_train, self.X_val])

    @property
    def y_cal(self) -> IntArray:
        """The labels of the calibration set."""
        return np.concatenate([self.y_train, self.y_val])


@dataclass(frozen=True, eq=False)
class _Split:
    train: IntArray
    val: IntArray
    test: IntArray
    reserve: IntArray
    rows: int


def prepare(recipe: Recipe, folder: Path, seed: int, *, pool: bool) -> Parts:
    """Read, split and scale the recipe's data set, for the full-train experiment or the small-pool one."""
    rows = read_rows(recipe.data, folder)
    y = 1 - rows.y if recipe.flip else rows.y
    split = _pool_split(recipe, rows, y, seed) if pool else _full_split(recipe, rows, y, seed)
    X = _text_features(rows, recipe.text, split, seed) if recipe.text is not None else rows.X
    assert X is not None
    mean, deviation = X[split.train].mean(axis=0), X[split.train].std(axis=0)
    deviation[deviation == 0] = 1.0

    def scaled(part: IntArray) -> Features:
        out: Features = ((X[part] - mean) / deviation).astype(np.float32)
        return out

    return Parts(
        scaled(split.train),
        y[split.train],
        scaled(split.val),
        y[split.val],
        scaled(split.test),
        y[split.test],
        scaled(split.reserve),
        y[split.reserve],
        classes=recipe.data.classes,
        rows=split.rows,
        sha256=rows.sha256,
        origin=rows.origin,
    )


def _halves(rows: IntArray, y: IntArray, second: float | int, seed: int) -> tuple[IntArray, IntArray]:
    """Cut rows in two, stratified by label; `second` is the share or number of the second part."""
    try:
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise missing("scikit-learn", "splitting the data") from None
    first, rest = train_test_split(rows, test_size=second, random_state=seed, stratify=y[rows])
    return first, rest


def _full_split(recipe: Recipe, rows: Rows, y: IntArray, seed: int) -> _Split:
    every = np.arange(y.size)
    none = every[:0]
    if recipe.split == "random":
        train, rest = _halves(every, y, 0.4, seed)
        val, test = _halves(rest, y, 0.5, seed)
    elif recipe.split == "merged":
        rest, test = _halves(every, y, 0.2, seed)
        train, val = _halves(rest, y, 0.2, seed + 1)
    else:
        assert rows.split is not None
        last = rows.split.max()
        test = every[rows.split == last]
        train, val = every[rows.split == 0], every[(rows.split > 0) & (rows.split < last)]
        if val.size == 0:
            train, val = _halves(train, y, recipe.validation, seed)
    return _Split(train, val, test, none, y.size)


def _pool_split(recipe: Recipe, rows: Rows, y: IntArray, seed: int) -> _Split:
    """50% train, 10% validation, 20% test, 20% reserve; of everything, or beside the official test part."""
    every = np.arange(y.size)
    if recipe.pool == "train":
        assert rows.split is not None
        official = rows.split == rows.split.max()
        rest, test, total = every[~official], every[official], y.size
    else:
        # Where only part of the paper's train rows is at hand, the pool experiment is of these, as in the paper.
        mine = every if rows.split is None or recipe.text is None else every[rows.split == 0]
        total = mine.size
        rest, test = _halves(mine, y, 0.2, seed)
    rest, reserve = _halves(rest, y, round(0.2 * total), seed)
    rest, val = _halves(rest, y, round(0.1 * total), seed)
    train = rest
    if recipe.pool == "train" and rest.size > round(0.5 * total):
        train, _ = _halves(rest, y, rest.size - round(0.5 * total), seed)
    return _Split(train, val, test, reserve, total)


def draw_pool(parts: Parts, share: float, seed: int) -> IntArray:
    """Rows of the reserve: `share` of the whole data set, stratified by label; empty if there are too few.

    Every class gets its rounded-down share and the largest remainders fill the pool, so that a class of two rows does
    not stop the draw; a pool with fewer rows than classes is not drawn at all.
    """
    y = parts.y_reserve
    size = min(round(share * parts.rows), y.size)
    if size < parts.classes:
        return np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(seed)
    counts = np.bincount(y, minlength=parts.classes)
    wanted = counts * (size / y.size)
    take = np.floor(wanted).astype(np.int64)
    order = np.argsort(-(wanted - take), kind="stable")
    take[order[: size - take.sum()]] += 1
    chosen = [rng.permutation(np.flatnonzero(y == label))[: take[label]] for label in range(parts.classes)]
    return np.sort(np.concatenate(chosen))


def _text_features(rows: Rows, text: Text, split: _Split, seed: int) -> NDArray[np.float64]:
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise missing("scikit-learn", "TF-IDF features") from None
    assert rows.texts is not None
    texts = rows.texts
    counted: Any = TfidfVectorizer(max_features=text.words, ngram_range=(1, 2), stop_words="english", sublinear_tf=True)
    counted.fit([texts[i] for i in split.train])
    reduced: Any = TruncatedSVD(n_components=text.dimensions, random_state=seed)
    weights = counted.transform(texts)
    reduced.fit(weights[split.train])
    out: NDArray[np.float64] = reduced.transform(weights).astype(np.float64)
    return out
