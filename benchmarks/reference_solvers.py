"""The paper's problems as a user would write them for a generic solver: what our own solvers are measured by."""

from __future__ import annotations

import clarabel
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from quad4fhe.fitting.design import Block

Vector = NDArray[np.float64]


def solve_qp(
    P: Vector, q: Vector, A: sparse.csc_matrix, b: Vector, equalities: int, accuracy: float = 1e-11
) -> tuple[str, Vector, float]:
    """Minimise x'Px/2 + q'x with A x + s = b, s = 0 for the first `equalities` rows and s >= 0 for the others."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
    cones = [clarabel.ZeroConeT(equalities)] if equalities else []
    cones.append(clarabel.NonnegativeConeT(A.shape[0] - equalities))
    solution = clarabel.DefaultSolver(sparse.diags(P).tocsc(), q, A, b, cones, settings).solve()
    return str(solution.status), np.array(solution.x), float(solution.obj_val)


def dual_reduced_hulls(
    p: Vector, q: Vector, mu_plus: float, mu_minus: float, accuracy: float = 1e-11
) -> tuple[Vector, Vector]:
    """D-RCH: the closest points u* and v* of the two reduced hulls, over all n weights."""
    n, k = len(p), len(q)
    # Variables z (2), lambda (n), kappa (k) with z = sum lambda p - sum kappa q.
    P = np.concatenate([[1.0, 1.0], np.zeros(n + k)])
    link = sparse.hstack([-sparse.eye(2), sparse.csc_matrix(p.T), -sparse.csc_matrix(q.T)])
    sums = sparse.csc_matrix((np.ones(n + k), (np.repeat([0, 1], (n, k)), 2 + np.arange(n + k))), shape=(2, 2 + n + k))
    weights = sparse.hstack([sparse.csc_matrix((n + k, 2)), sparse.eye(n + k)])
    A = sparse.vstack([link, sums, -weights, weights]).tocsc()
    caps = np.concatenate([np.full(n, mu_plus), np.full(k, mu_minus)])
    b = np.concatenate([[0.0, 0.0, 1.0, 1.0], np.zeros(n + k), caps])
    _, x, _ = solve_qp(P, np.zeros(2 + n + k), A, b, 4, accuracy)
    return x[2 : 2 + n] @ p, x[2 + n :] @ q


def primal_reduced_hulls(plus: Vector, minus: Vector, c_plus: float, c_minus: float) -> tuple[Vector, float]:
    """P-RCH: theta and the optimal value of the nu-SVM-type problem with slacks."""
    side, points = np.repeat([1.0, -1.0], (len(plus), len(minus))), np.vstack([plus, minus])
    n = side.size
    # Variables theta (2), t, rho, xi (n).
    P = np.concatenate([[1.0, 1.0], np.zeros(2 + n)])
    q = np.concatenate([[0.0, 0.0, 0.0, -1.0], np.where(side > 0, c_plus, c_minus)])
    margin = np.hstack([-side[:, None] * points, side[:, None], np.ones((n, 1))])
    slack = -sparse.eye(n)
    A = sparse.bmat([[sparse.csc_matrix(margin), slack], [None, slack]]).tocsc()
    _, x, value = solve_qp(P, q, A, np.zeros(2 * n), 0)
    return x[:2], value


def pair_rows(block: Block) -> tuple[Vector, NDArray[np.int64]]:
    """All n(K-1) pairwise rows and the sample of each."""
    K = block.classes
    i = np.repeat(np.arange(block.samples), K)
    c = np.tile(np.arange(K), block.samples)
    keep = c != block.target[i]
    return block.pair_rows(i[keep], c[keep]), i[keep]


def hard_pairs(block: Block, accuracy: float = 1e-11) -> tuple[str, Vector, float]:
    """MC-H over all rows."""
    rows, _ = pair_rows(block)
    k = rows.shape[1]
    A = sparse.csc_matrix(-np.vstack([rows, np.eye(k)[-1]]))
    return solve_qp(np.ones(k), np.zeros(k), A, -np.ones(len(rows) + 1), 0, accuracy)


def soft_pairs(block: Block, C: float, accuracy: float = 1e-11) -> tuple[Vector, float]:
    """MC-S over all rows."""
    rows, i = pair_rows(block)
    n, k = block.samples, rows.shape[1]
    pick = sparse.csc_matrix((np.ones(i.size), (np.arange(i.size), i)), shape=(i.size, n))
    margin = sparse.hstack([sparse.csc_matrix(rows), pick])
    slack = sparse.hstack([sparse.csc_matrix((n, k)), sparse.eye(n)])
    scale = sparse.csc_matrix(([1.0], ([0], [k - 1])), shape=(1, k + n))
    A = -sparse.vstack([margin, slack, scale]).tocsc()
    b = -np.concatenate([np.ones(i.size), np.zeros(n), [1.0]])
    P = np.concatenate([np.ones(k), np.zeros(n)])
    q = np.concatenate([np.zeros(k), np.full(n, C)])
    _, x, value = solve_qp(P, q, A, b, 0, accuracy)
    return x[:k], value
