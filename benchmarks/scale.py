"""Scoring with one and two workers against the machine's own efficiency, and what a task costs, in one run.

    python benchmarks/scale.py --out benchmarks/scale.json [--requests 16] [--rounds 8] [--pools local ray]

Efficiency is (rate of two workers) / (twice the rate of one). The machine's own is that of a pure BLAS job, matrix
products that stay in the cache, one process each, measured next to each of the others in every round: two cores that
share a cache or a clock are not two of one core, and neither are cores that others use too. The BLAS job runs in
processes that the same pool started, because Linux shares a busy machine between sessions, and local workers have one
each where Ray's have one together. Scoring is the whole of `quad4fhe score`: files read, evaluated, written, hashed,
journalled; its files are in the page cache. Medians over rounds, and efficiencies from the medians.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: one thread on both sides of every ratio

import argparse
import contextlib
import hashlib
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import scale_work
from compact import write
from machine import describe
from quad4fhe import plan as make_plan
from quad4fhe.folders import score, worker, write_requests
from quad4fhe.he import message
from quad4fhe.he.session import Server
from quad4fhe.workers import choose
from quad4fhe.workers.base import Work
from quad4fhe.workers.pool import Pool, Workers
from serve import OTTO, made

BLAS_TASK = 60  # products in a task
EMPTY_TASKS = 2000
BYTES_TASKS = 40


class Kept(Workers):
    """Workers whose pool was opened before, so that starting it is not measured."""

    on_this_machine = True

    def __init__(self, chosen: Workers, make: Callable[[], Work]) -> None:
        started = time.perf_counter()
        self.name, self.workers = chosen.name, chosen.workers
        self.pool = chosen.open(make)
        self.start_seconds = time.perf_counter() - started
        self.pids: list[int] = self.pool.gather(["pid"] * chosen.workers)

    def launch(self) -> Any:
        """Nothing is started again."""
        raise NotImplementedError

    def open(self, make: Callable[[], Work]) -> Any:
        """Return the pool that is open; its `with` block does not end it."""
        return contextlib.nullcontext(self.pool)


def cpu_seconds(pids: list[int]) -> float:
    """CPU seconds that processes have used."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def peak_memory(pids: list[int]) -> list[int]:
    """The most resident bytes each process has had."""
    fields = [dict(line.split(":", 1) for line in Path(f"/proc/{p}/status").read_text().splitlines()) for p in pids]
    return [1024 * int(one["VmHWM"].split()[0]) for one in fields]


def blas_rate(pool: Pool, workers: int, seconds: float) -> float:
    """Products a second."""
    count = max(4, round(seconds / 0.1)) * workers
    started = time.perf_counter()
    for done in pool.stream((BLAS_TASK for _ in range(count)), ahead=1):
        assert done.error is None
    return count * BLAS_TASK / (time.perf_counter() - started)


