"""A server without tokens on the loopback interface answers its own machine, and no page that takes its place."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from quad4fhe import Fit
from quad4fhe.serve.hosts import is_own
from support.serving import RunningServer


@pytest.fixture(scope="module")
def server(fitted: tuple[Path, Fit]) -> Iterator[RunningServer]:
    with RunningServer(fitted[0], "--layout", "lift", "--samples", "1", "--workers", "1") as running:
        yield running


def ask(server: RunningServer, head: str) -> tuple[int, dict[str, object]]:
    """Status and body of the reply to these bytes, in which PORT is the server's port."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head.replace("PORT", str(port)).encode() + b"Connection: close\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    first, _, body = reply.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(body)


@pytest.mark.parametrize(
    "head",
    [
        "GET /models HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n",
        "GET /models HTTP/1.1\r\nhost:   LocalHost:PORT  \r\n",
        "GET /models HTTP/1.1\r\nHost: localhost\r\n",
        "GET /models HTTP/1.1\r\nHost: localhost:1\r\n",
        "GET /models HTTP/1.1\r\nHost: [::1]:PORT\r\n",
        "GET /models HTTP/1.1\r\nHost: 127.9.9.9\r\n",
        "GET http://LOCALHOST:PORT/models HTTP/1.1\r\nHost: localhost:PORT\r\n",
        "GET /models HTTP/1.1\r\nHost: localhost:PORT\r\nOrigin: http://LOCALHOST:PORT\r\n",
    ],
)
def test_the_own_machine_is_answered(server: RunningServer, head: str) -> None:
    status, document = ask(server, head)
    assert status == 200
    assert document["models"] == server.document["models"]


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        ("GET /models HTTP/1.1\r\nHost: evil.example\r\n", 421, "'evil.example': ask for 127.0.0.1 or localhost"),
        ("GET /models HTTP/1.1\r\nHost: evil.example:PORT\r\n", 421, "not as 'evil.example:"),
        ("GET /models HTTP/1.1\r\nHost: localhost.evil.example\r\n", 421, "not as"),
        ("GET /models HTTP/1.1\r\nHost: localhost@evil.example\r\n", 421, "not as"),
        ("GET /models HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n", 421, "not as"),
        ("GET /models HTTP/1.1\r\nHost: 10.0.0.1\r\n", 421, "not as"),
        ("GET /models HTTP/1.1\r\nHost:\r\n", 421, "not as"),
        ("GET /models HTTP/1.1\r\n", 421, "one Host header, and this one has 0"),
        ("GET /models HTTP/1.0\r\n", 421, "one Host header, and this one has 0"),
        ("GET /models HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 421, "this one has 2"),
        ("GET /models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 421, "this one has 2"),
        ("GET http://evil.example/models HTTP/1.1\r\nHost: localhost\r\n", 421, "not as 'evil.example'"),
        ("GET http://u@localhost/models HTTP/1.1\r\nHost: localhost\r\n", 421, "not as"),
        ("GET http://127.0.0.1/models HTTP/1.1\r\nHost: localhost\r\n", 421, "differ; name one host"),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\n", 421, "not as"),
        ("OPTIONS /models HTTP/1.1\r\nHost: evil.example\r\n", 421, "not as"),
        (
            "GET /models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n",
            403,
            "no page from 'http://evil",
        ),
        ("GET /models HTTP/1.1\r\nHost: localhost:PORT\r\nOrigin: http://localhost:1\r\n", 403, "no page from"),
        ("GET /models HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n", 403, "no page from 'null'"),
        ("GET /models HTTP/1.1\r\nHost: localhost\r\nOrigin: \r\n", 403, "no page from ''"),
    ],
)
def test_other_names_and_pages_get_one_line(server: RunningServer, head: str, status: int, said: str) -> None:
    found, document = ask(server, head)
    assert found == status
    assert said in str(document["error"])
    assert "\n" not in str(document["error"])


def test_a_page_can_not_have_its_request_computed(server: RunningServer) -> None:
    place = f"{server.url}/models/{server.document['models'][0]['id']}/evaluate"
    for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)):
        reply = httpx.post(place, content=b"x" * 100, headers=headers, timeout=300)
        assert reply.status_code == status
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("words", [("--open",), ("--token-file", "tokens")])
def test_a_server_with_tokens_or_open_to_all_answers_under_any_name(
    fitted: tuple[Path, Fit], tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "tokens").write_text("t" * 32)
    given = [str(tmp_path / word) if word == "tokens" else word for word in words]
    with RunningServer(fitted[0], "--layout", "lift", "--samples", "1", "--workers", "1", *given) as running:
        headers = {"Host": "example.org", "Authorization": "Bearer " + "t" * 32}
        assert httpx.get(f"{running.url}/models", headers=headers, timeout=300).status_code == 200


@pytest.mark.parametrize("name", ["localhost:", "127.0.0.1:65535", "[::1]", "[0:0:0:0:0:0:0:1]:80"])
def test_names_of_this_machine(name: str) -> None:
    assert is_own(name)


@pytest.mark.parametrize(
    "name",
    ["", ":80", "localhost.", "127.1", "0x7f000001", "2130706433", "[::1", "::1", "[::]", "0.0.0.0", "localhost:x"],
)
def test_names_that_may_stand_for_another_machine(name: str) -> None:
    assert not is_own(name)
