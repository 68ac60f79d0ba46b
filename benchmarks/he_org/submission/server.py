"""The server's stages, named as the harness calls them.

`server_preprocess_model` checks once what does not depend on requests, and stores what the answers need: the arrays of
the polynomial and the hashes of the checked files. The harness starts every stage anew, so `server_encrypted_compute`
loads no more than that.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from sizes import COUNTS, Size, empty, model_folder


def server_preprocess_model() -> None:
    """Check that model and plans belong together and that no plan can overflow; nothing to do if this was done."""
    fit = model_folder() / "fit.safetensors"
    plans = [model_folder() / f"{name}.json" for name in COUNTS]
    hashes = [_sha256(path) for path in (fit, *plans)]
    if _stored().exists():
        with np.load(_stored()) as stored:
            if stored["checked"].tolist() == hashes:
                return
    from quad4fhe import Fit, Plan  # here: usually there is nothing to do
    from quad4fhe.he.session import Server

    found = Fit.load(fit)
    for path in plans:
        Server(found, Plan.load(path)).warm_up()  # compiled kernels stay in a cache
    arrays = {"W1": found.model.W1, "b1": found.model.b1, "S": found.S, "T": found.T, "c": found.c}
    np.savez(_stored(), checked=np.array(hashes), **arrays)


def server_encrypted_compute(size: Size) -> None:
    """Answer every request; report the CPU time of start-up and of the answers."""
    requests = sorted(size.upload.glob("*.request"))
    if not requests:
        raise SystemExit(f"{size.upload} holds no requests; run client_encode_encrypt_input first")
    from quad4fhe import Plan

    plan = Plan.load(size.plan)
    server = _server(size, plan)
    started = time.process_time()
    empty(size.download)
    for path in requests:
        (size.download / f"{path.stem}.reply").write_bytes(server.answer(path.read_bytes()))
    answers = time.process_time() - started
    size.report.write_text(json.dumps({"start-up": started, "keys": 0.0, "answers": answers}))


def _server(size: Size, plan: Any) -> Any:
    from quad4fhe import PolynomialModel
    from quad4fhe.he.session import Server

    if not _stored().exists():
        raise SystemExit(f"no {_stored()}; run server_preprocess_model first")
    with np.load(_stored()) as stored:
        model = PolynomialModel.quadratic(*(stored[name] for name in ("W1", "b1", "S", "T", "c")))
        checked = _sha256(size.plan) in stored["checked"]
    return Server(SimpleNamespace(model=model, model_id=plan.model_id), plan, checked=checked)


def _stored() -> Path:
    return model_folder() / "server.npz"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
