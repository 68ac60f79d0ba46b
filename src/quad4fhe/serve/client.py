"""The client of a server: encrypts here, sends ciphertexts, decrypts here.

Decides which servers are not trusted (another model than the one that was pinned, a plan below 128 bits, a reply longer
than the plan says) and how many requests are in flight. Attempts and pauses are left to `wire`, cryptography to `he`.
"""

from __future__ import annotations

import io
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, IntArray, samples
from quad4fhe._progress import Progress, silent
from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.mlp import decide
from quad4fhe.serve.wire import KeylessError, ServiceError, TakenError, Wire

__all__ = ["Answers", "Remote", "ServiceError"]

_PLAN_BYTES = 2**24
_IN_MEMORY = 2**26  # bytes of a request that are not written to a temporary file


@dataclass(frozen=True, eq=False)
class Answers:
    """Decisions (n,) and logits (n, K) from a server, and what they took. For K >= 2 logits come without their mean."""

    decisions: IntArray
    logits: Array
    requests: int
    upload_bytes: int
    download_bytes: int
    key_bytes: int
    clipped: int
    seconds: float


class Remote:
    """One model of one server.

    `model` pins the model's id; without it the server must offer a single one, whose id is then in `plan.model_id`.
    `verify` is httpx's: True, or an `ssl.SSLContext`. `patience` is how many seconds one message may take, attempts and
    pauses included.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        layout: str | None = None,
        token: str | None = None,
        verify: Any = True,
        patience: float = 120.0,
    ) -> None:
        self._wire = Wire(url, token, verify, patience)
        try:
            self.plan = self._fetch_plan(model or self._only_model(), layout)
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
        key: StoredKey | None = None,
        clip: bool = False,
        concurrency: int = 2,
        progress: Progress = silent,
    ) -> Answers:
        """Encrypt X (n, d), let the server answer, decrypt; with a kept `key`, or with one that ends with this call.

        Up to `concurrency` requests are in flight: with two, the next is encrypted and sent while the server works on
        the one before; more help only where the server has idle workers, and each is held in memory or on disk.
        """
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, wanted 1 or more")
        started = time.monotonic()
        plan = self.plan
        checked = np.asarray(samples("X", X, plan.shape.features), dtype=np.float64)
        inside = np.clip(checked, *plan.domain.box) if clip else checked
        client = Client(plan, key)
        total = -(-len(inside) // plan.per_request)
        rows, up, down, key_bytes = [np.empty((0, plan.shape.outputs))], 0, 0, 0

        def finish(message: _Message) -> None:
            nonlocal key_bytes, up, down
            try:
                data = message.answer.result()
            except KeylessError:  # the server was started again, or had to make room
                key_bytes += self._give_keys(client)
                data = self._evaluate(message.body, message.size)
            finally:
                message.body.close()
            up, down = up + message.size, down + len(data)
            try:
                reply = container.read_reply(plan, io.BytesIO(data))
            except InputError as error:
                raise ReplyError(f"the server's reply can't be used: {error}") from None
            rows.append(client.decrypt(reply))
            progress("encrypted inference", len(rows) - 1, total)

        waiting: deque[_Message] = deque()
        try:
            for number, request in enumerate(client.stream(inside)):
                if number == 0 and plan.layout == "packed":
                    key_bytes += self._give_keys(client)
                body, size = _spooled(container.write_request(plan, request))
                waiting.append(_Message(body, size, _in_background(partial(self._evaluate, body, size))))
                if len(waiting) >= concurrency:
                    finish(waiting.popleft())
            while waiting:
                finish(waiting.popleft())
        finally:
            for message in waiting:  # one of the others went wrong: what is still on its way has no more to send
                message.body.close()
        logits = np.concatenate(rows)
        clipped = int(np.count_nonzero(np.any(inside != checked, axis=1)))
        return Answers(decide(logits), logits, len(rows) - 1, up, down, key_bytes, clipped, time.monotonic() - started)

    def _only_model(self) -> str:
        try:
            found = [str(one["id"]) for one in msgspec.json.decode(self._get("/models"))["models"]]
        except (msgspec.DecodeError, KeyError, TypeError):
            raise ServiceError("the server does not speak this protocol: /models is not what it should be") from None
        if len(found) != 1:
            raise InputError(f"the server has {len(found)} models; name one by its id: {', '.join(found[:8])}")
        return found[0]

    def _fetch_plan(self, model: str, layout: str | None) -> Plan:
        if len(model) != 64 or not set(model) <= set("0123456789abcdef"):
            raise InputError(f"{model[:80]!r} is not a model's id; wanted 64 hexadecimal digits (see GET /models)")
        try:
            fields = msgspec.json.decode(self._get(f"/models/{model}/plan" + (f"?layout={layout}" if layout else "")))
        except msgspec.DecodeError:
            raise ServiceError("the server does not speak this protocol: its plan is not JSON") from None
        plan = Plan.from_dict(fields)  # checks the security table and the room for overflow
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
        assert keys is not None
        body, size = _spooled(container.write_keys(self.plan, client.key_id, keys))
        with body:
            try:
                self._wire.ask("PUT", path, body, size, 0)
            except TakenError:
                return 0  # an attempt before this one arrived after all
        return size


def _spooled(parts: Iterable[bytes]) -> tuple[IO[bytes], int]:
    """Bytes of a container, kept so that they can be sent again; ciphertexts only, on disk where they are large."""
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed once it is answered
    try:
        return file, sum(file.write(part) for part in parts)
    except BaseException as error:
        file.close()
        if not isinstance(error, OSError):
            raise
        raise InputError(f"no room for the encrypted request: {error.strerror or error}; free some") from None


@dataclass(frozen=True, eq=False)
class _Message:
    """A request that was sent and is not answered yet."""

    body: IO[bytes]
    size: int
    answer: Future[bytes]


def _in_background(call: Callable[[], bytes]) -> Future[bytes]:
    """Carry out a call in a thread that nobody has to wait for: an interrupted program ends at once."""
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whatever it is, it belongs to who waits for the answer
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
