"""The OpenAPI description against the real server, by schemathesis."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from support.serving import RunningServer, small_fit

TOKEN = "t" * 32


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("fits")
    small_fit(2, 4, 2, seed=2).save(folder / "fit.safetensors")
    (folder / "tokens").write_text(TOKEN)
    words = (folder / "fit.safetensors", "--precision", "fast", "--samples", "4", "--workers", "1")
    with RunningServer(*words, "--token-file", folder / "tokens") as server:
        yield server
        assert "Traceback" not in "\n".join(server.log)


@pytest.fixture(scope="module")
def described(running: RunningServer) -> schemathesis.BaseSchema:
    document = httpx.get(f"{running.url}/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=running.url)
    return schema


OPERATIONS = [
    ("/health", "GET"),
    ("/metrics", "GET"),
    ("/models", "GET"),
    ("/models/{model_id}/plan", "GET"),
    ("/models/{model_id}/features", "GET"),
    ("/models/{model_id}/evaluate", "POST"),
]


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_schemathesis_finds_nothing(running, described, path: str, method: str, mode: GenerationMode) -> None:
    strategy = described[path][method].as_strategy(generation_mode=mode)
    model = running.document["models"][0]["id"]
    # Octets that fit the description are hardly ever a container, and are refused with 400 as they should be.
    hopeful = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")

    @settings(max_examples=10, suppress_health_check=list(HealthCheck), database=None)
    @given(strategy, st.booleans())
    def run(case: schemathesis.Case, real: bool) -> None:
        if real and "model_id" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["model_id"] = model  # a random id names no model
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, excluded_checks=[hopeful])

    try:
        run()
    except Unsatisfiable:
        pytest.skip(f"{method} {path} has nothing that could be wrong in it")


def test_the_real_model_answers_as_described(running: RunningServer, described: schemathesis.BaseSchema) -> None:
    model = running.document["models"][0]["id"]
    headers = {"authorization": f"Bearer {TOKEN}"}
    for method, path, status in (
        ("GET", f"/models/{model}/plan", 200),
        ("GET", f"/models/{model}/plan?layout=none", 404),
        ("POST", f"/models/{model}/evaluate", 415),
        ("DELETE", f"/models/{model}/evaluate", 405),
        ("GET", "/nothing", 404),
    ):
        answer = httpx.request(method, running.url + path, headers=headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"


def test_every_route_is_described_and_tried(described: schemathesis.BaseSchema) -> None:
    found = {(one.ok().path, one.ok().method.upper()) for one in described.get_all_operations()}
    assert found == set(OPERATIONS)
