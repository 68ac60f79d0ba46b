"""Random small classifiers, and what it means that an imported model answers as its source does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from quad4fhe import MLP


@dataclass(frozen=True)
class Net:
    """Sizes and a seed: d features, m hidden units, `classes` classes, one score where there are two."""

    d: int
    m: int
    classes: int
    seed: int

    @property
    def outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def samples(self, n: int = 40) -> NDArray[np.float64]:
        """Columns of unlike size and centre, exact in float32, so that scalers have work to do."""
        rng = np.random.default_rng(self.seed + 1)
        X = rng.normal(size=(n, self.d)) * rng.uniform(0.5, 4.0, self.d) + rng.normal(0.0, 3.0, self.d)
        return X.astype(np.float32).astype(np.float64)

    def weights(self) -> tuple[NDArray[np.float32], ...]:
        """W1, b1, W2, b2 in float32."""
        rng = self.rng()
        shapes = ((self.m, self.d), (self.m,), (self.outputs, self.m), (self.outputs,))
        return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def nets() -> st.SearchStrategy[Net]:
    return st.builds(Net, st.integers(1, 5), st.integers(1, 6), st.integers(2, 4), st.integers(0, 2**20))


def relu_logits(X: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike) -> NDArray[np.float64]:
    hidden = np.asarray(X, float) @ np.asarray(W1, float).T + np.asarray(b1, float)
    return np.where(hidden > 0, hidden, 0.0) @ np.asarray(W2, float).T + np.asarray(b2, float)


def assert_answers(mlp: MLP, X: NDArray[np.float64], scores: ArrayLike, tolerance: float) -> None:
    """The imported logits are the source's, and so are the decisions wherever the source's margin is not rounding."""
    wanted = np.asarray(scores, float).reshape(len(X), -1)
    room = tolerance * (1.0 + np.abs(wanted).max())
    np.testing.assert_allclose(mlp.logits(X), wanted, rtol=tolerance, atol=room)
    if wanted.shape[1] == 1:
        margins, decisions = np.abs(wanted[:, 0]), wanted[:, 0] > 0
    else:
        ranked = np.sort(wanted, axis=1)
        margins, decisions = ranked[:, -1] - ranked[:, -2], wanted.argmax(axis=1)
    clear = margins > 2 * room
    np.testing.assert_array_equal(mlp.decide(X)[clear], decisions[clear])


def damages(raw: bytes) -> st.SearchStrategy[bytes]:
    """The bytes of a file with a few changed, or cut short."""

    def damage(changes: dict[int, int], length: int) -> bytes:
        data = bytearray(raw)
        for at, value in changes.items():
            data[at] = value
        return bytes(data[:length])

    changes = st.dictionaries(st.integers(0, len(raw) - 1), st.integers(0, 255), max_size=4)
    return st.builds(damage, changes, st.just(len(raw)) | st.integers(1, len(raw)))


def assert_refused(message: str, *words: str) -> None:
    """One line that names what was wrong."""
    assert "\n" not in message
    for word in words:
        assert word in message, message
