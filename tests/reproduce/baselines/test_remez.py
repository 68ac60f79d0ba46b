"""Remez is checked from outside: by the equioscillation theorem, by linear programming, and by Sollya."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from scipy.optimize import linprog

from quad4fhe import InputError
from quad4fhe_reproduce.baselines.remez import Piece, minimax, remez

DEGREES = (2, 3, 5, 7)
SIZES = st.floats(-2.0, 2.0).map(lambda exponent: 10.0**exponent)


def relu(x):
    return np.maximum(x, 0.0)


def alternations(polynomial, lo, hi):
    """The extremes of p - relu in order, one for each run of equal sign, each found on ever finer grids."""
    grid = np.union1d(np.linspace(lo, hi, 20001), [0.0] if lo < 0.0 < hi else [])
    error = polynomial(grid) - relu(grid)
    cuts = np.flatnonzero(np.diff(np.signbit(error))) + 1
    extremes = []
    for run in np.split(np.arange(grid.size), cuts):
        best = run[np.abs(error[run]).argmax()]
        value = error[best]
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
        for _ in range(3):
            fine = np.union1d(np.linspace(left, right, 2001), grid[best])
            fine_error = polynomial(fine) - relu(fine)
            peak = np.abs(fine_error).argmax()
            if abs(fine_error[peak]) > abs(value):
                value = fine_error[peak]
            left, right = fine[max(peak - 1, 0)], fine[min(peak + 1, fine.size - 1)]
        extremes.append(value)
    return np.array(extremes)


@settings(deadline=None, max_examples=100)
@example(1.0, 1.0, 2)  # by symmetry the first reference is met exactly, and has to be given up
@example(10.0**0.25, 10.0**0.25, 2)
@given(SIZES, SIZES, st.sampled_from(DEGREES))
def test_the_error_equioscillates_with_the_kink_anywhere_inside(left, right, degree):
    extremes = alternations(remez(degree, -left, right), -left, right)
    largest = np.abs(extremes).max()
    level = np.abs(extremes) >= (1.0 - 1e-9) * largest
    assert level.sum() >= degree + 2
    # degree + 2 of the levelled extremes follow each other with alternating signs
    signs = np.sign(extremes[level])
    assert 1 + np.count_nonzero(np.diff(signs)) >= degree + 2


@given(SIZES, SIZES, st.sampled_from(DEGREES), st.booleans())
def test_with_the_kink_outside_relu_is_met_exactly(start, width, degree, negative):
    lo, hi = (-start - width, -start) if negative else (start, start + width)
    x = np.linspace(lo, hi, 101)
    polynomial = remez(degree, lo, hi)
    np.testing.assert_allclose(polynomial(x), relu(x), rtol=0.0, atol=1e-15 * (start + width))
    assert polynomial.depth == 0


def lp_optimum(degree, lo, hi):
    """The minimax error by linear programming, with the most violated points added until none is left."""
    everywhere = np.union1d(np.linspace(lo, hi, 400001), [0.0])
    unit = (2.0 * everywhere - lo - hi) / (hi - lo)
    basis, target = chebyshev.chebvander(unit, degree), relu(everywhere) / hi
    used = np.linspace(0, everywhere.size - 1, 60).astype(int)
    for _ in range(20):
        A = np.block([[basis[used], -np.ones((used.size, 1))], [-basis[used], -np.ones((used.size, 1))]])
        b = np.concatenate([target[used], -target[used]])
        options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        solved = linprog(np.eye(degree + 2)[-1], A, b, bounds=(None, None), method="highs", options=options)
        assert solved.status == 0
        error = np.abs(basis @ solved.x[:-1] - target)
        if error.max() - solved.fun <= 1e-10:
            return solved.fun * hi
        peaks = np.flatnonzero((error[1:-1] >= error[:-2]) & (error[1:-1] >= error[2:])) + 1
        used = np.union1d(used, np.concatenate([peaks, [0, everywhere.size - 1]]))
    raise AssertionError("the LP did not settle")


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize(("lo", "hi"), [(-1.0, 1.0), (-3.0, 7.0), (-40.42, 36.32), (-0.05, 1.0), (-135.2, 2.0)])
def test_the_error_agrees_with_the_optimum_of_a_linear_program(degree, lo, hi):
    assert remez(degree, lo, hi).activation_error(lo, hi) == pytest.approx(lp_optimum(degree, lo, hi), rel=1e-7)


SOLLYA_INTERVALS = (
    (-1.0, 2.0),
    (-2.0, 1.0),
    (-1.0, 1.5),
    (-0.125, 1.0),
    (-1.0, 0.0625),
    (-7.25, 7.75),
    (-10.0, 8.75),
    (-15.0, 10.5),
    (-40.5, 36.25),
    (-135.25, 127.0),
)


@pytest.mark.skipif(shutil.which("sollya") is None, reason="sollya is not installed (Debian package sollya)")
def test_ten_intervals_agree_with_sollya():
    script = ["prec=120!;", "f=(x+abs(x))/2;"]
    cases = [(lo, hi, DEGREES[i % 4]) for i, (lo, hi) in enumerate(SOLLYA_INTERVALS)]
    for lo, hi, degree in cases:
        # Where the positive side is short, Sollya's first points all miss it, and it calls f its own best
        # approximation. relu(x) = x + relu(-x) lets it work on the mirrored interval.
        left, right = (lo, hi) if -lo < hi else (-hi, -lo)
        script.append(f"p=remez(f,{degree},[{left};{right}],1,1e-12);")
        script += [f"print(coeff(p,{k}));" for k in range(degree + 1)]
    done = subprocess.run(
        ["sollya", "--warnonstderr"], input="\n".join(script) + "\nquit;\n", capture_output=True, text=True, timeout=120
    )
    numbers = iter(float(line.split()[-1]) for line in done.stdout.splitlines() if line.strip())
    for lo, hi, degree in cases:
        theirs = np.polynomial.Polynomial([next(numbers) for _ in range(degree + 1)])
        x = np.union1d(np.linspace(lo, hi, 5001), [0.0])
        ours = remez(degree, lo, hi)
        expected = theirs(x) if -lo < hi else x + theirs(-x)
        assert np.abs(ours(x) - expected).max() <= 1e-9 * ours.activation_error(lo, hi), (lo, hi, degree)


@pytest.mark.parametrize("terms", [2, 4, 8])
@pytest.mark.parametrize("gap", [0.02, 0.3])
def test_two_intervals_at_once_give_the_odd_minimax_of_one(terms, gap):
    both = minimax((Piece(-1.0, -gap, 0.0, -1.0), Piece(gap, 1.0, 0.0, 1.0)), 2 * terms)
    one = minimax((Piece(gap, 1.0, 0.0, 1.0),), terms, odd=True)
    assert both.error == pytest.approx(one.error, rel=1e-9)
    x = np.linspace(gap, 1.0, 1001)
    np.testing.assert_allclose(both.series(x), one.series(x), rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(both.series(-x), -one.series(x), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("value", [-2.0, 0.0, 3.5])
def test_a_single_point_is_met_exactly(degree, value):
    polynomial = remez(degree, value, value)
    assert polynomial(value) == max(value, 0.0)
    assert polynomial.degree == 0


@pytest.mark.parametrize(("degree", "lo", "hi"), [(0, -1.0, 1.0), (3, 1.0, -1.0), (3, -np.inf, 1.0), (3, np.nan, 1.0)])
def test_what_makes_no_sense_is_refused(degree, lo, hi):
    with pytest.raises(InputError, match=r"Remez.* needs"):
        remez(degree, lo, hi)
