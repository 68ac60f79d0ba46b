"""The client of a server: encrypts here, sends ciphertexts, decrypts here.

Decides what is asked again and how long (only what gives the same answer twice: every route of the service does, and a
request is sent again as the same bytes), and which servers are not trusted: another model than the one that was pinned,
a plan below 128 bits, a reply longer than the plan says. Cryptography is left to `he`.
"""

from __future__ import annotations

import io
import ipaddress
import random
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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
from quad4fhe.errors import InputError, MissingExtraError, Quad4FHEError
from quad4fhe.he import container
from quad4fhe.he.container import Kind
from quad4fhe.he.keys import StoredKey
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.mlp import decide

try:
    import httpx
except ImportError:
    raise MissingExtraError("httpx", "serve", "the client of a server") from None

_PLAN_BYTES = 2**24
_IN_MEMORY = 2**26  # bytes of a request that are not written to a temporary file
_BLOCK = 2**20
_LONGEST_PAUSE = 30.0
_AGAIN = (408, 429, 503)  # refused before or without an answer: the same request may succeed later


class ServiceError(Quad4FHEError):
    """The server can't be reached, or refuses; nothing is known about the samples' decisions."""


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
        headers = {"Accept-Encoding": "identity"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        self._patience = patience
        try:
            self._http = httpx.Client(base_url=url, headers=headers, verify=verify, timeout=patience)
            _check_address(url, self._http.base_url, token)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise InputError(f"{url!r} or its token can't be used: {error}; wanted https://host:port") from None
        try:
            self.plan = self._fetch_plan(model or self._only_model(), layout)
        except BaseException:
            self._http.close()
            raise

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

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
            except _Keyless:  # the server was started again, or had to make room
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
        return self._ask("GET", path, None, 0, _PLAN_BYTES)

    def _evaluate(self, body: IO[bytes], size: int) -> bytes:
        exact = container.size(self.plan, Kind.reply)
        return self._ask("POST", f"/models/{self.plan.model_id}/evaluate", body, size, exact)

    def _give_keys(self, client: Client) -> int:
        """Upload evaluation keys unless the server has them; returns the bytes sent."""
        path = f"/models/{self.plan.model_id}/keys/{client.key_id.hex()}"
        try:
            self._ask("GET", path, None, 0, 0)
            return 0
        except _Keyless:
            keys = client.evaluation_keys()
        assert keys is not None
        body, size = _spooled(container.write_keys(self.plan, client.key_id, keys))
        with body:
            try:
                self._ask("PUT", path, body, size, 0)
            except _Taken:
                return 0  # an attempt before this one arrived after all
        return size

    def _ask(self, method: str, path: str, body: IO[bytes] | None, size: int, longest: int) -> bytes:
        """One message, with pauses and further attempts as long as patience lasts."""
        deadline = time.monotonic() + self._patience
        pause = 0.2
        while True:
            if body is not None:
                body.seek(0)
            try:
                return self._once(method, path, body, size, longest)
            except _Later as error:
                # Jitter, so that clients that were refused together do not come back together.
                wait = max(error.after, pause * random.uniform(0.5, 1.0))
                if time.monotonic() + wait > deadline:
                    raise ServiceError(f"{error}; gave up after {self._patience:g} seconds") from None
                time.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: IO[bytes] | None, size: int, longest: int) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        content = None if body is None else _blocks(body)
        try:
            with self._http.stream(method, path, content=content, headers=headers) as response:
                good = response.status_code in (200, 204)
                data = _bounded(response, longest if good else 2**16)
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ServiceError(f"the server's certificate is not trusted: {error}; see --ca") from None
            raise _Later(f"the server can't be reached: {error or type(error).__name__}", 0.0) from None
        if good:
            return data
        said = _message(data)
        status = response.status_code
        if status in _AGAIN:
            after = response.headers.get("retry-after", "0")
            seconds = min(float(after), _LONGEST_PAUSE) if after.isdecimal() else 0.0
            raise _Later(f"the server is busy ({status}: {said})", seconds)
        if status == 404 and "quad4fhe-keys" in response.headers:
            raise _Keyless(said)
        if status == 409:
            raise _Taken(said)
        raise ServiceError(f"the server refused {method} {path.partition('?')[0]} ({status}): {said}")


def _check_address(url: str, parsed: httpx.URL, token: str | None) -> None:
    if parsed.scheme not in ("http", "https"):
        raise InputError(f"{url!r} is not the address of a server; wanted https://host:port")
    try:
        local = ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        local = parsed.host == "localhost"
    if token is not None and parsed.scheme == "http" and not local:
        raise InputError(f"a token would travel to {parsed.host} in the clear; use https://")


class _Later(ServiceError):
    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class _Keyless(ServiceError):
    pass


class _Taken(ServiceError):
    pass


def _message(data: bytes) -> str:
    """What the server said, made safe for a terminal."""
    try:
        text = str(msgspec.json.decode(data)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = "no reason given"
    return "".join(c for c in " ".join(text.split()) if c.isprintable())[:300]


def _bounded(response: httpx.Response, longest: int) -> bytes:
    out = bytearray()
    for part in response.iter_raw(_BLOCK):
        out += part
        if len(out) > longest:
            raise ServiceError(f"the server sent more than the {longest} bytes it may; not trusted")
    return bytes(out)


def _blocks(body: IO[bytes]) -> Iterator[bytes]:
    while block := body.read(_BLOCK):
        yield block


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
