"""Raw inputs stay at the client: feature parts over HTTP, with every byte that is sent looked at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import Client, Fit, InputError, Plan, Remote, fit, plan
from quad4fhe.cli import main
from quad4fhe.feature_part import FeaturePart
from quad4fhe.serve.http import HttpClient
from support.feature_models import image_model, images, table, table_model, text_model, texts
from support.serving import RunningServer

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")

KINDS = {"images": (image_model, images), "table": (table_model, table), "text": (text_model, texts)}


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, Fit], Path]]:
    folder = tmp_path_factory.mktemp("heads")
    fits = {}
    for name, (model, raw) in KINDS.items():
        fits[name] = fit(model(), raw(120), family="shared")
        fits[name].save(folder / f"{name}.safetensors")
    with RunningServer(
        *(folder / f"{name}.safetensors" for name in fits), "--layout", "batch", "--widen", "1"
    ) as server:
        yield server, fits, folder


class Sent:
    """Keeps every message that an HTTP client sends: method, path, body."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[str, str, bytes]] = []
        real = HttpClient._once

        def spy(wire: Any, method: str, path: str, body: Any, size: int, longest: int) -> Any:
            data = real(wire, method, path, body, size, longest)
            if body is not None:
                body.seek(0)
            self.messages.append((method, path, b"" if body is None else body.read()))
            return data

        monkeypatch.setattr(HttpClient, "_once", spy)


def patterns(values: Any) -> list[bytes]:
    """How values could stand in a message: as text, as float64, or as two neighbours in float32.

    A single float32 has four bytes, and "Turku" five, which random bytes of this number contain by chance.
    """
    flat = np.asarray(values).reshape(-1).tolist()
    if isinstance(flat[0], str):
        return [value.encode() for value in flat]
    real = [value for value in flat if value and not float(value).is_integer()]
    pairs = pairwise(real)
    out = [np.array(pair, dtype=np.float32).tobytes() for pair in pairs]
    return out + [form for value in real for form in (np.float64(value).tobytes(), repr(float(value)).encode())]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_holds_neither_raw_inputs_nor_features(kind: str, hosted: Any, monkeypatch: Any) -> None:
    server, fits, _ = hosted
    made, raw = fits[kind], KINDS[kind][1](12, seed=9)
    sent = Sent(monkeypatch)
    with Remote(server.url, model=kind) as remote:
        pinned = remote.plan
    with Remote(server.url, plan=pinned) as remote:
        answers = remote.predict(raw, clip=True)
    features = made.mlp.inputs(raw)
    assert answers.clipped == 0
    assert (answers.decisions == made.predict(raw)).all()
    assert {(method, path.rpartition("/")[2]) for method, path, body in sent.messages if body} == {("POST", "evaluate")}
    columns = raw.values() if isinstance(raw, dict) else [raw]
    looked_for = [pattern for column in (*columns, features) for pattern in patterns(column) if len(pattern) > 5]
    assert len(looked_for) > 12
    everything = b"".join(path.encode() + body for _, path, body in sent.messages)
    assert len(everything) > 10_000
    assert not [pattern for pattern in looked_for if pattern in everything]


def test_the_server_hands_out_the_part_that_the_plan_names(hosted: Any, monkeypatch: Any) -> None:
    server, fits, _ = hosted
    made = fits["images"]
    with Remote(server.url, model="images", trust=True) as remote:
        assert remote.feature_part is not None
        assert remote.feature_part.graph == made.mlp.feature_part.graph
        pinned = remote.plan
    assert pinned.feature_part == made.mlp.feature_part.sha256
    other = plan(fits["text"], samples=4)
    assert other.feature_part != pinned.feature_part
    with pytest.raises(InputError, match="the given feature part has SHA-256"):
        Remote(server.url, plan=pinned, features=fits["text"].mlp.feature_part)
    forged = made.mlp.feature_part.graph + b"\x00"
    real = HttpClient._once
    monkeypatch.setattr(HttpClient, "_once", lambda *args: forged if args[2].endswith("features") else real(*args))
    with pytest.raises(InputError, match=r"the server's feature part has SHA-256.*not used"):
        Remote(server.url, plan=pinned)


