"""The client's stages that compute with ciphertexts, named as the harness calls them.

Client and server share only files: the plan, requests and replies. Each request has its own key, which stays in the
client's folder `secret_key` until its reply is read.
"""

from __future__ import annotations

import numpy as np
from sizes import Size, empty

from quad4fhe import Client, Plan


def client_key_generation(size: Size) -> None:
    """Make the folders: every request gets its own key when it is made."""
    for folder in (size.public, size.secret, size.upload, size.download):
        folder.mkdir(parents=True, exist_ok=True)


def client_encode_encrypt_input(size: Size) -> None:
    """Encrypt the images, one file per request."""
    plan, images = Plan.load(size.plan), np.load(size.images)
    empty(size.upload)
    empty(size.secret)
    for number, start in enumerate(range(0, size.count, plan.per_request)):
        client = Client(plan)
        request = client.encrypt(images[start : start + plan.per_request])
        (size.upload / f"{number:05d}.request").write_bytes(request)
        (size.secret / f"{number:05d}.secret").write_bytes(client.secret_bytes())


def client_decrypt_decode(size: Size) -> None:
    """Decrypt the logits, in the order of the images."""
    plan, rows = Plan.load(size.plan), []
    for path in sorted(size.secret.glob("*.secret")):
        client = Client.from_secret_bytes(plan, path.read_bytes())
        rows.append(client.read((size.download / f"{path.stem}.reply").read_bytes()))
    np.save(size.logits, np.concatenate(rows))
