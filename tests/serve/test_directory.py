"""Models by name: what a server calls them, what a client may ask for, and what a hostile list can do."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest

from quad4fhe import Fit, Plan, plan
from quad4fhe.cli import main
from quad4fhe.errors import InputError
from quad4fhe.serve.client import Remote, ServiceError
from quad4fhe.serve.directory import Entry, find, name_from
from support.serving import RunningServer, inside, small_fit

TOKEN = "t" * 32
IDS = ("ab12" + "0" * 60, "ab34" + "0" * 60, "cd56" + "0" * 60)
ENTRIES = [Entry(id, name, 2, 1, ["batch"]) for id, name in zip(IDS, ("churn", "ab34", "risk"), strict=True)]


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("fits")
    files = [folder / "Churn model.safetensors", folder / "risk.safetensors"]
    for seed, file in enumerate(files):
        small_fit(2, 4, 2, seed=seed).save(file)
    (folder / "tokens").write_text(TOKEN + "\n")
    (folder / "other").write_text("u" * 32 + "\n")
    np.save(folder / "x.npy", inside(small_fit(2, 4, 2, seed=1), 3))
    return files


@pytest.fixture(scope="module")
def server(fits: list[Path]) -> Iterator[RunningServer]:
    words = ("--layout", "batch", "--precision", "fast", "--workers", "1", "--token-file", fits[0].parent / "tokens")
    with RunningServer(*fits, *words) as running:
        yield running


def test_a_client_may_use_the_name_or_the_first_digits(server: RunningServer) -> None:
    listed = {one["name"]: one["id"] for one in server.document["models"]}
    assert set(listed) == {"Churn-model", "risk"}
    for name, whole in listed.items():
        for wanted in (name, whole, whole[:8]):
            with Remote(server.url, model=wanted, token=TOKEN) as remote:
                assert remote.plan.model_id == whole


def test_models_lists_them(server: RunningServer, fits: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["models", server.url, "--token-file", str(fits[0].parent / "tokens")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Churn-model" in out
    assert "2 features, 2 classes" in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == server.document["models"]


def test_query_takes_a_name_and_says_which_names_there_are(
    server: RunningServer, fits: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["query", server.url, str(fits[0].parent / "x.npy"), "--token-file", str(fits[0].parent / "tokens")]
    assert main([*words, "--model", "risk"]) == 0
    capsys.readouterr()
    assert main([*words, "--model", "fraud"]) == 2
    assert "name one with --model: Churn-model (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"), [((), "wants a token; add --token-file"), (("--token-file",), "does not accept this token")]
)
def test_a_missing_token_and_a_wrong_one_are_told_apart(
    server: RunningServer, fits: list[Path], capsys: pytest.CaptureFixture[str], given: tuple[str, ...], said: str
) -> None:
    words = ["models", server.url, *given, *([str(fits[0].parent / "other")] if given else [])]
    assert main(words) != 0
    assert said in capsys.readouterr().err
    headers = {"Authorization": f"Bearer {'u' * 32}"} if given else {}
    answer = httpx.get(f"{server.url}/models", headers=headers)
    assert answer.status_code == 401
    assert ("does not know this token" if given else "is needed") in answer.json()["error"]


def test_https_to_a_server_without_tls_says_so(server: RunningServer) -> None:
    with pytest.raises(ServiceError, match=f"does not speak TLS; try {server.url}"):
        Remote(server.url.replace("http", "https"), token=TOKEN)


@pytest.mark.parametrize(
    ("wanted", "found"), [("churn", 0), ("ab34", 1), ("AB12", 0), ("cd56", 2), (IDS[1], 1), ("ab120000", 0)]
)
def test_a_name_goes_before_an_id(wanted: str, found: int) -> None:
    assert find(ENTRIES, wanted) is ENTRIES[found]


@pytest.mark.parametrize("wanted", ["ab", "ab1", "", "zz", None, "../x"])
def test_what_is_not_one_model_is_refused(wanted: str | None) -> None:
    with pytest.raises(InputError, match="--model"):
        find(ENTRIES, wanted)


@pytest.mark.parametrize("name", ["", "a b", "\x1b[2J", "a\n", "-x", "a" * 65, "../x"])
def test_a_name_that_could_harm_a_terminal_is_not_read(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"id": IDS[0], "name": name, "features": 1, "outputs": 1, "layouts": []}, Entry)


@pytest.mark.parametrize(
    ("stem", "name"), [("fit", "fit"), ("my fit (2)", "my-fit-2-"), ("..", "model"), ("é", "model")]
)
def test_names_come_from_files(stem: str, name: str) -> None:
    assert name_from(stem) == name


@pytest.mark.parametrize(
    ("names", "said"), [(["x"], "one name for each"), (["x", "x"], "two models"), (["x", "a b"], "wanted up to 64")]
)
def test_bad_names_are_one_line(
    fits: list[Path], names: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for name in names for word in ("--name", name)]
    assert main(["serve", *map(str, fits), "--layout", "batch", "--precision", "fast", "--port", "0", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with plans for a model that the server does not have, and for another plan of one that it has."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(server: RunningServer, fits: list[Path], *words: str) -> int:
    return main(["query", server.url, *words, "--token-file", str(fits[0].parent / "tokens")])


def test_a_plan_that_the_server_has_no_more_leads_to_the_command_for_one_that_it_has(
    server: RunningServer, fits: list[Path], own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = Fit.load(fits[1])
    plan(known, samples=9, layout="batch", precision="fast", widen=3.0).save(own / "stale.json")
    np.save("x.npy", inside(known, 3) / 8)
    assert ask(server, fits, "x.npy", "--plan", "stale.json") == 2
    said = capsys.readouterr().err
    assert "the server has this model, 'risk', with other plans: batch" in said
    command = said.strip().partition("quad4fhe models ")[2]
    assert f"--token-file {fits[0].parent / 'tokens'}" in command
    assert main(["models", *shlex.split(command)]) == 0  # the line works when pasted
    assert Plan.load(own / "plan.json").model_id == known.model_id
    assert ask(server, fits, "x.npy", "--plan", "plan.json") == 0


def test_a_plan_of_another_model_is_told_what_the_server_has(
    server: RunningServer, fits: list[Path], own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = plan(small_fit(2, 4, 2, seed=7), samples=9, layout="batch", precision="fast")
    stranger.save(own / "stranger.json")
    np.save("x.npy", np.zeros((3, 2)))
    np.save("wide.npy", np.zeros((3, 5)))
    assert ask(server, fits, "x.npy", "--plan", "stranger.json", "--clip") == 2
    said = capsys.readouterr().err
    assert "the server has other models: Churn-model (" in said
    command = said.strip().partition("choose one: quad4fhe ")[2]
    assert main(shlex.split(command)) == 0
    capsys.readouterr()
    assert ask(server, fits, "wide.npy", "--plan", "stranger.json") == 2
    said = capsys.readouterr().err
    assert "wide.npy has 5 columns, but the plan stranger.json is for model" in said
    assert "which takes 2 features" in said
    assert ask(server, fits, "x.npy", "--plan", "stranger.json", "--model", "risk") == 2
    assert f"has model {stranger.model_id[:12]}, not 'risk'; leave --model out" in capsys.readouterr().err
