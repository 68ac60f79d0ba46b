from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quad4fhe import MLP, InputError
from quad4fhe.cli import main
from support.reference_models import Net, assert_answers, assert_refused, nets

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402 - only where torch is

NET = Net(d=3, m=4, classes=3, seed=3)


def normed(size: int, **options: Any) -> Any:
    """A BatchNorm1d that has seen data."""
    layer = nn.BatchNorm1d(size, **options)
    for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
        if tensor is not None:
            tensor.data.uniform_(0.3, 2.0)
    return layer


def network(net: Net = NET, front: bool = False, middle: bool = False, after: bool = False, bias: bool = True) -> Any:
    torch.manual_seed(net.seed)
    layers = [nn.Flatten(), normed(net.d, eps=0.01)] if front else []
    layers += [nn.Linear(net.d, net.m, bias=bias)]
    layers += [normed(net.m)] if middle else []
    layers += [nn.ReLU()]
    layers += [normed(net.m, affine=False), nn.Dropout(0.4)] if after else []
    return nn.Sequential(*layers, nn.Linear(net.m, net.outputs, bias=bias)).eval()


def answers(module: Any, net: Net, dtype: Any) -> Any:
    with torch.no_grad():
        return module.to(dtype)(torch.tensor(net.samples(), dtype=dtype)).numpy()


@settings(max_examples=60, deadline=None)
@given(nets(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_a_sequential_answers_as_its_forward_does(net: Net, front: bool, middle: bool, after: bool, bias: bool) -> None:
    module = network(net, front, middle, after, bias)
    mlp = MLP.from_torch(module)
    assert_answers(mlp, net.samples(), answers(module, net, torch.float32), 2e-5)
    # The same weights in float64: the fold itself loses nothing.
    assert_answers(mlp, net.samples(), answers(module, net, torch.float64), 1e-12)


@settings(max_examples=30, deadline=None)
@given(nets(), st.booleans(), st.booleans(), st.booleans())
def test_a_state_dict_gives_the_model_that_its_sequential_gives(
    net: Net, front: bool, middle: bool, bias: bool
) -> None:
    # Torch's default epsilon, the one thing a state dict does not record.
    module = network(net, False, middle, False, bias)
    module = nn.Sequential(normed(net.d), *module).eval() if front else module
    assert MLP.from_torch(module.state_dict(), activation="relu").sha256 == MLP.from_torch(module).sha256


def test_nested_sequentials_are_unwrapped_and_a_trailing_softmax_is_ignored() -> None:
    flat = network(NET, middle=True)
    nested = nn.Sequential(nn.Sequential(flat[0], flat[1]), nn.Identity(), nn.Sequential(*flat[2:]), nn.Softmax(dim=1))
    assert MLP.from_torch(nested).sha256 == MLP.from_torch(flat).sha256


def test_a_batch_norm_after_the_relu_is_placed_by_the_gap_its_number_leaves() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), normed(4), nn.Linear(4, 2), nn.LogSoftmax(dim=-1)).eval()
    assert MLP.from_torch(module.state_dict(), activation="relu").sha256 == MLP.from_torch(module).sha256


def test_layers_with_names_are_ordered_by_their_shapes() -> None:
    module = network(Net(d=3, m=4, classes=2, seed=3))
    assert (
        MLP.from_torch(named(("a_out", module[2]), ("b_in", module[0]))(), activation="relu").sha256
        == MLP.from_torch(module).sha256
    )


def test_half_precision_weights_are_read_as_they_are() -> None:
    module = network(NET).to(torch.bfloat16)
    np.testing.assert_array_equal(MLP.from_torch(module).W1, module[0].weight.detach().double().numpy())


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_saved_state_dict_is_loaded(suffix: str, tmp_path: Path) -> None:
    module = network(NET, middle=True)
    torch.save(module.state_dict(), tmp_path / f"m{suffix}")
    assert MLP.load(tmp_path / f"m{suffix}", activation="relu").sha256 == MLP.from_torch(module).sha256


