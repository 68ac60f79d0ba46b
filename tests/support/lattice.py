"""A small LLL reduction, for tests that attack: in integers only (Cohen, Algorithm 2.6.7)."""

from __future__ import annotations


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def reduced(basis: list[list[int]]) -> list[list[int]]:
    """An LLL-reduced basis of the lattice with these independent rows; for some dozens of dimensions."""
    b = [list(row) for row in basis]
    n = len(b)
    lam = [[0] * n for _ in range(n)]
    d = [1] * (n + 1)  # d[i + 1] is the determinant of the first i + 1 rows' Gram matrix
    d[1] = _dot(b[0], b[0])
    k, seen = 1, 0

    def shorten(k: int, j: int) -> None:
        if 2 * abs(lam[k][j]) <= d[j + 1]:
            return
        c = (2 * lam[k][j] + d[j + 1]) // (2 * d[j + 1])
        b[k] = [x - c * y for x, y in zip(b[k], b[j], strict=True)]
        lam[k][j] -= c * d[j + 1]
        for i in range(j):
            lam[k][i] -= c * lam[j][i]

    def swap(k: int) -> None:
        b[k], b[k - 1] = b[k - 1], b[k]
        for j in range(k - 1):
            lam[k][j], lam[k - 1][j] = lam[k - 1][j], lam[k][j]
        one = lam[k][k - 1]
        new = (d[k - 1] * d[k + 1] + one * one) // d[k]
        for i in range(k + 1, seen + 1):
            old = lam[i][k]
            lam[i][k] = (d[k + 1] * lam[i][k - 1] - one * old) // d[k]
            lam[i][k - 1] = (new * old + one * lam[i][k]) // d[k + 1]
        d[k] = new

    while k < n:
        if k > seen:
            seen = k
            for j in range(k + 1):
                u = _dot(b[k], b[j])
                for i in range(j):
                    u = (d[i + 1] * u - lam[k][i] * lam[j][i]) // d[i]
                if j < k:
                    lam[k][j] = u
                else:
                    d[k + 1] = u
        shorten(k, k - 1)
        if 4 * d[k + 1] * d[k - 1] < 3 * d[k] ** 2 - 4 * lam[k][k - 1] ** 2:
            swap(k)
            k = max(1, k - 1)
            continue
        for j in range(k - 2, -1, -1):
            shorten(k, j)
        k += 1
    return b
