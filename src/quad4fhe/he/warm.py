"""Lets compiled kernels be ready before the first request: one evaluation of ones.

Decides that a request too large to be held in memory at once is not worth it.
"""

from __future__ import annotations

import numpy as np

from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.he.session import Header, Request, Server

_LARGEST = 2**26  # bytes of a request


def warm_up(server: Server) -> None:
    """Compile what layout batch needs; layout packed has nothing to compile."""
    plan = server.plan
    if plan.layout == "packed" or container.size(plan, Kind.request) > _LARGEST:
        return
    form = container.form(plan, Kind.request)
    ones = np.ones(form.shape, dtype=f"<u{form.width}")
    ones.setflags(write=False)  # as what is read from a file is
    server.evaluate(Request(Header(plan.sha256, plan.model_id, bytes(16), bytes(16)), [ones]))
