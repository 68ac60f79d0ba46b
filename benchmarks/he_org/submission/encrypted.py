"""The stages that compute with ciphertexts, named as the harness calls them.

Client and server share only files: the plan, public keys, requests and replies. The secret key, and the nonces of open
requests, stay in the client's folder `secret_key`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from sizes import COUNTS, Size, model_folder

from quad4fhe import Client, Fit, Plan, Server
from quad4fhe.he import container, keys
from quad4fhe.planning.plan import require_model


def client_key_generation(size: Size) -> None:
    """Make the secret key, and the public keys if the plan's layout has any."""
    plan = Plan.load(size.plan)
    key = keys.generate(plan)
    for folder in (size.public, size.secret, size.upload, size.download):
        folder.mkdir(parents=True, exist_ok=True)
    (size.secret / "own.key").unlink(missing_ok=True)
    keys.save(key, size.secret / "own.key")
    client = Client(plan, key)
    public = client.evaluation_keys()
    if public is not None:
        _write(size.public / "client.keys", container.write_keys(plan, client.key_id, public))


def server_preprocess_model() -> None:
    """Check that the model and every plan belong together."""
    model = Fit.load(model_folder() / "fit.safetensors").model
    for name in COUNTS:
        require_model(Plan.load(model_folder() / f"{name}.json"), model)


def client_encode_encrypt_input(size: Size) -> None:
    """Encrypt the images, one file per request."""
    plan = Plan.load(size.plan)
    client = Client(plan, keys.load(size.secret / "own.key"))
    _empty(size.upload)
    sent = []
    for number, request in enumerate(client.stream(np.load(size.images))):
        _write(size.upload / f"{number:05d}.request", container.write_request(plan, request))
        rows = min(plan.per_request, size.count - number * plan.per_request)
        sent.append([request.identity.nonce.hex(), rows])
    (size.secret / "requests.json").write_text(json.dumps(sent))


def server_encrypted_compute(size: Size) -> None:
    """Answer every request; report the CPU time of start-up, of the client's keys, and of the answers."""
    requests = sorted(size.upload.glob("*.request"))
    if not requests:
        raise SystemExit(f"{size.upload} holds no requests; run client_encode_encrypt_input first")
    plan = Plan.load(size.plan)
    server = Server(Fit.load(model_folder() / "fit.safetensors"), plan)
    started, loading = time.process_time(), 0.0
    _empty(size.download)
    for path in requests:
        with path.open("rb") as stream:
            request = container.read_request(plan, stream)
            before = time.process_time()
            server.load_keys(request.identity.key, partial((size.public / "client.keys").open, "rb"))
            loading += time.process_time() - before
            reply = server.evaluate(request)
            _write(size.download / f"{path.stem}.reply", container.write_reply(plan, reply))
    answers = time.process_time() - started - loading
    size.report.write_text(json.dumps({"start-up": started, "keys": loading, "answers": answers}))


def client_decrypt_decode(size: Size) -> None:
    """Decrypt the logits, in the order of the images."""
    plan = Plan.load(size.plan)
    client = Client(plan, keys.load(size.secret / "own.key"))
    rows = []
    for number, (nonce, count) in enumerate(json.loads((size.secret / "requests.json").read_text())):
        client.reopen(bytes.fromhex(nonce), count)
        with (size.download / f"{number:05d}.reply").open("rb") as stream:
            rows.append(client.decrypt(container.read_reply(plan, stream)))
    np.save(size.logits, np.concatenate(rows))


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
