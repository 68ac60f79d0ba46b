"""A feature part from a stranger: what is refused, and what its process can't do even where nothing is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import InputError, feature_checks, feature_child, feature_process
from quad4fhe.feature_part import FeaturePart

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT
ATTRIBUTE = onnx.AttributeProto

WIDTH = 64  # onnxruntime looks at smaller tensors earlier, and stops at those that are elsewhere
SECRET = np.arange(1, WIDTH + 1, dtype=np.float32) / 7
X = helper.make_tensor_value_info("x", FLOAT, ["n", WIDTH])
Y = helper.make_tensor_value_info("y", FLOAT, None)
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX limits")
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def outside(place: str, name: str = "w", location: int = onnx.TensorProto.EXTERNAL) -> Any:
    tensor = onnx.TensorProto(name=name, data_type=FLOAT, dims=[WIDTH], data_location=location)
    for key, value in (("location", place), ("offset", "0"), ("length", str(4 * WIDTH))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(**values: Any) -> Any:
    return helper.make_node("Constant", [], ["w"], **values)


def model_of(nodes: list[Any], **more: Any) -> Any:
    graph = helper.make_graph([*nodes, helper.make_node("Max", ["x", "w"], ["y"])], "g", [X], [Y], **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sparse(values: Any) -> Any:
    indices = helper.make_tensor("i", onnx.TensorProto.INT64, [WIDTH], range(WIDTH))
    return onnx.SparseTensorProto(values=values, indices=indices, dims=[WIDTH])


def branches(node: Any, **more: Any) -> Any:
    """The node in a branch of If, which is taken for every input."""
    output = helper.make_tensor_value_info("w", FLOAT, None)
    taken = helper.make_graph([node] if node else [], "branch", [], [output], **more)
    always = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True]))
    return model_of([always, helper.make_node("If", ["c"], ["w"], then_branch=taken, else_branch=taken)])


def function(place: str) -> Any:
    model = model_of([helper.make_node("Read", [], ["w"], domain="own")])
    opset = helper.make_opsetid("", 17)
    model.functions.append(helper.make_function("own", "Read", [], ["w"], [constant(value=outside(place))], [opset]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    return model


def trained(place: str) -> Any:
    model = model_of([constant(value_floats=[0.0] * WIDTH)])
    model.training_info.add().initialization.initializer.append(outside(place))
    return model


def listed(name: str, kind: Any, place: str) -> Any:
    """An attribute that lists tensors, on an operation that does not read it."""
    model = model_of([constant(value_floats=[0.0] * WIDTH)])
    attribute = model.graph.node[-1].attribute.add(name=name, type=kind)
    getattr(attribute, name).append(outside(place) if name == "tensors" else sparse(outside(place)))
    return model


KINDS: dict[str, Any] = {
    "initializer": lambda place: model_of([], initializer=[outside(place)]),
    "Constant": lambda place: model_of([constant(value=outside(place))]),
    "sparse initializer": lambda place: model_of([], sparse_initializer=[sparse(outside(place))]),
    "sparse Constant": lambda place: model_of([constant(sparse_value=sparse(outside(place, "")))]),
    "branch": lambda place: branches(constant(value=outside(place))),
    "branch's initializer": lambda place: branches(None, initializer=[outside(place)]),
    "function": function,
    "training": trained,
    "tensors": lambda place: listed("tensors", ATTRIBUTE.TENSORS, place),
    "sparse tensors": lambda place: listed("sparse_tensors", ATTRIBUTE.SPARSE_TENSORS, place),
    "no location": lambda place: model_of([], initializer=[outside(place, location=0)]),
}
READ_WITHOUT_ISOLATION = {"initializer", "Constant", "sparse initializer", "sparse Constant", "branch", "function"}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every graph pass, as if the list of what is refused had a hole."""
    monkeypatch.setattr(feature_checks, "check_graph", lambda graph: None)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_outside_the_file_are_refused_wherever_they_stand(kind: str) -> None:
    with pytest.raises(InputError, match=r"another file|functions of its own|training graph") as caught:
        FeaturePart(KINDS[kind]("secret").SerializeToString())(np.zeros((1, WIDTH)))
    assert "\n" not in str(caught.value)


