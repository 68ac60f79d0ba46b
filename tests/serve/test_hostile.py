"""A hostile server: what it sees of a client depends neither on samples nor on what its replies decrypt to."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from quad4fhe import Fit, InputError
from quad4fhe.errors import Quad4FHEError
from quad4fhe.he import message
from quad4fhe.he.session import Client, ReplyError
from quad4fhe.layouts.forms import Kind
from quad4fhe.layouts.planner import plan
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.chains import chain
from quad4fhe.planning.plan import Plan
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.http import HttpClient
from support.hostile import HostileServer, evaluating, with_residues, zeros
from support.serving import inside, small_fit, until

LAYOUTS = ["batch", "lift"]


@pytest.fixture(scope="module")
def fit() -> Fit:
    return small_fit(3, 6, 1, seed=4)


@pytest.fixture(scope="module", params=LAYOUTS)
def made(request: pytest.FixtureRequest, fit: Fit) -> Plan:
    return plan(fit, samples=4, layout=request.param, precision="fast")


@pytest.fixture(scope="module")
def batch(fit: Fit) -> Plan:
    return plan(fit, samples=2048, layout="batch", precision="fast")


def boxed(made: Plan, low: float, high: float) -> dict[str, Any]:
    """The plan with another box for its first feature."""
    fields = made.to_dict()
    fields["domain"]["low"] = [low, *fields["domain"]["low"][1:]]
    fields["domain"]["high"] = [high, *fields["domain"]["high"][1:]]
    return fields


def halving(made: Plan, query: Callable[[HostileServer], None]) -> tuple[float, list[list[tuple[str, str, int]]]]:
    """24 runs, each with a box that ends in the middle of what is left; a client that sends nothing lies above it."""
    low, high = made.domain.low[0], made.domain.high[0]
    transcripts = []
    for _ in range(24):
        middle = (low + high) / 2
        server = HostileServer(boxed(made, made.domain.low[0], middle))
        server.answer = zeros(Plan.from_dict(server.fields))
        with server:
            query(server)
        transcripts.append(server.seen)
        low, high = (low, middle) if server.posts() else (middle, high)
    return (low + high) / 2, transcripts


def test_a_feature_is_not_recovered_by_halving_the_box(fit: Fit, made: Plan) -> None:
    X = inside(fit, 1)

    def query(server: HostileServer) -> None:
        try:
            with Remote(server.url, model=fit.model_id, layout=made.layout) as remote:
                remote.predict(X)
        except Quad4FHEError:
            pass

    found, transcripts = halving(made, query)
    assert abs(found - X[0, 0]) > 1e-2
    assert all(seen == transcripts[0] for seen in transcripts)
    assert any(method == "POST" for method, _, _ in transcripts[0])


def test_the_same_attack_recovers_it_from_a_client_that_sends_only_what_fits(fit: Fit, batch: Plan) -> None:
    X = inside(fit, 1)

    def query(server: HostileServer) -> None:
        wire = HttpClient(server.url, None, True, 10.0)
        try:
            check_inside(X, Plan.from_dict(server.fields))
            wire.ask("POST", "/evaluate", None, 0, 2**20)
        except Quad4FHEError:
            pass
        finally:
            wire.close()

    def blind(server: HostileServer) -> None:
        server.answer = lambda number, body: (200, b"")
        query(server)

    found, _ = halving(batch, blind)
    assert abs(found - X[0, 0]) < 1e-6


def test_a_sample_outside_the_servers_box_is_reported_after_everything_was_sent(fit: Fit, made: Plan) -> None:
    X = inside(fit, 2 * made.per_request + 1)
    edge = float(made.domain.low[0] + X[:, 0].min()) / 2
    transcripts = []
    for high, error in ((made.domain.high[0], None), (edge, "pin a plan whose hash")):
        server = HostileServer(boxed(made, made.domain.low[0], high))
        server.answer = zeros(Plan.from_dict(server.fields))
        with server, Remote(server.url, model=fit.model_id) as remote:
            if error is None:
                remote.predict(X)
            else:
                with pytest.raises(InputError, match=error):
                    remote.predict(X)
        transcripts.append(server.seen)
    assert transcripts[0] == transcripts[1]
    assert server.posts() == 3


def test_a_pinned_plan_is_not_asked_for_and_refuses_before_anything_is_sent(fit: Fit, made: Plan) -> None:
    X = inside(fit, 2)
    with HostileServer(boxed(made, -1e3, 1e3), zeros(made)) as server, Remote(server.url, plan=made) as remote:
        assert remote.pinned
        X[1, 0] = 2 * made.domain.high[0]
        with pytest.raises(InputError, match=r"outside the box.*X\[1, 0\]"):
            remote.predict(X)
        assert server.seen == []
        assert remote.predict(X, clip=True).clipped == 1
        assert all(path != "plan" for _, path, _ in server.seen)
    for wrong in ({"model": "ab" * 32}, {"layout": "lift" if made.layout == "batch" else "batch"}):
        with pytest.raises(InputError, match="the pinned plan has"):
            Remote("http://127.0.0.1:1", plan=made, **wrong)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_refused_reply_changes_nothing_that_is_sent(fit: Fit, made: Plan, concurrency: int) -> None:
    X = inside(fit, 3 * made.per_request)
    good = zeros(made)

    def noise(number: int, residues: Any) -> Any:
        drawn = np.random.default_rng(0).integers(2**20, size=residues.shape)
        return drawn.astype(residues.dtype) if number == 0 else residues

    def late(number: int, body: bytes) -> tuple[int, bytes]:
        return good(number, body) if number else (200, b"not a reply")

    transcripts = []
    answers = [good, late]
    if made.layout == "batch":  # one output alone has no known sum in layout lift, so noise may pass there
        answers.append(with_residues(made, noise))
    for answer in answers:
        with HostileServer(made.to_dict(), answer) as server, Remote(server.url, model=fit.model_id) as remote:
            if answer is good:
                remote.predict(X, concurrency=concurrency)
            else:
                with pytest.raises(ReplyError):
                    remote.predict(X, concurrency=concurrency)
        transcripts.append(server.seen)
    assert server.posts() == 3
    assert all(seen == transcripts[0] for seen in transcripts)


def test_the_connection_is_closed_before_a_reply_is_decrypted(fit: Fit, batch: Plan, monkeypatch) -> None:
    real, checked = Client.read, []

    def spy(client, *asked):
        until(lambda: server.connections == 0)
        checked.append(server.posts())
        return real(client, *asked)

    monkeypatch.setattr(Client, "read", spy)
    X = inside(fit, batch.per_request + 1)
    with HostileServer(batch.to_dict(), zeros(batch)) as server, Remote(server.url, model=fit.model_id) as remote:
        remote.predict(X)
        remote.predict(X)  # and the next call finds its way again
    assert checked == [2, 2, 4, 4]


def test_replies_that_change_places_are_refused(fit: Fit, batch: Plan) -> None:
    honest = evaluating(fit, batch)
    both, bodies = threading.Barrier(2), {}

    def swapped(number: int, body: bytes) -> tuple[int, bytes]:
        bodies[number] = body
        both.wait(20)
        return honest(number, bodies[1 - number])

    X = inside(fit, batch.per_request + 1)
    with (
        HostileServer(batch.to_dict(), swapped) as server,
        Remote(server.url, model=fit.model_id) as remote,
        pytest.raises(ReplyError, match="another request"),
    ):
        remote.predict(X)


def changed(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        for name, value in changes.items():
            first, _, second = name.partition("_of_")
            (fields[second] if second else fields)[first] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(per_request=1),
        changed(outputs_of_shape=10**9),
        changed(outputs_of_shape=4097),
        changed(outputs_of_shape=4096, per_request=8192, chain=msgspec.to_builtins(chain(16384, (31,) * 12))),
        changed(units_of_shape=10**9),
        changed(samples=10**30),
        changed(x_of_scales=100, w_of_scales=0, v_of_scales=0, bound_of_domain=1e-40),
        changed(x_of_scales=63, w_of_scales=0, v_of_scales=0, bound_of_domain=1e-20),
        changed(high_of_domain=[1e17] * 3),
        changed(high_of_domain=[1.7e308] * 3, low_of_domain=[1.6e308] * 3),
        changed(bound_of_domain=1e-300, v_of_scales=100),
        changed(model_id="../../etc/passwd"),
        changed(primes_of_chain=[12289] * 10**5),
    ],
)
def test_a_plan_that_no_planner_makes_is_refused_whatever_the_samples_are(fit: Fit, batch: Plan, change) -> None:
    fields = copy.deepcopy(batch.to_dict())
    change(fields)
    with HostileServer(fields) as server, pytest.raises(InputError, match="plan"):
        Remote(server.url, model=fit.model_id)
    assert server.posts() == 0


HOSTILE = [0, -1, 1, 2, 3, 100, 2**31, 2**63, 10**30, 0.0, -1.0, 1e-308, 1e308, "", "batch", "lift", None, [], {}]


def leaves(fields: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(fields, dict):
        return [leaf for name, value in fields.items() for leaf in leaves(value, (*path, name))]
    if isinstance(fields, list | tuple) and fields:
        return [path, (*path, 0)]
    return [path]


def test_no_field_of_a_plan_makes_a_client_fail_in_another_way(fit: Fit, made: Plan) -> None:
    """Each number of a plan is replaced by a bad one: it is refused, or the client works with it for any sample."""
    original = made.to_dict()
    worked = 0
    for path in leaves(original):
        for value in HOSTILE:
            fields = copy.deepcopy(original)
            at = fields
            for step in path[:-1]:
                at[step] = list(at[step]) if isinstance(at[step], tuple) else at[step]
                at = at[step]
            at[path[-1]] = value
            try:
                read = Plan.from_dict(fields)
                assert message.size(read, Kind.reply) <= 2**31 + 200
            except InputError:
                continue
            if read.sha256 == made.sha256:
                continue
            client = Client(read)
            for corner in (read.domain.low, read.domain.high):
                _, reply = zeros(read)(0, client.encrypt([corner]))
                with contextlib.suppress(ReplyError):
                    client.read(reply)
            worked += 1
    assert worked >= 5


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_token_does_not_meet_a_proxy_of_the_environment(
    fit: Fit, batch: Plan, name: str, monkeypatch, tmp_path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    with HostileServer(batch.to_dict(), zeros(batch)) as proxy, HostileServer(batch.to_dict(), zeros(batch)) as server:
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with Remote(server.url, model=fit.model_id, token="t" * 32) as remote:
            remote.predict(inside(fit, 1))
        with Remote(server.url, model=fit.model_id) as remote:
            remote.predict(inside(fit, 1))
    assert proxy.seen == []
    assert [headers.get("authorization") for headers in server.headers] == [f"Bearer {'t' * 32}"] * 2 + [None] * 2


def test_a_redirection_is_not_followed(fit: Fit, batch: Plan) -> None:
    with (
        HostileServer(batch.to_dict(), zeros(batch)) as other,
        HostileServer(batch.to_dict(), lambda number, body: (307, other.url.encode())) as server,
        Remote(server.url, model=fit.model_id) as remote,
        pytest.raises(ServiceError, match="307"),
    ):
        remote.predict(inside(fit, 1))
    assert other.seen == []


def test_a_reply_is_not_read_beyond_the_size_the_plan_allows(fit: Fit, batch: Plan) -> None:
    longest = message.size(batch, Kind.reply)
    with (
        HostileServer(batch.to_dict(), lambda number, body: (200, bytes(longest + 1))) as server,
        Remote(server.url, model=fit.model_id) as remote,
        pytest.raises(ServiceError, match=f"more than the {longest} bytes"),
    ):
        remote.predict(inside(fit, 1))


@pytest.mark.parametrize("data", [b"[" * 10**6, b'{"a":' * 10**5, b"\xff", b"9" * 10**6, b"[]"])
def test_json_of_any_depth_is_one_line(fit: Fit, batch: Plan, data: bytes) -> None:
    with HostileServer(data, lambda number, body: (400, data[: 2**16])) as server:
        with pytest.raises((ServiceError, InputError), match="plan"):
            Remote(server.url, model=fit.model_id)
        with Remote(server.url, plan=batch) as remote, pytest.raises(ServiceError, match="no reason given"):
            remote.predict(inside(fit, 1))


def test_what_a_server_says_can_not_control_the_terminal(fit: Fit, batch: Plan) -> None:
    fields = batch.to_dict() | {"layout": "\x1b[2J"}
    with HostileServer(
        fields, lambda number, body: (200, b'{"models": [{"id": "\\u001b[2J"}, {"id": "b"}]}')
    ) as server:
        for arguments in ({"model": fit.model_id}, {}):
            with pytest.raises(Quad4FHEError) as caught:
                Remote(server.url, **arguments)
            assert str(caught.value).isprintable()


def test_samples_that_are_no_numbers_are_refused_before_a_server_hears_of_them(
    fit: Fit, tmp_path: Path, capsys
) -> None:
    from quad4fhe.cli import main

    X = inside(fit, 2)
    X[1, 1] = np.nan
    np.save(tmp_path / "x.npy", X)
    with HostileServer({}) as server:
        assert main(["query", server.url, str(tmp_path / "x.npy")]) == 2
    assert "NaN" in capsys.readouterr().err
    assert server.seen == []


def test_denormal_boxes_do_not_make_encryption_slower_for_some_samples() -> None:
    """Transforms of denormal numbers took three times as long, which told a server the signs of the features."""
    from quad4fhe.he.session import _without_denormals

    Z = np.array([[0.0, 1e-310, -1e-310, 1e-300, 1e-22, -0.5]])
    flushed = _without_denormals(Z, 30)
    assert flushed.tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, -0.5]]
    assert _without_denormals(np.array([[2.0**-60]]), 30)[0, 0] == 2.0**-60
