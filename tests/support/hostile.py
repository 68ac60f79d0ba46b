"""A server that lies, and writes down everything it can see of its clients: messages, sizes, connections, headers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from quad4fhe import PolynomialModel
from quad4fhe.he import message, session
from quad4fhe.he.session import Server
from quad4fhe.layouts import layout_of
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Fitted, Plan

Answer = Callable[[int, bytes], tuple[int, bytes]]


class HostileServer:
    """Serves `fields` as its plan, and whatever `answer` makes of the number and the bytes of a request."""

    def __init__(self, fields: Any, answer: Answer | None = None) -> None:
        self.fields, self.answer = fields, answer or (lambda number, body: (500, b""))
        self.seen: list[tuple[str, str, int]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> HostileServer:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(timeout=300)

    def posts(self) -> int:
        """How many requests for an evaluation it got."""
        return sum(method == "POST" for method, _, _ in self.seen)

    def reply(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Write a message down and answer it."""
        with self._lock:
            number = self.posts()
            self.seen.append((method, path.rpartition("/")[2], len(body)))
            self.headers.append(headers)
        if path.partition("?")[0].endswith("/plan"):
            return 200, self.fields if isinstance(self.fields, bytes) else json.dumps(self.fields).encode()
        return self.answer(number, body)


def _handler(server: HostileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with server._lock:
                server.connections += 1

        def finish(self) -> None:
            super().finish()
            with server._lock:
                server.connections -= 1

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, data = server.reply(self.command, self.path, body, headers)
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            if status == 307:
                self.send_header("location", data.decode())
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _any

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def zeros(plan: Plan) -> Answer:
    """Answer every request with an encryption of nothing but zeros."""
    return with_residues(plan, lambda _, residues: np.zeros_like(residues))


def with_residues(plan: Plan, change: Callable[[int, Any], Any]) -> Answer:
    """Answer with residues of the shape that the plan prescribes and a header that fits the request."""
    part = layout_of(plan).form(plan, Kind.reply).parts[-1]
    blank = np.zeros(part.shape, dtype=part.dtype)

    def answer(number: int, body: bytes) -> tuple[int, bytes]:
        return 200, message.write(plan, Kind.reply, [change(number, blank)], message.digest(body))

    return answer


def evaluating(fit: Fitted, plan: Plan, model: PolynomialModel | None = None) -> Answer:
    """Answer by evaluation: of the plan's model, or under its name of another one."""
    other = SimpleNamespace(model=fit.model if model is None else model, model_id=plan.model_id)
    with mock.patch.object(
        session, "_require_room"
    ):  # a server that lies does not ask whether the plan's bound is true
        server = Server(other, plan)

    def answer(_: int, body: bytes) -> tuple[int, bytes]:
        return 200, server.answer(body)

    return answer