def test_a_part_that_only_the_server_vouches_for_is_not_run(hosted: Any, tmp_path: Path, capsys: Any) -> None:
    """Nor fetched: the plan alone is, so that a client can pin it."""
    server, fits, _ = hosted
    raw = table(4, seed=6)
    with Remote(server.url, model="table") as remote, pytest.raises(InputError, match=r"this server chose.*trust=True"):
        remote.predict(raw)
    for known in ({"trust": True}, {"features": fits["table"].mlp.feature_part}):
        with Remote(server.url, model="table", **known) as remote:
            assert (remote.predict(raw).decisions == fits["table"].predict(raw)).all()
    names = list(raw)
    rows = [",".join(names), *(",".join(str(raw[name][i]) for name in names) for i in range(4))]
    (tmp_path / "raw.csv").write_text("\n".join(rows) + "\n")
    words = ["query", server.url, str(tmp_path / "raw.csv"), "--model", "table"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"quad4fhe models {server.url} --save-plan plan.json" in said
    assert "add --trust" in said
    assert main([*words, "--trust"]) == 0
    np.savez(tmp_path / "raw.npz", **raw)  # not a matrix: without the part nothing can be read
    assert main(["query", server.url, str(tmp_path / "raw.npz"), "--model", "table", "--trust"]) == 0


def test_query_takes_raw_files_with_a_pinned_plan(hosted: Any, tmp_path: Path, capsys: Any) -> None:
    server, fits, _ = hosted
    raw = images(6, seed=4)
    np.savez(tmp_path / "raw.npz", X=raw)
    assert main(["models", server.url, "--save-plan", str(tmp_path / "plan.json"), "--model", "images"]) == 0
    words = ["query", server.url, str(tmp_path / "raw.npz"), "-o", str(tmp_path / "out.csv"), "--clip"]
    assert main([*words, "--plan", str(tmp_path / "plan.json")]) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == fits["images"].predict(raw).tolist()
    capsys.readouterr()
    assert main([*words, "--model", "images"]) == 2
    assert "pin its plan first: quad4fhe models" in capsys.readouterr().err


def test_requests_in_a_folder_take_the_part_from_a_file(hosted: Any, tmp_path: Path, capsys: Any) -> None:
    _, fits, folder = hosted
    raw, fit_file = table(5, seed=2), str(folder / "table.safetensors")
    names = list(raw)
    rows = [",".join(names), *(",".join(str(raw[name][i]) for name in names) for i in range(5))]
    (tmp_path / "raw.csv").write_text("\n".join(rows) + "\n")
    plan(fits["table"], samples=8, layout="batch", widen=1.0).save(tmp_path / "plan.json")
    part, out = tmp_path / "part.onnx", tmp_path / "out.csv"
    ask = ["query", str(tmp_path / "asked"), str(tmp_path / "raw.csv")]
    assert main([*ask, "--plan", str(tmp_path / "plan.json")]) == 2
    assert "quad4fhe export FIT --features part.onnx" in capsys.readouterr().err
    assert main(["export", fit_file, "--features", str(part)]) == 0
    assert FeaturePart.load(part).sha256 == fits["table"].mlp.feature_part.sha256
    assert main([*ask, "--plan", str(tmp_path / "plan.json"), "--features", str(part)]) == 0
    assert (
        main(
            ["score", fit_file, str(tmp_path / "asked"), str(tmp_path / "said"), "--plan", str(tmp_path / "plan.json")]
        )
        == 0
    )
    assert main([*ask, "--replies", str(tmp_path / "said"), "--features", str(part), "-o", str(out)]) == 0
    found = [line.split(",")[0] for line in out.read_text().splitlines()[1:]]
    assert [int(each) for each in found] == fits["table"].predict(raw).tolist()


def test_a_client_encrypts_features_and_refuses_raw_inputs(hosted: Any) -> None:
    _, fits, _ = hosted
    made = fits["images"]
    client = Client(plan(made, samples=4, layout="batch", widen=1.0))
    raw = images(3, seed=8)
    assert client.encrypt(made.mlp.inputs(raw))
    with pytest.raises(InputError, match=r"pass fit\.mlp\.inputs\(X\)"):
        client.encrypt(np.asarray(made.mlp.inputs(raw)))


def test_a_plan_without_a_feature_part_keeps_its_hash(hosted: Any) -> None:
    _, fits, _ = hosted
    made = plan(fits["images"], samples=4, layout="batch")
    fields = made.to_dict()
    fields["feature_part"] = None
    without = Plan.from_dict(fields)
    del fields["feature_part"]
    assert Plan.from_dict(fields).sha256 == without.sha256 != made.sha256
    with pytest.raises(InputError, match="feature part's hash"):
        Plan.from_dict(made.to_dict() | {"feature_part": "x"})
