"""Positions in the slots of layout `packed`, and the rotations between them. Only index arithmetic.

The order of the diagonals of both matrix products minimises the number of rotations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quad4fhe.errors import InputError

Indices = NDArray[np.intp]


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, (n - 1).bit_length())


def split_steps(count: int) -> tuple[int, int]:
    """Baby and giant steps (powers of two) whose product is `count` and whose sum is least."""
    baby = 1 << ((count.bit_length() - 1 + 1) // 2)
    return baby, count // baby


@dataclass(frozen=True)
class Packing:
    """One request of layout packed: `samples` interleaved samples, so that a rotation by samples * r turns each by r.

    Seen from one sample there are `width` slots, cut into blocks of `block` >= m slots; slot p belongs to hidden unit
    p mod block. First product: block g holds the features turned by g * diagonals, so that all blocks together need
    only `diagonals` rotations instead of one per feature, and a sum over blocks finishes it and leaves y in every
    block. Second product: y*y repeats with period `block`, so every window of `block / columns` slots can belong to
    another class; `columns` rotations and a sum over the window finish it. Features beyond `block` go into further
    ciphertexts (`chunks`).
    """

    slots: int
    samples: int
    features: int
    units: int
    outputs: int

    def __post_init__(self) -> None:
        if self.width < self.block or self.window < 1 or self.windows < self.outputs:
            raise InputError(
                f"{self.samples} samples of {self.units} units and {self.outputs} outputs do not fit {self.slots} slots"
            )

    @cached_property
    def width(self) -> int:
        """Slots of one sample."""
        return self.slots // self.samples

    @cached_property
    def block(self) -> int:
        """Slots of one copy of the hidden layer."""
        return power_of_two(self.units)

    @cached_property
    def blocks(self) -> int:
        """Copies of the hidden layer."""
        return self.width // self.block

    @cached_property
    def span(self) -> int:
        """Features of one ciphertext, padded."""
        return min(self.block, power_of_two(self.features))

    @cached_property
    def chunks(self) -> int:
        """Ciphertexts of one request."""
        return -(-self.features // self.span)

    @cached_property
    def diagonals(self) -> int:
        """Rotations of the input that the first product combines."""
        return max(1, self.span // self.blocks)

    @cached_property
    def columns(self) -> int:
        """Rotations of y*y that the second product combines."""
        return power_of_two(-(-self.outputs // self.blocks))

    @cached_property
    def window(self) -> int:
        """Slots that are summed for one class."""
        return self.block // self.columns

    @cached_property
    def windows(self) -> int:
        """Classes there is room for."""
        return self.width // self.window if self.window else 0

    def feature_at(self) -> Indices:
        """Which feature of a chunk lies in each of the `width` slots."""
        p = np.arange(self.width)
        return (p % self.block + self.diagonals * (p // self.block)) % self.span

    def first_product(self) -> tuple[Indices, NDArray[np.bool_]]:
        """(diagonals, width) features met by each slot, and which of them count: each pair of unit and feature once.

        Turning past the end of a block lands in the next one, which is turned by one more set of diagonals; over all
        blocks the same features come up, in another order. Where blocks outnumber features some come up twice.
        """
        p = np.arange(self.width)
        lies = self.feature_at()
        met = np.stack([lies[(p + r) % self.width] for r in range(self.diagonals)])
        unit = np.broadcast_to(p % self.block, met.shape)
        pair = (unit * self.span + met).ravel()
        _, first = np.unique(pair, return_index=True)
        counts = np.zeros(pair.size, dtype=np.bool_)
        counts[first] = True
        if len(first) != self.block * self.span:
            raise AssertionError("a pair of unit and feature is never met")
        return met, counts.reshape(met.shape)

    def second_product(self) -> tuple[Indices, Indices]:
        """(columns, width) hidden slots met by each slot, and the class of each slot (width,)."""
        p = np.arange(self.width)
        met = np.stack([(p + r * self.window) % self.block for r in range(self.columns)])
        return met, p // self.window

    def turns(self) -> dict[str, list[int]]:
        """Rotations by stage, in slots of one sample: first product, blocks, second product, window."""
        baby, giant = split_steps(self.diagonals)
        small, large = split_steps(self.columns)
        halves = [self.block << i for i in range(int(math.log2(self.blocks)))]
        folds = [1 << i for i in range(int(math.log2(self.window)))]
        return {
            "baby": list(range(1, baby)),
            "giant": [baby * i for i in range(1, giant)],
            "blocks": halves,
            "small": [self.window * i for i in range(1, small)],
            "large": [self.window * small * i for i in range(1, large)],
            "window": folds,
        }

    def steps(self) -> list[int]:
        """Every rotation step that needs a Galois key."""
        return sorted({turn * self.samples for turns in self.turns().values() for turn in turns})

    def rotations(self) -> tuple[int, int]:
        """How many rotations are made before and after the rescale; `small` turns y and y*y both."""
        count = {stage: len(turns) for stage, turns in self.turns().items()}
        after = 2 * count["small"] + count["large"] + count["window"]
        return count["baby"] * self.chunks + count["giant"] + count["blocks"], after
