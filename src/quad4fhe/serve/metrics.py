"""The server's metrics for Prometheus. No label contains text from a request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("quad4fhe_requests", "Requests answered.", ["route", "status"], registry=registry)
        self.bytes_in = Counter("quad4fhe_received_bytes", "Bytes of bodies received.", registry=registry)
        self.bytes_out = Counter("quad4fhe_sent_bytes", "Bytes of replies sent.", registry=registry)
        self._seconds = Histogram("quad4fhe_task_seconds", "From queue to reply.", buckets=_SECONDS, registry=registry)
        self._busy = Gauge("quad4fhe_busy", "Requests in progress or waiting.", registry=registry)
        self._alive = Gauge("quad4fhe_workers", "Worker processes alive.", registry=registry)
        self._restarts = Gauge("quad4fhe_worker_restarts", "Workers that were replaced.", registry=registry)
        self.usual_seconds = 1.0

    @contextmanager
    def task(self) -> Iterator[None]:
        """Time one task."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self._seconds.observe(spent)
            self.usual_seconds += 0.1 * (spent - self.usual_seconds)

    def text(self, *, busy: int, alive: int, restarts: int) -> tuple[bytes, str]:
        """Return the body of `GET /metrics` and its content type."""
        self._busy.set(busy)
        self._alive.set(alive)
        self._restarts.set(restarts)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
