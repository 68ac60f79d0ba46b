"""The client's stages that compute with ciphertexts, named as the harness calls them.

Client and server share only files: the plan, public keys, requests and replies. The secret key, and the nonces of open
requests, stay in the client's folder `secret_key`.
"""

from __future__ import annotations

import json

import numpy as np
from sizes import Size, empty, write

from quad4fhe import Client, Plan
from quad4fhe.he import container, keys


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
        write(size.public / "client.keys", container.write_keys(plan, client.key_id, public))


def client_encode_encrypt_input(size: Size) -> None:
    """Encrypt the images, one file per request."""
    plan = Plan.load(size.plan)
    client = Client(plan, keys.load(size.secret / "own.key"))
    empty(size.upload)
    sent = []
    for number, request in enumerate(client.stream(np.load(size.images))):
        write(size.upload / f"{number:05d}.request", container.write_request(plan, request))
        rows = min(plan.per_request, size.count - number * plan.per_request)
        sent.append([request.identity.nonce.hex(), rows])
    (size.secret / "requests.json").write_text(json.dumps(sent))


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
