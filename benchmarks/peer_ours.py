"""quad4fhe itself, measured as `peers.py` measures the others: each layout for one question, layout batch for many."""

from __future__ import annotations

import inspect
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer_networks import Network
from quad4fhe import Client, Fit, Plan, __version__, answer, plan
from quad4fhe.errors import InputError
from quad4fhe.he.message import size
from quad4fhe.he.session import Server
from quad4fhe.layouts.forms import Kind
from quad4fhe.mlp import decide

_QUESTIONS = 15


def cpu(step: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one call, and what it returned."""
    start = time.process_time()
    out = step()
    return time.process_time() - start, out


def user(fit: Fit, made: Plan, X: NDArray[Any]) -> Any:
    """What a user writes."""
    client = Client(made)
    return client.decide(answer(fit, made, client.encrypt(X)))


def measure(network: Network) -> list[dict[str, Any]]:
    """All layouts for one question, and both precisions of layout batch for a full request."""
    rows = []
    cases: list[tuple[str, Any, int, dict[str, Any]]] = [
        ("lift", "strict", 1, {}),
        ("lift plain", "strict", 1, {"replies": "plain"}),
        ("batch", "strict", 4096, {"replies": "plain"}),
        ("batch", "fast", 4096, {"replies": "plain"}),
    ]
    for name, precision, samples, extra in cases:
        form, layout = f"{name} {precision}", name.split()[0]
        try:
            made = plan(
                network.fit,
                samples=samples,
                layout=layout,
                precision=precision,
                X=network.X_cal,
                box=network.box,
                **extra,
            )
        except InputError as error:
            rows.append({"peer": "quad4fhe", "form": form, "skipped": str(error)[:200]})
            continue
        rows.append(_run(network, made, form))
    return rows


def _run(network: Network, made: Plan, form: str) -> dict[str, Any]:
    keygen, client = cpu(lambda: Client(made))
    making = 0.0
    setting_up, server = cpu(lambda: Server(network.fit, made))
    n = made.per_request if made.layout == "batch" else 1
    times, found, shown = [], [], []
    for turn in range(3 if n > 1 else _QUESTIONS):
        X = network.X_test[(turn * n + np.arange(n)) % len(network.X_test)]
        one, requests = cpu(lambda X=X: client.encrypt(X))
        two, reply = cpu(lambda requests=requests: server.answer(requests))
        three, logits = cpu(lambda reply=reply: client.read(reply))
        times.append((one, two, three))
        found.append(logits)
        shown.append(X)
    best = np.min(times, axis=0)
    X, logits = np.concatenate(shown), np.concatenate(found)
    wanted = network.fit.model.logits(X)
    centred = wanted if wanted.shape[1] == 1 else wanted - wanted.mean(axis=1, keepdims=True)
    body = inspect.getsource(user).splitlines()[2:]
    return {
        "peer": "quad4fhe",
        "form": form,
        "version": __version__,
        "licence": "Apache-2.0",
        "keygen": keygen + making,
        "server_setup": setting_up,
        "key_bytes": 0,
        "encrypt": best[0],
        "server": best[1],
        "decrypt": best[2],
        "per_request": n,
        "upload_bytes": size(made, Kind.request),
        "download_bytes": size(made, Kind.reply),
        "ring": made.chain.ring,
        "modulus_bits": sum(q.bit_length() for q in made.chain.primes),
        "security": "128 bits, limits of 2024",
        "lines": len(body) + 3,
        "repeats": len(times),
        "samples": len(X),
        "changed": int((decide(logits) != decide(wanted)).sum()),
        "max_error": float(np.abs(logits - centred).max()),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