def test_what_protobuf_would_hide_is_refused_too() -> None:
    """A location of 65 bits is cut to 1 when the file is parsed; a field that is not known is skipped."""
    plain = model_of([], initializer=[outside("secret", location=0)]).SerializeToString()
    assert plain.count(b"\x70\x00") == 1
    cut = onnx.TensorProto(name="w", data_type=FLOAT, dims=[4]).SerializeToString() + b"\x70\x81\x80\x80\x80\x10"
    assert onnx.TensorProto.FromString(cut).data_location == onnx.TensorProto.EXTERNAL
    part = onnx.ModelProto(ir_version=8).SerializeToString()
    inside = b"\x2a" + bytes([len(cut)]) + cut  # the field `initializer` of a graph
    with pytest.raises(InputError, match="another file"):
        feature_checks.check_graph(part + b"\x3a" + bytes([len(inside)]) + inside)
    for extra, words in ((b"\xf8\x7f\x01", "does not know"), (b"\x0b\x0c", "cut short"), (b"\x3a\x7f", "cut short")):
        with pytest.raises(InputError, match=words):
            feature_checks.check_graph(part + extra)


def test_graphs_that_would_fill_the_memory_are_refused_before_they_are_parsed(monkeypatch: Any) -> None:
    monkeypatch.setattr(feature_checks, "MOST_FIELDS", 1000)
    nodes = b"\x0a\x00" * 2000
    size = len(nodes)
    with pytest.raises(InputError, match="more than 1000 fields"):
        feature_checks.check_graph(b"\x3a" + bytes([size & 127 | 128, size >> 7]) + nodes)
    kind = onnx.TypeProto()
    inner = kind
    for _ in range(40):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = FLOAT
    model = model_of([constant(value_floats=[0.0] * WIDTH)])
    model.graph.value_info.add(name="deep").type.CopyFrom(kind)
    with pytest.raises(InputError, match="deep"):
        feature_checks.check_graph(model.SerializeToString())


def test_unknown_operations_are_refused_in_one_line() -> None:
    model = model_of([helper.make_node("ReadFile", [], ["w"])])
    with pytest.raises(InputError, match="can't run the feature part") as caught:
        FeaturePart(model.SerializeToString())(np.zeros((1, WIDTH)))
    assert "\n" not in str(caught.value)


# --- with the check switched off --------------------------------------------------------------------------------

_ATTEMPTS = r"""
import json, os, socket, sys
import numpy as np
from quad4fhe import feature_child
feature_child.warm_up()
graphs, how, places = json.loads(sys.stdin.read())
layers = [] if how == "free" else feature_child.confine(2**32, landlock=how == "landlock")
got = []
def attempt(name, action):
    try:
        action()
        got.append(name)
    except Exception:
        pass
for name, graph in graphs:
    def read():
        out = feature_child.session_of(bytes.fromhex(graph)).run(None, {"x": np.zeros((1, 64), np.float32)})
        assert np.asarray(out).any()
    attempt(name, read)
for place in places:
    attempt(place, lambda: os.close(os.open(place, os.O_RDONLY)))
attempt("list", lambda: os.listdir("."))
attempt("write", lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY)))
attempt("connect", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close())
attempt("exec", lambda: os.spawnl(os.P_WAIT, sys.executable, "python", "-c", "pass") == 0 or 1 / 0)
os.write(2, b"\n" + json.dumps([layers, got]).encode())
"""


def attempts(folder: Path, how: str) -> tuple[list[str], set[str]]:
    """What a process in a folder with secrets can still do, with onnxruntime's own checks as the only others."""
    graphs = [(kind, KINDS[kind]("secret").SerializeToString().hex()) for kind in sorted(READ_WITHOUT_ISOLATION)]
    places = ["secret", str(folder / "secret"), str(folder / "home" / "secret")]
    own = {"HOME": str(folder / "home"), "PYTHONPATH": os.pathsep.join(sys.path), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _ATTEMPTS],
        input=json.dumps([graphs, how, places]),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | own,
    )
    assert done.returncode == 0, done.stderr
    layers, got = json.loads(done.stderr.splitlines()[-1])
    return layers, set(got)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    for place in (tmp_path, tmp_path / "home"):
        (place / "secret").write_bytes(SECRET.tobytes())
    return tmp_path


def test_without_isolation_these_graphs_do_read(secrets: Path) -> None:
    """Otherwise the next test would show nothing."""
    _, got = attempts(secrets, "free")
    assert got >= READ_WITHOUT_ISOLATION | {"secret", "list", "write"}


@posix
@pytest.mark.parametrize("how", ["landlock", "limits alone"])
def test_a_confined_process_reads_and_reaches_nothing(secrets: Path, how: str) -> None:
    """Each layer is enough by itself: kernels without Landlock, and macOS, have the limits alone."""
    layers, got = attempts(secrets, how)
    assert got == set()
    assert {"limit NOFILE", "limit FSIZE", "limit CORE", "no files"} <= set(layers)
    if how == "limits alone":
        assert "landlock" not in layers


