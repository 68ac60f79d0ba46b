"""The client of a server: encrypts here, sends ciphertexts, decrypts here.

The server is not trusted, and what it can see of this client (connections, messages, their sizes, order and times) must
not depend on samples or on what a reply decrypts to. So every request is sent and every reply received before the first
one is decrypted, the connection is closed in between, and an input box of the server's choice never decides whether
something is sent. Requests in flight are in `exchange`, attempts and pauses in `wire`, cryptography in `he`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray, samples, tensor
from quad4fhe._files import one_line
from quad4fhe._progress import Progress, silent
from quad4fhe.circuit.domain import check_inside
from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.canaries import Known, Mixture
from quad4fhe.he.container import Kind
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.session import Client
from quad4fhe.mlp import decide
from quad4fhe.serve.exchange import IN_MEMORY, Exchange, spooled
from quad4fhe.serve.wire import KeylessError, ServiceError, TakenError, Wire

__all__ = ["Answers", "Remote", "ServiceError"]

_PLAN_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class Answers:
    """Decisions (n,) and logits (n, K) from a server, and what they took. For K >= 2 logits come without their mean.

    `clipped` samples were moved to the edge of the box before they were decided; `canaries` were in each request.
    `reliable` (n,) says which decisions have the margin that the plan calls reliable; None where it names none.
    """

    decisions: IntArray
    logits: Array
    requests: int
    upload_bytes: int
    download_bytes: int
    key_bytes: int
    clipped: int
    canaries: int
    seconds: float
    reliable: BoolArray | None = None


class Remote:
    """One model of one server, by a plan that is pinned (`key`, `plan`) or else the server's own.

    A pinned plan is the only one that is used, and the server is not asked for it. Without, the plan comes from the
    server, and its input box with it. A sample outside it is then reported only after everything was sent: a server
    that sees whether a sample lies in a box of its choice finds each feature by halving.

    Parameters
    ----------
    url
        Where the server is, as https://host:port.
    plan
        The plan to use.
    key
        A kept key, which carries its plan; without, one is made that ends with each call.
    model
        The model's id, for a server that offers several.
    layout
        The layout, for a server that offers both.
    token
        The server's API token.
    verify
        What httpx takes: True, or an `ssl.SSLContext`.
    patience
        How many seconds one message may take, attempts and pauses included.
    """

    def __init__(
        self,
        url: str,
        *,
        plan: Plan | None = None,
        key: StoredKey | None = None,
        model: str | None = None,
        layout: str | None = None,
        token: str | None = None,
        verify: Any = True,
        patience: float = 120.0,
    ) -> None:
        pinned = _pinned(plan, key, model, layout)
        self.pinned = pinned is not None
        self._key = key
        self._wire = Wire(url, token, verify, patience)
        try:
            self.plan = self._fetch_plan(model or self._only_model(), layout) if pinned is None else pinned
        except BaseException:
            self._wire.close()
            raise

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()

    def predict(
        self,
        X: ArrayLike,
        *,
        clip: bool = False,
        known: Known | None = None,
        canaries: int = 0,
        concurrency: int = 2,
        progress: Progress = silent,
    ) -> Answers:
        """Encrypt X (n, d), let the server answer, decrypt.

        Up to `concurrency` requests are in flight: with two, the next is encrypted and sent while the server works on
        the one before; more help only where the server has idle workers, and each is held in memory or on disk.
        Replies are kept, on disk where they are large, until all of them are there.

        Parameters
        ----------
        X
            Samples; one outside the box of a pinned plan is refused before anything is sent.
        clip
            Move samples outside the box to its edge, and count them.
        known
            Samples whose logits are known, for canaries.
        canaries
            How many of them every request carries at secret places; a wrong one refuses all answers.
        concurrency
            Requests in flight at once.
        progress
            Progress callback.
        """
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, wanted 1 or more")
        started = time.monotonic()
        plan = self.plan
        checked = samples("X", tensor("X", X, 2), plan.shape.features)
        if self.pinned and not clip:
            check_inside(checked, plan.domain)
        inside = np.clip(checked, *plan.domain.box)
        mixture = self._mixture(inside, known, canaries)
        client = Client(plan, self._key)
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as kept:
            total = -(-len(inside) // plan.per_request) if mixture is None else mixture.requests
            blocks = _blocks(inside, plan.per_request) if mixture is None else mixture.blocks()
            exchange = Exchange(client, self._evaluate, partial(self._give_keys, client), kept)
            exchange.run(blocks, concurrency, lambda done: progress("encrypted inference", done, total))
            # Whatever is found from here on, and however long it takes, the server sees none of it.
            self._wire.hang_up()
            if not (self.pinned or clip):
                _check_late(checked, plan)
            logits = exchange.decrypt(progress)
        if mixture is not None:
            logits = mixture.read(logits)
        return Answers(
            decisions=decide(logits),
            logits=logits,
            requests=total,
            upload_bytes=exchange.upload_bytes,
            download_bytes=exchange.download_bytes,
            key_bytes=exchange.key_bytes,
            clipped=int(np.count_nonzero(np.any(inside != checked, axis=1))),
            canaries=canaries,
            seconds=time.monotonic() - started,
            reliable=plan.is_reliable(logits),
        )

    def _mixture(self, inside: Array, known: Known | None, canaries: int) -> Mixture | None:
        if (known is None) != (canaries == 0):
            raise InputError("canaries need both: how many of them a request carries, and samples with known logits")
        if known is None:
            return None
        if not self.pinned:
            # The tolerance is the plan's, and a server that lies would choose a large one.
            raise InputError("canaries are judged by the plan's error bound, so pin the plan: give a key, or the plan")
        return Mixture(self.plan, inside, known, canaries)

    def _only_model(self) -> str:
        try:
            found = [str(one["id"]) for one in msgspec.json.decode(self._get("/models"))["models"]]
            if not all(map(_is_id, found)):
                raise TypeError
        except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
            raise ServiceError("the server does not speak this protocol: /models is not what it should be") from None
        if len(found) != 1:
            raise InputError(f"the server has {len(found)} models; name one by its id: {', '.join(found[:8])}")
        return found[0]

    def _fetch_plan(self, model: str, layout: str | None) -> Plan:
        if not _is_id(model):
            raise InputError(f"{model[:80]!r} is not a model's id; wanted 64 hexadecimal digits (see GET /models)")
        try:
            fields = msgspec.json.decode(self._get(f"/models/{model}/plan" + (f"?layout={layout}" if layout else "")))
        except (msgspec.DecodeError, RecursionError):
            raise ServiceError("the server does not speak this protocol: its plan is not JSON") from None
        try:
            plan = Plan.from_dict(fields)  # checks the security table, the room for overflow and all sizes
        except InputError as error:
            raise InputError(f"the server's plan can't be used: {one_line(error)}") from None
        if plan.model_id != model or layout not in (None, plan.layout):
            raise ServiceError(f"the server's plan is for model {plan.model_id[:12]}, wanted {model[:12]}: not trusted")
        return plan

    def _get(self, path: str) -> bytes:
        return self._wire.ask("GET", path, None, 0, _PLAN_BYTES)

    def _evaluate(self, body: IO[bytes], size: int) -> bytes:
        exact = container.size(self.plan, Kind.reply)
        return self._wire.ask("POST", f"/models/{self.plan.model_id}/evaluate", body, size, exact)

    def _give_keys(self, client: Client) -> int:
        """Upload evaluation keys unless the server has them; returns the bytes sent."""
        path = f"/models/{self.plan.model_id}/keys/{client.key_id.hex()}"
        try:
            self._wire.ask("GET", path, None, 0, 0)
            return 0
        except KeylessError:
            keys = client.evaluation_keys()
        if keys is None:
            raise ServiceError(f"the server asks for evaluation keys, which layout {self.plan.layout} does not have")
        body, size = spooled(container.write_keys(self.plan, client.key_id, keys))
        with body:
            try:
                self._wire.ask("PUT", path, body, size, 0)
            except TakenError:
                return 0  # an attempt before this one arrived after all
        return size


def _pinned(plan: Plan | None, key: StoredKey | None, model: str | None, layout: str | None) -> Plan | None:
    """The plan that was pinned, if one was; raises InputError if what else was asked for is not the same."""
    if key is not None:
        if plan is not None:
            key.require_plan(plan)
        plan = key.plan
    if plan is not None:
        for name, wanted, found in (("model", model, plan.model_id), ("layout", layout, plan.layout)):
            if wanted not in (None, found):
                raise InputError(
                    f"the pinned plan has {name} {found}, not {wanted}; leave --{name} out, or pin another"
                )
    return plan


def _is_id(model: str) -> bool:
    return len(model) == 64 and set(model) <= set("0123456789abcdef")


def _check_late(X: Array, plan: Plan) -> None:
    try:
        check_inside(X, plan.domain)
    except InputError as error:
        raise InputError(
            f"{error}. This plan is the server's own, so everything was sent first, for it not to learn this. Before "
            "you ask again, pin a plan whose hash the model's owner has told you: quad4fhe keygen own.key --server "
            "URL, then quad4fhe query URL DATA --key own.key --clip"
        ) from None


def _blocks(X: Array, size: int) -> Iterator[Array]:
    return (X[start : start + size] for start in range(0, len(X), size))
