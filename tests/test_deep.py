"""Networks with two or more hidden layers: read, decided exactly, fitted on their first layer, verified."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import MLP, CertificateError, Client, Fit, InputError, fit, plan, verify
from quad4fhe.activations import Activation
from quad4fhe.activations.intervals import Interval
from quad4fhe.deep import DeepMLP
from quad4fhe.he.session import Server
from quad4fhe.mlp import decide
from quad4fhe.names import Names
from quad4fhe.proof.exact import WholeNumbers, bounded_logits, decisions

RNG = np.random.default_rng(11)


def network(*sizes: int, seed: int = 0, activation: str | tuple[str, ...] = "relu") -> DeepMLP:
    rng = np.random.default_rng(seed)
    pairs = [(rng.normal(size=(b, a)) / np.sqrt(a), 0.3 * rng.normal(size=b)) for a, b in itertools.pairwise(sizes)]
    return DeepMLP(*pairs[0], pairs[1:], activation=activation)


NET = network(4, 16, 8, 3)
X = RNG.normal(size=(400, 4))
FOUND = fit(NET, X, family="head")


def by_hand(net: DeepMLP, x: np.ndarray) -> list[Fraction]:
    """The logits of one sample in fractions, from nothing but the weights."""
    value = [Fraction(float(v)) for v in x]
    for k, (W, b) in enumerate([(net.W1, net.b1), *net.layers]):
        value = [net.activations[k - 1].fraction(v, j) for j, v in enumerate(value)] if k else value
        value = [
            sum((Fraction(float(w)) * v for w, v in zip(row, value, strict=True)), Fraction(float(shift)))
            for row, shift in zip(W, b, strict=True)
        ]
    return value


@pytest.mark.parametrize("sizes", [(4, 16, 8, 3), (3, 6, 5, 4, 2), (5, 7, 6, 1)])
def test_decisions_are_exact_and_their_error_bound_holds(sizes: tuple[int, ...]) -> None:
    net = network(*sizes, seed=3)
    points = np.concatenate([RNG.normal(size=(12, sizes[0])), 1e6 * RNG.normal(size=(4, sizes[0]))])
    found = decisions(net, points)
    logits, error = bounded_logits(net, points)
    for x, label, row, bound in zip(points, found.label, logits, error, strict=True):
        exact = by_hand(net, x)
        assert all(abs(Fraction(float(v)) - e) <= Fraction(float(b)) for v, e, b in zip(row, exact, bound, strict=True))
        both = [Fraction(0), *exact] if len(exact) == 1 else exact
        assert label == both.index(max(both))


def test_a_tie_between_two_classes_is_settled_in_whole_numbers() -> None:
    (W2, b2), (W3, b3) = NET.layers
    tied = DeepMLP(NET.W1, NET.b1, [(W2, b2), (W3[[0, 0, 1]], b3[[0, 0, 1]])])
    found = decisions(tied, X[:40])
    top = np.array([by_hand(tied, x)[0] >= by_hand(tied, x)[2] for x in X[:40]])
    assert top.any()
    assert (found.strict == ~top).all()
    assert (found.label == np.where(top, 0, 2)).all()
    assert found.rational >= top.sum()


def test_the_fit_is_measured_against_the_whole_network_and_verified(tmp_path: Path) -> None:
    assert FOUND.certificate.statement in ("measured", "lossless")
    lost = [i for i, x in enumerate(X) if FOUND.predict(x[None])[0] != np.argmax([float(v) for v in by_hand(NET, x)])]
    assert list(FOUND.certificate.mismatches) == lost
    assert float(FOUND.agreement(X)) == 1 - len(lost) / len(X) > 0.9
    FOUND.save(tmp_path / "fit.safetensors")
    read = Fit.load(tmp_path / "fit.safetensors")
    assert isinstance(read.mlp, DeepMLP)
    assert read.mlp.sha256 == NET.sha256  # the derived head is no part of the network
    verify(read, NET, X)
    with pytest.raises(CertificateError):
        verify(read, network(4, 16, 8, 3, seed=1), X)


def test_a_changed_inner_layer_does_not_verify() -> None:
    (W2, b2), last = FOUND.mlp.layers
    other = DeepMLP(FOUND.mlp.W1, FOUND.mlp.b1, [(-W2, b2), last], (FOUND.mlp.W2, FOUND.mlp.b2))
    with pytest.raises(CertificateError):
        verify(replace(FOUND, mlp=other), None, X)


@pytest.mark.parametrize("family", ["shared", "unitwise"])
def test_the_other_families_use_a_derived_head(family: str) -> None:
    found = fit(NET, X, family=family)
    assert found.family == family
    assert verify(found, NET, X).samples == len(X)
    own = np.maximum(NET.hidden(X), 0) @ found.mlp.W2.T + found.mlp.b2
    plain = np.maximum(NET.hidden(X), 0) @ NET.W2.T + NET.b2
    exact = NET.logits(X)
    assert np.square(own - exact).sum() < np.square(plain - exact).sum()  # nearer than without the data


def test_it_costs_one_hidden_layer_under_encryption() -> None:
    made = plan(FOUND, samples=50, layout="batch", X=X)
    assert (made.shape.features, made.shape.units, made.shape.outputs) == (4, 16, 3)
    client, server = Client(made), Server(FOUND, made)
    logits = np.concatenate([client.read(server.answer(request)) for request in client.requests(X[:50])])
    assert (decide(logits) == FOUND.predict(X[:50])).all()


def test_the_fit_is_the_same_with_workers() -> None:
    again = fit(NET, X, family="shared", pool="local", workers=2)
    alone = fit(NET, X, family="shared")
    assert all(np.array_equal(getattr(again, key), getattr(alone, key)) for key in ("S", "T", "c"))
    assert again.certificate == alone.certificate


def test_arrays_are_saved_and_read(tmp_path: Path) -> None:
    for name in ("net.npz", "net.safetensors"):
        NET.save(tmp_path / name)
        assert MLP.load(tmp_path / name).sha256 == NET.sha256


def test_names_and_notes_stay_with_a_deeper_network() -> None:
    named = NET.named(Names(("a", "b", "c", "d"), None)).with_notes("read from a file")
    assert isinstance(named, DeepMLP)
    assert (named.names.features, named.notes) == (("a", "b", "c", "d"), ("read from a file",))
    assert named.sha256 == NET.sha256


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([(np.ones((2, 16)), np.zeros(2))], "two or more hidden layers"),
        ([(np.ones((8, 15)), np.zeros(8)), (np.ones((2, 8)), np.zeros(2))], r"W2 has shape \(8, 15\)"),
        ([(np.ones((8, 16)), np.zeros(8)), (np.ones((2, 8)), np.zeros(3))], "W3 has shape"),
    ],
)
def test_layers_that_do_not_fit_are_named(layers, words: str) -> None:
    with pytest.raises(InputError, match=words):
        DeepMLP(NET.W1, NET.b1, layers)


def test_a_scikit_learn_classifier_with_three_hidden_layers() -> None:
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    y = NET.decide(X)
    made = neural.MLPClassifier((8, 6, 5), solver="lbfgs", max_iter=40, tol=1e9, random_state=0).fit(X, y)
    found = MLP.from_sklearn(made)
    assert isinstance(found, DeepMLP)
    assert len(found.layers) == 3
    assert (made.classes_[found.decide(X)] == made.predict(X)).all()


def test_a_torch_network_and_its_state_dict_and_its_onnx_graphs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn = torch.nn
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Dropout(), nn.ReLU(), nn.Linear(6, 3)
    )
    net.eval()
    with torch.no_grad():
        wanted = net(torch.tensor(X, dtype=torch.float32)).numpy()
    found = MLP.from_torch(net)
    assert isinstance(found, DeepMLP)
    assert np.abs(found.logits(X) - wanted).max() < 1e-5
    torch.save(net.state_dict(), tmp_path / "net.pt")
    assert MLP.load(tmp_path / "net.pt", activation="relu").sha256 == found.sha256
    named = {
        f"fc{k}.{part}": value for k, layer in enumerate((0, 3, 6)) for part, value in net[layer].state_dict().items()
    }
    torch.save(named, tmp_path / "named.pt")
    assert isinstance(MLP.load(tmp_path / "named.pt", activation="relu"), DeepMLP)
    pytest.importorskip("onnx", reason="onnx is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old exporter, which many files come from
        torch.onnx.export(net, (torch.zeros(2, 4),), tmp_path / "net.onnx", dynamo=False)
    graph = MLP.load(tmp_path / "net.onnx")
    assert isinstance(graph, DeepMLP)
    assert graph.feature_part is None
    assert np.abs(graph.logits(X) - wanted).max() < 1e-5


EXACT = [("leaky_relu:0.25", "hard_swish"), ("relu6", "hardtanh:-2,1"), ("relu", "hard_sigmoid"), ("softsign", "relu")]


@pytest.mark.parametrize("activation", EXACT)
def test_piecewise_rational_layers_are_decided_exactly(activation: tuple[str, ...]) -> None:
    net = network(4, 7, 6, 3, seed=3, activation=activation)
    points = np.concatenate([RNG.normal(size=(10, 4)), 1e6 * RNG.normal(size=(2, 4))])
    found, (logits, error) = decisions(net, points), bounded_logits(net, points)
    for x, label, row, bound in zip(points, found.label, logits, error, strict=True):
        exact = by_hand(net, x)
        assert all(abs(Fraction(float(v)) - e) <= Fraction(float(b)) for v, e, b in zip(row, exact, bound, strict=True))
        assert label == exact.index(max(exact))
        alone = WholeNumbers(net).decision(x)
        assert (alone.label, alone.strict) == (label, True)
        top, second = sorted(exact)[:-3:-1]
        assert abs(Fraction(alone.gap) - (top - second)) <= Fraction(alone.gap_error)
    assert found.settled.bound + found.settled.fractions == len(points)
    assert found.settled.is_exact


def decimal_logits(net: DeepMLP, x: np.ndarray) -> list[Decimal]:
    """The logits of a tanh and sigmoid network with 60 digits, by the decimal module."""
    value = [Decimal(float(v)) for v in x]
    for k, (W, b) in enumerate([(net.W1, net.b1), *net.layers]):
        if k:
            exponentials = [(-2 * v if net.activations[k - 1].name == "tanh" else -v).exp() for v in value]
            tanh = net.activations[k - 1].name == "tanh"
            value = [(1 - e) / (1 + e) if tanh else 1 / (1 + e) for e in exponentials]
        value = [
            sum((Decimal(float(w)) * v for w, v in zip(row, value, strict=True)), Decimal(float(shift)))
            for row, shift in zip(W, b, strict=True)
        ]
    return value


def test_intervals_through_the_layers_hold_sixty_digits() -> None:
    net = network(3, 5, 4, 4, 3, seed=5, activation=("tanh", "sigmoid", "tanh"))
    for x in RNG.normal(size=(4, 3)):
        with localcontext() as context:
            context.prec = 80
            wanted = [Fraction(each) for each in decimal_logits(net, x)]
        whole = WholeNumbers(net)
        y = [Interval.at(each) for each in whole.hidden(x).fractions()]
        for bits in (96, 256):
            found = whole._enclosed(net, y, bits)
            off = Fraction(1, 10**60)
            assert all(each.low - off <= value <= each.high + off for each, value in zip(found, wanted, strict=True))
            assert max(each.high - each.low for each in found) < Fraction(1, 2 ** (bits - 16))
        logits, error = bounded_logits(net, x[None])
        assert all(
            abs(Fraction(float(v)) - e) <= Fraction(float(b))
            for v, e, b in zip(logits[0], wanted, error[0], strict=True)
        )


def test_what_intervals_settle_and_what_they_can_not_is_counted() -> None:
    """Two classes that differ by 2^-83 are settled; two equal ones stay level, and are taken as a tie."""
    made = network(4, 6, 5, 3)
    (W2, b2), (W3, _) = made.layers
    first = made.W1, made.b1
    # Class 2 is low everywhere; classes 0 and 1 have the same weights and no bias but this one.
    rows = np.stack([W3[0], W3[0], np.zeros(5)])
    for shift, ways, winner in ((2.0**-83, (5, 0), 1), (0.0, (0, 5), 0)):
        net = DeepMLP(*first, [(W2, b2), (rows, np.array([0.0, shift, -1e6]))], activation="gelu")
        found = decisions(net, X[:5])
        assert (found.settled.intervals, found.settled.level) == ways
        assert found.settled.trusted == 0
        assert (found.label == winner).all()
        assert (found.strict == (shift > 0)).all()
        assert found.settled.is_exact == (shift > 0)


@pytest.mark.parametrize("activation", ["gelu", ("silu", "tanh"), ("leaky_relu:0.2", "hardtanh")])
def test_a_fit_with_other_activations_is_verified_and_survives_its_files(activation, tmp_path: Path) -> None:
    net = network(4, 12, 6, 3, activation=activation)
    found = fit(net, X[:200], family="head")
    found.save(tmp_path / "fit.safetensors")
    read = Fit.load(tmp_path / "fit.safetensors")
    assert read.mlp.activations == net.activations
    assert read.mlp.sha256 == net.sha256 != network(4, 12, 6, 3).sha256
    verified = verify(read, net, X[:200])
    assert verified.settled == read.certificate.settled
    assert verified.settled.total == 200
    decided = net.decide(X[:200]) == found.predict(X[:200])
    assert verified.mismatches == np.count_nonzero(~decided) < 30
    with pytest.raises(CertificateError, match="the model that was given"):
        verify(read, network(4, 12, 6, 3), X[:200])
    for name in ("net.npz", "net.safetensors"):
        net.save(tmp_path / name)
        assert MLP.load(tmp_path / name).sha256 == net.sha256


def test_activations_that_do_not_fit_the_layers_are_refused() -> None:
    with pytest.raises(InputError, match="got 3 activations for 2 hidden layers"):
        network(4, 6, 5, 3, activation=("relu", "gelu", "tanh"))
    with pytest.raises(InputError, match="has parameters for 2 units, but the hidden layer has 5"):
        network(4, 6, 5, 3, activation=("relu", Activation("leaky_relu", ((0.1, 0.2),))))


def test_state_dicts_of_deeper_networks_with_other_activations(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    nn = torch.nn
    torch.manual_seed(1)
    for make in (lambda k: nn.GELU(), lambda k: nn.PReLU(k, init=0.1 * k), lambda k: nn.Tanh()):
        net = nn.Sequential(nn.Linear(4, 6), make(6), nn.Linear(6, 5), make(5), nn.Linear(5, 3))
        with torch.no_grad():
            wanted = net(torch.tensor(X, dtype=torch.float32)).numpy()
        found = MLP.from_torch(net)
        assert isinstance(found, DeepMLP)
        assert np.abs(found.logits(X) - wanted).max() < 1e-5
        torch.save(net.state_dict(), tmp_path / "net.pt")
        given = None if isinstance(net[1], nn.PReLU) else str(found.activation.name)
        assert MLP.load(tmp_path / "net.pt", activation=given).sha256 == found.sha256
    lonely = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3))
    with pytest.raises(InputError, match=r"1 PReLU layers for 2 hidden layers.*pass the Sequential"):
        MLP.from_torch(lonely.state_dict())
