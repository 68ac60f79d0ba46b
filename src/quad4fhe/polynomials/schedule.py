"""What a polynomial costs under encryption: levels and ciphertext products of an explicit evaluation schedule.

Decides the schedule (baby and giant steps, Paterson-Stockmeyer where it pays) and counts it. Running a schedule is left
to `he`; the levels of the affine maps around an activation are counted in `circuit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import isqrt

_NEVER = 10**9


@dataclass(frozen=True)
class Schedule:
    """One way to evaluate a polynomial on a ciphertext.

    `depth` is the number of levels it takes and `products` the number of ciphertext-ciphertext products. The steps
    T_k (powers, or Chebyshev polynomials) listed in `steps` are computed once: T_k costs one product and sits at level
    ceil(log2 k). The polynomial is then split as q T_g + r until every part is a plaintext combination of steps.
    """

    depth: int
    products: int
    steps: tuple[int, ...]


def _level(k: int) -> int:
    return max(0, (k - 1).bit_length())


def _least_products(degree: int, depth: int, steps: tuple[int, ...], odd: bool, folds: bool) -> int:
    """Products beyond the steps themselves for a polynomial of `degree` within `depth` levels.

    A combination of steps costs one more level for its plaintext coefficients, unless it `folds` into the affine map
    that follows. The leading part of a split must be ready one level before the sum is, so it is often split again
    below the baby steps, where a product saves the level a coefficient would cost: depth is the scarce thing.
    """
    babies = 1
    while babies + (2 if odd else 1) in steps:
        babies += 2 if odd else 1

    @cache
    def least(d: int, budget: int, folded: bool) -> int:
        if d <= 0:
            return 0 if budget >= 0 else _NEVER
        coefficients = 0 if folded else 1
        best = _NEVER
        if d <= babies and _level(d) + coefficients <= budget:
            best = 0
        for g in steps:
            if g == d and not odd and _level(g) + coefficients <= budget:
                best = min(best, least(g - 1, budget, folded))  # a constant times T_g is a plaintext product
            elif 1 < g < d and not (odd and g % 2) and _level(g) < budget:
                best = min(best, 1 + least(d - g, budget - 1, False) + least(g - 1, budget, folded))
        return best

    return least(degree, depth, folds)


def _step_sets(degree: int, odd: bool) -> Iterator[tuple[int, ...]]:
    """Baby steps 1..b (odd ones only for an odd polynomial) with giant steps doubled from one of them.

    Each set is closed: every T_k in it is a product of two members of half its index, so the levels are as stated.
    An odd polynomial is split at powers of two only, which keeps both parts odd.
    """
    for babies in range(1, min(degree, 2 * isqrt(degree) + 4) + 1, 2 if odd else 1):
        for giant in (2,) if odd else range(2, babies + 2):
            steps = {2} | set(range(1, babies + 1, 2 if odd else 1))
            while giant <= degree:
                steps.add(giant)
                giant *= 2
            yield tuple(sorted(k for k in steps if k <= degree))


@cache
def schedule(degree: int, *, odd: bool = False, folds: bool = True) -> Schedule:
    """The schedule of least depth, and of fewest products at that depth, for a dense or an odd polynomial.

    `folds` says that an affine map follows, as it does after an activation: the last plaintext products then become
    part of its matrix and cost no level. A stage inside a composition has no such map.
    """
    if degree <= 0:
        return Schedule(0, 0, ())
    if degree == 1:
        return Schedule(0 if folds else 1, 0, (1,))
    depth = _level(degree) if folds else _level(degree + 1)
    best = Schedule(depth, _NEVER, ())
    for steps in _step_sets(degree, odd):
        products = len(steps) - 1 + _least_products(degree, depth, steps, odd, folds)
        if products < best.products:
            best = Schedule(depth, products, steps)
    assert best.products < _NEVER, f"no schedule of depth {depth} for degree {degree}"
    return best
