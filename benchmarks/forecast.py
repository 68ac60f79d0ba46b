"""Forecasts of time beside measured CPU time: whole requests of both layouts, minimum and median.

    python benchmarks/forecast.py [--rounds N] [lift | batch]

Every request has its own key, and nothing is made ahead, so these are the times of any request but the first of a
process. Forecasts are for the machine that `planning/costs.py` names.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from machine import describe
from quad4fhe import Client, PolynomialModel, plan
from quad4fhe.he.session import Server

MODELS = ((4, 8, 2), (9, 64, 7), (30, 64, 1), (93, 256, 9), (89, 128, 77), (89, 128, 200), (256, 64, 10))


class StandIn:
    """A fit of a random model, as far as a plan needs it."""

    def __init__(self, d: int, m: int, K: int, count: int = 300) -> None:
        rng = np.random.default_rng(0)
        W2 = rng.normal(size=(K, m)) / np.sqrt(m)
        W1, b1 = rng.normal(size=(m, d)) * 2 / np.sqrt(d), rng.normal(size=m) / 2
        self.model = PolynomialModel.quadratic(W1, b1, 0.08 * W2, 0.5 * W2, rng.normal(size=K) * 0.3)
        self.X = rng.normal(size=(count, d)).clip(-3, 3)
        self.box, self.model_id = np.stack([self.X.min(axis=0), self.X.max(axis=0)]), "0" * 64
        ordered = np.sort(self.model.logits(self.X), axis=1)
        self.margins = np.abs(ordered[:, 0]) if K == 1 else ordered[:, -1] - ordered[:, -2]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU milliseconds of a call, and what it returns."""
    start = time.process_time_ns()
    out = run()
    return (time.process_time_ns() - start) / 1e6, out


def compare(sizes: tuple[int, int, int], samples: int, layout: str, replies: str, rounds: int) -> None:
    """One line: client and server, minimum (median), forecast, and how many times as long as that the median is."""
    fit = StandIn(*sizes)
    made = plan(fit, samples=samples, layout=layout, replies=replies, X=fit.X)
    client, server = Client(made), Server(fit, made)
    rows, times = np.resize(fit.X, (made.per_request, sizes[0])), []
    for _ in range(rounds + 2):
        ask, request = timed(lambda: client.encrypt(rows))
        work, reply = timed(lambda request=request: server.answer(request))  # type: ignore[misc]
        read, _ = timed(lambda reply=reply: client.read(reply))  # type: ignore[misc]
        times.append((ask + read, work))
    count = -(-samples // made.per_request)
    shown = []
    for name, found, seconds in zip(
        ("client", "server"),
        np.array(times[2:]).T,
        (made.forecast.client_seconds, made.forecast.server_seconds),
        strict=True,
    ):
        forecast, median = 1e3 * seconds / count, float(np.median(found))
        shown.append(
            f"{name} {found.min():.2f} ({median:.2f}) ms, forecast {forecast:.2f}, ratio {median / forecast:.2f}"
        )
    print(
        f"{layout} {replies} d={sizes[0]} K={sizes[2]} N={made.chain.ring} g={made.settings.get('group', '-')}: "
        f"{'; '.join(shown)}; up {len(request) / 1e3:.0f} kB, down {len(reply) / 1e3:.0f} kB",
        flush=True,
    )


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", nargs="?", choices=("lift", "batch"))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(describe()["processor"])
    for replies in ("private", "plain"):
        for sizes in MODELS:
            if options.layout != "batch":
                compare(sizes, 1, "lift", replies, options.rounds)
            if options.layout != "lift" and sizes[2] < 50 and sizes[0] < 100:
                compare(sizes, 4096, "batch", replies, max(3, options.rounds // 3))


if __name__ == "__main__":
    main()
