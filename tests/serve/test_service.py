from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from quad4fhe import Fit, InputError
from quad4fhe.he import message
from quad4fhe.he.predict import predict_encrypted
from quad4fhe.he.session import Client
from quad4fhe.layouts.forms import Kind
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.http import HttpClient
from support.serving import RunningServer, small_fit

LAYOUTS = ["batch", "lift"]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Fit]:
    folder = tmp_path_factory.mktemp("fits")
    out = {}
    for name, shape in (("two", (3, 8, 1)), ("many", (5, 12, 4))):
        out[folder / f"{name}.safetensors"] = made = small_fit(*shape, seed=len(out))
        made.save(folder / f"{name}.safetensors")
    return out


@pytest.fixture(scope="module")
def server(fits: dict[Path, Fit]) -> Iterator[RunningServer]:
    with RunningServer(*fits, "--precision", "fast", "--samples", "4") as running:
        yield running
        assert "Traceback" not in "\n".join(running.log)


def inside(fit: Fit, n: int, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(*fit.box, size=(n, fit.model.features))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", [0, 1])
def test_answers_over_http_are_the_local_encrypted_ones(server, fits, which: int, layout) -> None:
    fit = list(fits.values())[which]
    X = inside(fit, 40)
    with Remote(server.url, model=fit.model_id, layout=layout) as remote:
        found = remote.predict(X)
        local = predict_encrypted(fit, remote.plan, X)
    assert (found.decisions == local.decisions).all()
    assert (found.decisions == fit.model.decide(X)).all()
    assert np.abs(found.logits - local.logits).max() <= 2 * remote.plan.error.bound
    assert found.requests == -(-40 // remote.plan.per_request)
    assert found.upload_bytes == found.requests * message.size(remote.plan, Kind.request)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_requests_in_flight_together_come_back_in_order(server, fits, concurrency: int) -> None:
    fit = list(fits.values())[1]
    with Remote(server.url, model=fit.model_id, layout="lift") as remote:
        X = inside(fit, 6 * remote.plan.per_request + 1)
        done = []
        found = remote.predict(X, concurrency=concurrency, progress=lambda *args: done.append(args))
    assert (found.decisions == fit.model.decide(X)).all()
    assert found.requests == 7
    assert done == [(what, n, 7) for what in ("encrypted inference", "decrypt") for n in range(1, 8)]


def test_two_requests_are_in_flight_by_default_and_one_that_fails_ends_them_all(server, fits, monkeypatch) -> None:
    fit = next(iter(fits.values()))
    real, lock, counts = Remote._ask, threading.Lock(), {"now": 0, "most": 0, "all": 0}
    begun = [threading.Event() for _ in range(8)]
    over = threading.Event()

    def paired(remote, request):
        """Each waits until the next one has begun, so two are always in flight; the fourth fails."""
        with lock:
            number = counts["all"]
            counts["all"] += 1
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
            begun[number].set()
        if number >= 4:
            over.wait(60)  # a request beyond the one that failed is not answered before that is known
        else:
            assert number == 3 or begun[number + 1].wait(60)
        with lock:
            counts["now"] -= 1
        if number == 3:
            raise ServiceError("broken")
        return real(remote, request)

    monkeypatch.setattr(Remote, "_ask", paired)
    with Remote(server.url, model=fit.model_id, layout="lift") as remote:
        X = inside(fit, 6 * remote.plan.per_request)
        with pytest.raises(ServiceError, match="broken"):
            remote.predict(X)
        over.set()
        assert counts["most"] == 2
        assert counts["all"] <= 5
        with pytest.raises(InputError, match="concurrency is 0, wanted 1 or more"):
            remote.predict(X, concurrency=0)


class Capture:
    """Keeps what an HTTP client sent and got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        self.got: list[bytes] = []
        real = HttpClient._once

        def spy(wire, method, path, body, size, longest):
            data = real(wire, method, path, body, size, longest)
            if path.endswith("evaluate"):
                body.seek(0)
                self.sent.append(body.read())
                self.got.append(data)
            return data

        monkeypatch.setattr(HttpClient, "_once", spy)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_that_travels_holds_a_feature_or_repeats(server, fits, layout, monkeypatch) -> None:
    fit = next(iter(fits.values()))
    X = np.repeat(inside(fit, 1), 2, axis=0)
    capture = Capture(monkeypatch)
    with Remote(server.url, model=fit.model_id, layout=layout) as remote:
        made = remote.plan
    with Remote(server.url, plan=made) as remote:
        for _ in range(2):
            remote.predict(X)
    scale = 2.0**remote.plan.scales.x
    values = np.concatenate([X[0], X[0] - remote.plan.shift])
    patterns = [np.float64(value).tobytes() for value in values if value]
    patterns += [abs(round(value * scale)).to_bytes(8, "little") for value in values if abs(value * scale) > 2**12]
    assert len(patterns) > len(X[0])
    head = message.HEADER_BYTES
    for bodies in (capture.sent, capture.got):
        assert len(bodies) == 2
        assert not any(pattern in body for body in bodies for pattern in patterns)
        one, two = (
            np.frombuffer(body[head : head + (len(body) - head - 32) // 4 * 4], dtype=np.uint32) for body in bodies
        )
        assert np.mean(one == two) < 0.01
        for body in (one, two):
            # Ciphertexts look random: hardly a word comes twice.
            assert np.unique(body).size > 0.9 * min(body.size, 2**16)


def test_the_catalogue_health_and_metrics_answer(server, fits) -> None:
    models = httpx.get(f"{server.url}/models").json()["models"]
    assert {one["id"] for one in models} == {fit.model_id for fit in fits.values()}
    assert all(one["layouts"] == LAYOUTS for one in models)
    assert server.healthy()["workers"] == 2
    assert "quad4fhe_requests_total" in httpx.get(f"{server.url}/metrics").text
    assert httpx.get(f"{server.url}/openapi.json").json()["openapi"].startswith("3.")


def test_another_model_than_the_pinned_one_is_not_asked(server) -> None:
    with pytest.raises(ServiceError, match="404"):
        Remote(server.url, model="ab" * 32)
    with pytest.raises(InputError, match=r"none of the server's models; name one with --model: \w+ \("):
        Remote(server.url, model="../../x")
    with pytest.raises(InputError, match="2 models"):
        Remote(server.url)


def test_a_server_that_is_not_there_is_one_line_in_bounded_time() -> None:
    with pytest.raises(ServiceError, match=r"can't be reached.*gave up"):
        Remote("http://127.0.0.1:1", model="ab" * 32, patience=1.0)
    with pytest.raises(InputError, match="address of a server"):
        Remote("ftp://x", model="ab" * 32)


def test_a_token_does_not_travel_in_the_clear() -> None:
    with pytest.raises(InputError, match="use https"):
        Remote("http://192.0.2.1:8443", model="ab" * 32, token="t" * 32)


def post(server: RunningServer, path: str, body: bytes, **headers: str) -> httpx.Response:
    wanted = {"content-type": "application/octet-stream"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return httpx.post(server.url + path, content=body, headers=wanted, timeout=300)


def encrypted(server: RunningServer, fit: Fit, layout: str) -> tuple[str, Plan, bytes]:
    with Remote(server.url, model=fit.model_id, layout=layout) as remote:
        plan = remote.plan
    return f"/models/{fit.model_id}/evaluate", plan, Client(plan).encrypt(inside(fit, 1))


def test_every_wrong_body_has_its_own_answer(server, fits) -> None:
    one, other = fits.values()
    path, _, data = encrypted(server, one, "batch")
    assert post(server, path, data).status_code == 200
    assert post(server, path, b"").status_code == 400
    assert post(server, path, data[:-1]).status_code == 400
    assert post(server, path, data[:-1] + bytes([data[-1] ^ 1])).status_code == 400
    assert post(server, path, b"x" * 1000).status_code == 400
    largest = max(message.size(encrypted(server, one, name)[1], Kind.request) for name in LAYOUTS)
    assert post(server, path, bytes(largest + 1)).status_code == 413
    assert post(server, path, data, content_type="text/plain").status_code == 415
    assert post(server, path, data, content_encoding="gzip").status_code == 415
    assert post(server, f"/models/{other.model_id}/evaluate", data).status_code in (400, 413)
    assert post(server, "/models/nothing/evaluate", data).status_code == 404
    answer = post(server, path, data[:200])
    assert set(answer.json()) == {"error"}
    reply = b"".join([data[:10], b"\x02", data[11:]])
    assert "is a reply" in post(server, path, reply).json()["error"]
    assert server.healthy() == {"workers": 2, "busy": 0}


def test_a_chunked_body_that_never_ends_is_cut_off(server, fits) -> None:
    path, _, data = encrypted(server, next(iter(fits.values())), "batch")

    def forever() -> Iterator[bytes]:
        yield data
        for _ in range(10_000):
            yield bytes(2**16)

    try:
        status = httpx.post(
            server.url + path, content=forever(), headers={"content-type": "application/octet-stream"}, timeout=30
        ).status_code
    except httpx.TransportError:
        status = 411
    assert status == 411
    assert server.healthy()["busy"] == 0


def test_a_replayed_request_is_answered_again_and_the_client_reads_one_answer(server, fits) -> None:
    path, _, data = encrypted(server, next(iter(fits.values())), "batch")
    answers = [post(server, path, data) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]


def test_the_log_holds_no_id_and_no_payload(server, fits) -> None:
    fit = next(iter(fits.values()))
    path, _, data = encrypted(server, fit, "batch")
    post(server, path, data)
    text = "\n".join(server.log)
    assert "POST /models/{id}/evaluate 200" in text
    assert fit.model_id not in text
    assert data[-32:].hex() not in text


def test_a_stopped_server_leaves_no_file_and_no_worker(fits, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with RunningServer(*list(fits)[:1], "--layout", "batch", "--workers", "1", "--precision", "fast") as running:
        assert len(list(tmp_path.glob("quad4fhe-*"))) == 1
        assert oct(next(tmp_path.glob("quad4fhe-*")).stat().st_mode & 0o777) == "0o700"
        workers = running.workers()
        assert running.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    assert not list(tmp_path.glob("quad4fhe-*"))
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_the_limit_on_unread_bytes_is_the_one_uvicorn_goes_by() -> None:
    httptools_impl = pytest.importorskip("uvicorn.protocols.http.httptools_impl")
    assert "HIGH_WATER_LIMIT" in httptools_impl.HttpToolsProtocol.on_body.__code__.co_names
