"""The service under load against in-process evaluation, one run; prints a table and writes JSON.

    python benchmarks/serve.py --out benchmarks/serve.json [--seconds 15] [--clients 1 8 32] [--workers 1]

Baseline: the same requests by `Server.answer` in one process, one thread, ciphertexts already in memory, as many such
processes as the server has workers; measured before and after each load, half as long as the load in all, while the
server is idle. The service receives, checks and answers the requests over HTTP on the loopback interface. The clients
send what is already encrypted, in blocks as `Remote` does, from threads of this process; they run on the same machine
and are not counted out: what they cost is in the table. First one client with two requests in flight, as `Remote` has
them, then clients that each send one request and wait for its answer. Limits are the server's own: who is refused comes
back, and every request that was accepted must be answered. With --seconds 12 it takes two minutes, and four more for
the memory.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: one thread on both sides of every ratio

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from compact import write
from machine import describe
from quad4fhe import MLP, Fit, Plan, fit
from quad4fhe.he import message
from quad4fhe.he.session import Client, Server

PROGRAM = "from quad4fhe.cli import entry_point; entry_point()"
OCTETS = {"content-type": "application/octet-stream"}
OTTO = (93, 256, 9)
BLOCK = 2**18
WANTED = 0.8  # of the in-process rate


def made(shape: tuple[int, int, int]) -> Fit:
    """A fit of a random network of the given sizes."""
    d, m, K = shape
    rng = np.random.default_rng(0)
    X = np.clip(rng.normal(size=(300, d)), -3, 3)
    W1, W2 = rng.normal(size=(m, d)) / np.sqrt(d), rng.normal(size=(K, m)) / np.sqrt(m)
    return fit(MLP(W1, np.zeros(m), W2, -np.median(np.maximum(X @ W1.T, 0) @ W2.T, axis=0)), X, family="shared")


def in_process(server: Server, request: bytes, seconds: float) -> tuple[float, float]:
    """Requests a second without a network, and CPU seconds for each."""
    count, started, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        server.answer(request)
        count += 1
    return count / (time.perf_counter() - started), (time.process_time() - used) / count


class Load:
    """Clients that send one request again and again until told to stop."""

    def __init__(self, url: str, data: bytes, size: int) -> None:
        self._url, self._size = url, size
        self._parts = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
        self._headers = OCTETS | {"content-length": str(len(data))}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        self.seconds: list[float] = []

    def run(self, clients: int, seconds: float, most: int | None = None) -> float:
        """Drive the server; returns the time it took."""
        self._most = most
        threads = [threading.Thread(target=self._client) for _ in range(clients)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started

    def _client(self) -> None:
        with httpx.Client(headers=self._headers, timeout=120) as http:
            while not self._stop.is_set():
                started = time.perf_counter()
                try:
                    answer = http.post(self._url, content=iter(self._parts))
                    name = str(answer.status_code)
                    if answer.status_code == 200 and len(answer.content) != self._size:
                        name = "short"
                except httpx.TransportError as error:
                    name = type(error).__name__
                spent = time.perf_counter() - started
                with self._lock:
                    self.answers[name] += 1
                    if name == "200":
                        self.seconds.append(spent)
                    if self._most is not None and self.answers["200"] >= self._most:
                        self._stop.set()
                if name == "429":
                    self._stop.wait(float(answer.headers["retry-after"]))


def memory(pid: int) -> int:
    """Resident bytes of the server and its workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total = 0
    for one in (pid, *map(int, children)):
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines())
        total += 1024 * int(fields["VmRSS"].split()[0])
    return total


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds that the server itself and its workers have used."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def used(one: int | str) -> float:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return used(pid), sum(map(used, children))


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--shape", type=int, nargs=3, default=OTTO, metavar=("D", "M", "K"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1000, help="requests over which memory is watched")
    options = parser.parse_args()
    shape = tuple(options.shape)
    found = made(shape)
    result: dict[str, Any] = {"machine": describe(), "shape": shape, "workers": options.workers, "load": []}
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "fit.safetensors")
        words = ["serve", f"{folder}/fit.safetensors", "--layout", "batch", "--precision", "fast", "--port", "0"]
        words += ["--workers", str(options.workers), "--queue", "16", "--json"]
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            base = f"{url}/models/{found.model_id}"
            plan = Plan.from_dict(httpx.get(f"{base}/plan").json())
            data = Client(plan).encrypt(np.zeros((1, shape[0])).clip(*plan.domain.box))
            size = message.size(plan, message.Kind.reply)
            local, ready = Server(found, plan), data
            in_process(local, ready, 1.0)
            rate, cpu = in_process(local, ready, options.seconds / 4)
            result |= {"ring": plan.chain.ring, "request_bytes": len(data), "in_process_per_second": rate}
            result |= {"in_process_cpu": cpu}
            print(f"in process: {rate:.2f} requests/s of {plan.per_request} samples, {len(data) / 1e6:.1f} MB each")
            for clients, in_flight in ((1, 2), *((clients, 1) for clients in options.clients)):
                load = Load(f"{base}/evaluate", data, size)
                before_cpu = (*cpu_seconds(process.pid), time.process_time())
                spent = load.run(clients * in_flight, options.seconds)
                after_cpu = (*cpu_seconds(process.pid), time.process_time())
                own, theirs, sending = np.subtract(after_cpu, before_cpu) / load.answers["200"]
                (first, first_cpu), (rate, cpu) = (rate, cpu), in_process(local, ready, options.seconds / 4)
                usual, usual_cpu = (first + rate) / 2 * options.workers, (first_cpu + cpu) / 2
                share = load.answers["200"] / spent / usual
                p50, p99 = np.percentile(load.seconds, [50, 99]).tolist()
                row = {"clients": clients, "in_flight": in_flight}
                row |= {"per_second": load.answers["200"] / spent, "in_process_per_second": usual}
                row |= {"share": share, "in_process_cpu": usual_cpu, "worker_cpu": theirs, "server_cpu": own}
                row |= {"client_cpu": sending, "cpu_share": usual_cpu / theirs}
                row |= {"p50": p50, "p99": p99, "answers": dict(load.answers)}
                result["load"].append(row)
                print(
                    f"{clients:3d} clients, {in_flight} in flight each: {row['per_second']:.2f} requests/s, "
                    f"{share:.0%} of {usual:.2f} in process; "
                    f"CPU a request: in process {usual_cpu:.3f} s, worker {theirs:.3f} s ({usual_cpu / theirs:.0%}), "
                    f"server {own:.3f} s, clients {sending:.3f} s; p50 {p50:.3f} s, p99 {p99:.3f} s; "
                    f"answers {dict(load.answers)}"
                )
            least = min(row["share"] for row in result["load"])
            result |= {"wanted_share": WANTED, "least_share": least}
            print(f"least share {least:.0%}, wanted {WANTED:.0%}: {'met' if least >= WANTED else 'NOT met'}")
            before = memory(process.pid)
            load = Load(f"{base}/evaluate", data, size)
            load.run(4, 600.0, options.requests)
            after = memory(process.pid)
            result["memory"] = {"requests": load.answers["200"], "before": before, "after": after}
            print(f"memory: {before / 1e6:.0f} MB, after {load.answers['200']} more requests {after / 1e6:.0f} MB")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=90)
            assert process.stdout is not None
            process.stdout.close()
    if options.out is not None:
        write(options.out, result)


if __name__ == "__main__":
    main()