@pytest.mark.parametrize("kind", sorted(READ_WITHOUT_ISOLATION))
def test_an_unchecked_part_reads_no_secret(unchecked: None, secrets: Path, kind: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(secrets)
    monkeypatch.setenv("HOME", str(secrets / "home"))
    with pytest.raises(InputError, match="can't run the feature part"):
        FeaturePart(KINDS[kind]("secret").SerializeToString())(np.zeros((1, WIDTH)))


@pytest.mark.parametrize("place", ["home/secret", "~/secret", "absolute", "/proc/self/environ"])
def test_no_way_of_naming_a_file_helps(unchecked: None, secrets: Path, place: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(secrets)
    place = str(secrets / "secret") if place == "absolute" else place
    with pytest.raises(InputError, match="can't run the feature part"):
        FeaturePart(KINDS["Constant"](place).SerializeToString())(np.zeros((1, WIDTH)))


def expanding(products: int) -> FeaturePart:
    """A graph that fills a square as wide as its input says, and multiplies it by itself again and again."""
    nodes = [
        helper.make_node("Cast", ["x"], ["side"], to=onnx.TensorProto.INT64),
        helper.make_node("Concat", ["side", "side"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(products)),
        helper.make_node("ReduceSum", [f"m{products}"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "one"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", FLOAT, [None])
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "g", [x], [Y], [one])
    opset = [helper.make_opsetid("", 17)]
    return FeaturePart(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


@posix
def test_a_part_that_runs_too_long_is_ended_and_the_next_call_runs_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(feature_process, "CALL", 1)
    monkeypatch.setattr(feature_process, "ROW", 0)
    part = expanding(200)
    assert len(part.graph) < 10_000
    assert part([2.0]).shape == (1, 1)
    started = time.process_time()
    with pytest.raises(InputError, match=r"was ended: it may use 1 seconds of processor time"):
        part([2000.0])
    assert time.process_time() - started < 1  # of this process, which only waits
    assert part([2.0]).shape == (1, 1)


@posix
def test_a_part_that_makes_no_progress_is_ended(monkeypatch: Any) -> None:
    part = expanding(1)
    assert part([2.0]).shape == (1, 1)
    monkeypatch.setattr(feature_process, "WAITING", 0.02)
    os.kill(part._process._started()._process.pid, signal.SIGSTOP)
    with pytest.raises(InputError, match="was ended"):
        part([2.0])


@linux
def test_memory_is_limited(monkeypatch: Any) -> None:
    monkeypatch.setattr(feature_process, "MEMORY", 2**29)
    part = expanding(1)
    with pytest.raises(InputError, match=r"does not take these inputs|was ended"):
        part([20_000.0])  # 1.6 GB
    assert part([2.0]).shape == (1, 1)


def test_an_answer_that_is_none_ends_the_process(monkeypatch: Any) -> None:
    part = expanding(1)
    assert part([2.0]).shape == (1, 1)
    monkeypatch.setattr(feature_process, "_LONGEST", 4)
    with pytest.raises(InputError, match="can't be read"):
        part([2.0])


@linux
def test_the_process_starts_with_nothing_of_the_client(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("QUAD4FHE_SECRET", "a passphrase")
    with (tmp_path / "own.key").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        part = expanding(1)
        assert part([2.0]).shape == (1, 1)
        process = Path("/proc", str(part._process._started()._process.pid))
        assert b"QUAD4FHE_SECRET" not in (process / "environ").read_bytes()
        held = {os.readlink(each) for each in (process / "fd").iterdir()}
        assert {each.partition(":")[0] for each in held} <= {"pipe", "/dev/null"}
        assert "(deleted)" in os.readlink(process / "cwd")
        words = (process / "status").read_text()
        assert "NoNewPrivs:\t1" in words
        assert "Threads:\t1\n" in words


def test_a_process_ends_with_its_part() -> None:
    part = expanding(1)
    assert part([2.0]).shape == (1, 1)
    process = part._process._started()._process
    del part
    with contextlib.suppress(ChildProcessError):
        assert process.wait(10) is not None


def test_only_the_child_loads_onnxruntime() -> None:
    """So a graph of a fit file, too, runs nowhere else: not in verify, not in predict."""
    source = Path(feature_child.__file__).parent
    loading = {path.name for path in source.rglob("*.py") if "import onnxruntime" in path.read_text(encoding="utf-8")}
    assert loading == {"feature_child.py"}