def test_a_state_dict_in_safetensors_is_loaded(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    module = network(NET, middle=True)
    save_file(module.state_dict(), tmp_path / "m.safetensors")
    assert MLP.load(tmp_path / "m.safetensors", activation="relu").sha256 == MLP.from_torch(module).sha256


def test_a_state_dict_needs_the_name_of_its_activation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = network(NET).state_dict()
    with pytest.raises(InputError) as caught:
        MLP.from_torch(state)
    assert str(caught.value) == (
        "a state dict does not record its activation; add the one that the network was trained with, such as "
        "activation='relu'"
    )
    torch.save(state, tmp_path / "m.pt")
    np.save(tmp_path / "c.npy", NET.samples())
    typed = ["fit", str(tmp_path / "m.pt"), str(tmp_path / "c.npy"), "-o", str(tmp_path / "f.safetensors")]
    assert main(typed) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("add the one that the network was trained with, such as --activation relu")
    )
    assert MLP.from_torch(state, activation="tanh").activation.name == "tanh"


def save_scripted(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(network()).save(path)


def save_truncated(path: Path) -> None:
    torch.save(network().state_dict(), path)
    path.write_bytes(path.read_bytes()[:400])


FILES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "a whole module": (lambda path: torch.save(network(), path), ["pickled module", "model.state_dict()"]),
    "a TorchScript archive": (save_scripted, ["TorchScript", "model.state_dict()"]),
    "a truncated file": (save_truncated, ["damaged", "model.state_dict()"]),
    "noise": (lambda path: path.write_bytes(b"hello world"), ["damaged", "model.state_dict()"]),
    "a tensor": (lambda path: torch.save(torch.ones(3), path), ["holds a Tensor", "wanted a state dict"]),
    "a checkpoint without weights": (
        lambda path: torch.save({"epoch": 3, "best": network().state_dict()}, path),
        ["'epoch'", "pass the state dict alone"],
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_hold_no_state_dict_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    save, words = FILES[case]
    save(tmp_path / "m.pt")
    with pytest.raises(InputError) as caught:
        MLP.load(tmp_path / "m.pt")
    assert_refused(str(caught.value), "m.pt: ", *words)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_checkpoint_is_read_by_its_nested_state_dict(key: str, tmp_path: Path) -> None:
    module = network()
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, key: module.state_dict()}, tmp_path / "m.pt")
    assert (
        MLP.load(tmp_path / "m.pt", activation="relu").sha256
        == MLP.from_torch(module.state_dict(), activation="relu").sha256
    )


class Own(nn.Sequential):  # type: ignore[misc] # its base has no types
    def forward(self, x: Any) -> Any:
        return super().forward(x).flip(-1)


class Net3(nn.Module):  # type: ignore[misc] # its base has no types
    pass


def linear_with(**changes: Any) -> Any:
    module = network()
    with torch.no_grad():
        module[0].weight[0, 0] = changes.get("value", 0.0)
    return module


def hooked() -> Any:
    module = network()
    module[0].register_forward_hook(lambda *_: None)
    return module


def seq(*layers: Any) -> Callable[[], Any]:
    return lambda: nn.Sequential(*layers)


def named(*layers: tuple[str, Any]) -> Callable[[], Any]:
    return lambda: {f"{name}.{key}": value for name, layer in layers for key, value in layer.state_dict().items()}


L34, L43, L44, R = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(4, 4), nn.ReLU()

