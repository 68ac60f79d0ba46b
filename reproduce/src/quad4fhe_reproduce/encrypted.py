"""The encrypted half of the experiments: our folded circuits, and the paper's circuit on its own grid.

Decides what is planned, how many samples are really encrypted and which operations are counted. Every
figure here comes from real CKKS ciphertexts, none from a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.fitting import Fit
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.plan import Plan, Precision
from quad4fhe_reproduce.ciphertexts import (
    PAPER_GRID,
    REPLIES,
    SMALL_GRID,
    Outcome,
    minimum_configuration,
    precision_sweep,
    schemes,
)
from quad4fhe_reproduce.circuit import Activation, Counts, PaperCircuit
from quad4fhe_reproduce.measure import Bench
from quad4fhe_reproduce.records import Circuit, Encrypted, Operations

PLANNED = 4096  # samples a plan is made for: one full request of ring 2^13
LIFT_TRIED = 64  # requests of layout lift carry few samples each
SWEPT = 64  # test samples of the paper's circuit: two of its batches
_LAYOUTS = ("batch", "lift")
_PRECISIONS: tuple[Precision, ...] = ("fast", "strict")


def folded(fits: Mapping[str, Fit], bench: Bench) -> list[Encrypted]:
    """Plan every fit in both layouts and precisions, and encrypt test samples with each plan.

    Layout batch takes the whole test set, layout lift a few samples: it is made for one question at a time. Equal
    models are planned once.
    """
    out, seen = [], set()
    for name, made in fits.items():
        if made.model.sha256 in seen:
            continue
        seen.add(made.model.sha256)
        for layout in _LAYOUTS:
            for precision in _PRECISIONS:
                try:
                    chosen = plan(
                        made,
                        samples=PLANNED,
                        layout=layout,
                        precision=precision,
                        replies=REPLIES[layout],
                        X=bench.X_cal,
                        box=made.box,
                    )
                except InputError:
                    continue  # a model too large for this layout has no row
                out.append(_tried(name, made, chosen, bench))
    return out


def _tried(name: str, made: Fit, chosen: Plan, bench: Bench) -> Encrypted:
    tried = len(bench.X_test) if chosen.layout == "batch" else min(LIFT_TRIED, len(bench.X_test))
    X, y = bench.X_test[:tried], bench.y_test[:tried]
    predict_encrypted(made, chosen, X[:1], clip=True)  # the first call compiles kernels, which is not what is timed
    answered = predict_encrypted(made, chosen, X, clip=True)
    bill, forecast = answered.bill, chosen.forecast
    assert bill is not None
    return Encrypted(
        fit=name,
        layout=chosen.layout,
        precision=chosen.precision,
        ring=chosen.chain.ring,
        bits=chosen.chain.all_bits,
        primes=len(chosen.chain.primes),
        samples=PLANNED,
        upload_bytes=forecast.upload_bytes,
        download_bytes=forecast.download_bytes,
        client_seconds=forecast.client_seconds,
        server_seconds=forecast.server_seconds,
        kept=chosen.kept,
        tried=tried,
        changed=bill.changed,
        clipped=bill.clipped,
        agreement=float((answered.decisions == decide(bench.relu_test[:tried])).mean()),
        accuracy=float((answered.decisions == y).mean()),
        measured_server_seconds=bill.server_seconds,
        measured_client_seconds=bill.client_seconds,
    )


def ciphertext_experiments(paper: Fit, bench: Bench) -> dict[str, Any]:
    """Minimum configuration, precision sweep and operation counts of the paper's circuit on this model."""
    X, y = np.asarray(bench.X_test[:SWEPT], dtype=np.float64), bench.y_test[:SWEPT].astype(np.float64)
    coefficients = (float(paper.alpha), float(paper.beta), float(paper.eta))
    activations = schemes(bench.mlp, coefficients, bench.X_cal)
    return {
        "minimum": _circuits(minimum_configuration(bench.mlp, activations, X, y, SMALL_GRID + PAPER_GRID)),
        "sweep": _circuits(precision_sweep(bench.mlp, activations, X, y)),
        "operations": _operations(bench, activations),
    }


def _circuits(outcomes: Iterable[Outcome]) -> list[Circuit]:
    rows = []
    for outcome in outcomes:
        values = outcome.to_dict()
        for name in ("max_error", "server_seconds"):
            values[name] = values[name] if math.isfinite(values[name]) else None
        rows.append(Circuit(**values))
    return rows


def _operations(bench: Bench, activations: Iterable[Activation]) -> list[Operations]:
    """Counted while the paper's circuit runs one batch; for the folded circuit by its formula."""
    rows = []
    for activation in activations:
        circuit = PaperCircuit(bench.mlp, activation, ring=2**14, depth=max(4, activation.depth), log2_scale=40)
        circuit.evaluate(circuit.encrypt(np.asarray(bench.X_test[: circuit.batch], dtype=np.float64)))
        rows.append(Operations(scheme=activation.name, **circuit.counts.to_dict()))
    d, m, K = bench.mlp.features, bench.mlp.units, bench.mlp.outputs
    products = m * d + K * m + K * d  # with whole numbers: W, V and the linear skip
    folded = Counts(encryptions=d, ct_ct=m, ct_pt=products, depth=3)
    return [*rows, Operations(scheme="folded, batch", **folded.to_dict())]