def task_seconds(pool: Pool, tasks: list[Any]) -> float:
    """Seconds a task that does nothing."""
    started = time.perf_counter()
    for done in pool.stream(tasks, ahead=1):
        assert done.error is None
    return (time.perf_counter() - started) / len(tasks)


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pools", nargs="+", default=["local", "ray"])
    parser.add_argument("--payloads", nargs="+", default=["files", "bytes"])
    parser.add_argument("--shape", type=int, nargs=3, default=OTTO, metavar=("D", "M", "K"))
    options = parser.parse_args()
    found = made(tuple(options.shape))
    plan = make_plan(found, samples=2048, layout="batch", precision="fast", replies="plain", box=found.box)
    result: dict[str, Any] = {"machine": describe("ray"), "shape": options.shape, "requests": options.requests}
    result |= {"ring": plan.chain.ring, "per_request": plan.per_request}
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place) / "requests"
        X = np.zeros((1, options.shape[0])).clip(*plan.domain.box)
        write_requests(plan, X, folder)
        first = folder / "00000000.request"
        for i in range(1, options.requests):
            os.link(first, folder / f"{i:08d}.request")
        result["request_bytes"] = first.stat().st_size
        result["reply_bytes"] = message.size(plan, message.Kind.reply)

        if "ray" in options.pools:
            start_ray(stack)
        blas = {
            (name, n): stack.enter_context(choose(name, n).open(scale_work.blas))
            for name in options.pools
            for n in (1, 2)
        }
        make = partial(scale_work.scorer, partial(worker.Scorer, found.model, plan.to_dict(), {}))
        kept_pools = {(name, n): Kept(choose(name, n), make) for name in options.pools for n in (1, 2)}
        for kept in kept_pools.values():
            stack.callback(kept.pool.close)
        result["start_seconds"] = {f"{name} {n}": kept.start_seconds for (name, n), kept in kept_pools.items()}

        series: dict[str, list[float]] = defaultdict(list)
        data = first.read_bytes()
        server = Server(found, plan)
        for _ in range(options.rounds):
            in_process(server, data, 3)
            series["in_process_seconds"].append(in_process(server, data, 10))
            started = time.perf_counter()
            hashlib.sha256(data).digest()
            series["hash_bytes_per_second"].append(len(data) / (time.perf_counter() - started))
            for name in options.pools:
                for payload in options.payloads:
                    key = f"{name} {payload}"
                    for n in (1, 2):  # side by side, so that what others do on this machine meets both alike
                        series[f"{key} blas_{n}"].append(blas_rate(blas[name, n], n, 0.7))
                        driver, workers = time.process_time(), cpu_seconds(kept_pools[name, n].pids)
                        out = Path(place) / "replies"
                        one = score(found, folder, out, pool=kept_pools[name, n], payload=payload)
                        assert one.answered == options.requests
                        series[f"{key} per_second_{n}"].append(one.per_second)
                        series[f"{key} driver_cpu"].append((time.process_time() - driver) / options.requests)
                        used = cpu_seconds(kept_pools[name, n].pids) - workers
                        series[f"{key} worker_cpu_{n}"].append(used / options.requests)
                        shutil.rmtree(out)
        for name in options.pools:
            with choose(name, 1).open(scale_work.nothing) as pool:
                task_seconds(pool, [0] * 100)
                for _ in range(3):
                    series[f"{name} empty_task_seconds"].append(task_seconds(pool, [0] * EMPTY_TASKS))
                    series[f"{name} bytes_task_seconds"].append(task_seconds(pool, [data] * BYTES_TASKS))
        result["worker_bytes"] = {name: max(peak_memory(kept_pools[name, 2].pids)) for name in options.pools}
    result["median"] = m = {key: statistics.median(values) for key, values in series.items()}
    for key in (f"{name} {payload}" for name in options.pools for payload in options.payloads):
        m[f"{key} efficiency"] = m[f"{key} per_second_2"] / (2 * m[f"{key} per_second_1"])
        m[f"{key} machine"] = m[f"{key} blas_2"] / (2 * m[f"{key} blas_1"])
        m[f"{key} share"] = m[f"{key} efficiency"] / m[f"{key} machine"]
    report(result, options)
    if options.out is not None:
        write(options.out, result)


def start_ray(stack: contextlib.ExitStack) -> None:
    """One Ray for all measurements."""
    from quad4fhe.workers.ray import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    stack.callback(ray.shutdown)


def in_process(server: Server, data: bytes, count: int) -> float:
    """Seconds for one request in this process, from bytes to bytes: the baseline without workers."""
    started = time.perf_counter()
    for _ in range(count):
        server.answer(data)
    return (time.perf_counter() - started) / count


def report(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the table."""
    m = result["median"]
    print(f"\n{result['request_bytes'] / 1e6:.1f} MB in, {result['reply_bytes'] / 1e6:.1f} MB out a request")
    print(f"in process {1e3 * m['in_process_seconds']:.1f} ms a request")
    for name in options.pools:
        for payload in options.payloads:
            key = f"{name} {payload}"
            print(
                f"{key:12s} efficiency 1 to 2 workers {m[f'{key} efficiency']:.2f}, the machine's own "
                f"{m[f'{key} machine']:.2f}: {m[f'{key} share']:.0%} of it; one worker "
                f"{1e3 / m[f'{key} per_second_1']:.1f} ms a request; CPU {1e3 * m[f'{key} worker_cpu_1']:.1f} ms (two "
                f"workers {1e3 * m[f'{key} worker_cpu_2']:.1f}) and {1e3 * m[f'{key} driver_cpu']:.2f} ms in the driver"
            )
        print(
            f"{name:12s} an empty task {1e6 * m[f'{name} empty_task_seconds']:.0f} us, one with the request's bytes "
            f"{1e3 * m[f'{name} bytes_task_seconds']:.1f} ms"
        )


if __name__ == "__main__":
    main()