REFUSALS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "two activations in a row": (seq(L34, R, R, L43), ["layer '2' (ReLU) follows another activation"]),
    "unknown": (seq(L34, nn.Tanhshrink(), L43), ["layer '1' (Tanhshrink) can't be folded", "supported: a Sequential"]),
    "unknown, nested": (seq(nn.Sequential(L34, nn.LogSigmoid()), L43), ["layer '0.1' (LogSigmoid)"]),
    "layer norm": (seq(L34, nn.LayerNorm(4), R, L43), ["layer '1' (LayerNorm)"]),
    "no statistics": (
        seq(L34, nn.BatchNorm1d(4, track_running_stats=False), R, L43),
        ["layer '1' (BatchNorm1d) keeps no running statistics"],
    ),
    "no relu": (seq(L34, L43), ["no activation"]),
    "no output layer": (seq(L34, R), ["no linear layer after its activation"]),
    "relu first": (seq(R, L34, L43), ["layer '0' (ReLU) comes before any weight matrix"]),
    "shapes": (seq(L34, R, nn.Linear(5, 2)), ["layer '2' (Linear) takes 5 values", "gives 4"]),
    "batch norm of another size": (seq(L34, normed(5), R, L43), ["layer '1' (BatchNorm1d) takes 5 values"]),
    "softmax in the middle": (seq(L34, nn.Softmax(1), R, L43), ["layer '1' (Softmax) comes before the last Linear"]),
    "softmax over samples": (seq(L34, R, L43, nn.Softmax(0)), ["layer '3' (Softmax) has dim=0"]),
    "softmax of one score": (seq(L34, R, nn.Linear(4, 1), nn.Softmax(1)), ["layer '3' (Softmax) over one output"]),
    "a layer after the softmax": (seq(L34, R, L43, nn.Softmax(1), L34), ["layer '4' (Linear) comes after layer '3'"]),
    "flatten of samples": (seq(nn.Flatten(0), L34, R, L43), ["layer '0' (Flatten)"]),
    "a forward of its own": (lambda: Own(L34, R, L43), ["Own defines its own forward", "torch.onnx.export"]),
    "another module": (Net3, ["Net3 can't be folded", "torch.onnx.export"]),
    "hooks": (hooked, ["layer '0' (Linear) has forward hooks"]),
    "NaN": (lambda: linear_with(value=float("nan")), ["weight of layer '0' (Linear)", "NaN", "[0, 0]"]),
    "meta tensors": (lambda: network().to("meta"), ["layer '0' (Linear)"]),
    "not torch": (lambda: 3, ["got int", "wanted a torch module or a state dict"]),
    "dict, three layers in no order": (
        named(("first", L34), ("middle", L44), ("last", L43)),
        ["the names of the layers do not tell their order"],
    ),
    "dict, empty": (dict, ["0 Linear layers (none)"]),
    "dict, batch norm without numbers": (
        named(("fc1", L34), ("bn", normed(4)), ("fc2", nn.Linear(4, 2))),
        ["layer 'bn' (BatchNorm1d) may come before or after the activation", "from_torch"],
    ),
    "dict, batch norm between two gaps": (
        named(("0", L34), ("2", normed(4)), ("4", L43)),
        ["layer '2' (BatchNorm1d) may come before or after"],
    ),
    "dict, either order": (named(("hidden", L34), ("out", L43)), ["either order", "W1, b1, W2, b2"]),
    "dict, neither order": (named(("a", L34), ("b", nn.Linear(5, 2))), ["layer 'a' (Linear) (4, 3)", "neither order"]),
    "dict, layer norm": (
        named(("0", L34), ("1", nn.LayerNorm(4)), ("3", nn.Linear(4, 2))),
        ["layer '1'", "no running_mean"],
    ),
    "dict, recurrent": (named(("rnn", nn.RNN(3, 4))), ["'rnn.weight_ih_l0'", "no Linear or BatchNorm1d"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_imported_is_refused_in_one_line_that_names_the_layer(case: str) -> None:
    make, words = REFUSALS[case]
    with pytest.raises(InputError) as caught:
        MLP.from_torch(make())
    assert_refused(str(caught.value), *words)


def test_numbered_names_decide_where_the_shapes_leave_both_orders_open() -> None:
    state = named(("fc10", L43), ("fc9", L34))()
    np.testing.assert_array_equal(MLP.from_torch(state, activation="relu").W1, L34.weight.detach().double().numpy())


class Viewing(nn.Module):  # type: ignore[misc] # its base has no types
    """What people write by hand: view, functional relu, a squeezed score."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return torch.sigmoid(self.b(torch.relu(self.a(x.view(x.size(0), -1)))).squeeze(-1))


EXPORTED: dict[str, Callable[[], Any]] = {
    "plain": network,
    "batch norms": lambda: network(NET, front=True, middle=True, after=True, bias=False),
    "log-softmax": lambda: nn.Sequential(*network(NET), nn.LogSoftmax(1)),
    "view and squeeze": Viewing,
}


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "legacy"])
@pytest.mark.parametrize("case", EXPORTED)
def test_what_torch_exports_answers_as_the_module_does(case: str, dynamo: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    if dynamo:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    torch.manual_seed(1)
    module = EXPORTED[case]().eval()
    X = torch.tensor(NET.samples(), dtype=torch.float32)
    n = {"dynamic_shapes": ({0: torch.export.Dim("n")},)} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both exporters announce their own deprecations
        torch.onnx.export(module, (X,), str(tmp_path / "m.onnx"), dynamo=dynamo, input_names=["x"], verbose=False, **n)
    with torch.no_grad():
        wanted = module(X).double().numpy()
    mlp = MLP.load(tmp_path / "m.onnx")
    logits = mlp.logits(NET.samples())
    if case == "log-softmax":
        logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    elif case == "view and squeeze":
        logits = 1 / (1 + np.exp(-logits[:, 0]))
    np.testing.assert_allclose(logits, wanted, atol=2e-5)
