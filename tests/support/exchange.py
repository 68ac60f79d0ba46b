"""A client and a server in one process."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quad4fhe import Client, Plan
from quad4fhe.he.message import DIGEST_BYTES
from quad4fhe.he.session import Server


def connect(fit: Any, plan: Plan) -> tuple[Client, Server]:
    """Both sides of a plan."""
    return Client(plan), Server(fit, plan)


def run(client: Client, server: Server, X: ArrayLike) -> np.ndarray:
    """Encrypt, answer and read all samples."""
    return np.concatenate([client.read(server.answer(request)) for request in client.requests(X)])


def sealed(message: bytes | bytearray) -> bytes:
    """The message with the SHA-256 that fits its content."""
    content = bytes(message[:-DIGEST_BYTES])
    return content + hashlib.sha256(content).digest()
