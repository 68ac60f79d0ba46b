"""One message over HTTP: it ends within its patience, however slowly a server sends or reads."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from quad4fhe.serve.http import HttpClient, ServiceError

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with every connection what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                talk(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def drip(start: bytes) -> Callable[[socket.socket], None]:
    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(start)
        while True:  # until the client goes
            connection.sendall(b" ")
            time.sleep(0.2)

    return talk


def read_slowly(connection: socket.socket) -> None:
    while connection.recv(65536):  # a thousand times, which takes a thousand seconds
        time.sleep(1)


@pytest.mark.parametrize(
    "talk",
    [drip(HEAD + b"content-length: 1000\r\n\r\n"), drip(HEAD + b"\r\n"), drip(HEAD + b"x: "), read_slowly],
    ids=["body", "endless", "headers", "upload"],
)
def test_a_slow_server_does_not_hold_a_client_longer_than_its_patience(talk) -> None:
    with raw_server(talk) as url:
        wire = HttpClient(url, None, True, 1.0)
        with pytest.raises(ServiceError, match="gave up after 1 seconds"):
            wire.ask("POST", "/x", io.BytesIO(bytes(2**26)), 2**26, 2**20) if talk is read_slowly else wire.ask(
                "GET", "/x", None, 0, 2**20
            )
        wire.close()
