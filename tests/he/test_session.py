from __future__ import annotations

import numpy as np
import pytest

from quad4fhe import Client, InputError, PolynomialModel
from quad4fhe.he.session import Server
from quad4fhe.layouts.planner import plan
from quad4fhe.mlp import decide
from quad4fhe.planning.plan import Plan
from support.exchange import connect, run
from support.standins import SHARED, StandInFit, random_model, random_samples, stand_in

LAYOUTS = ["batch", "lift"]


def wanted(fit: StandInFit, X: np.ndarray) -> np.ndarray:
    logits = fit.model.logits(X)
    return logits if logits.shape[1] == 1 else logits - logits.mean(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def fit() -> StandInFit:
    return stand_in(random_model(5, 16, 3), random_samples(400, 5))


@pytest.fixture(scope="module", params=LAYOUTS)
def plans(request: pytest.FixtureRequest, fit: StandInFit) -> Plan:
    return plan(fit, samples=4, layout=request.param)


def test_encrypted_decisions_are_the_plaintext_ones(fit: StandInFit, plans: Plan) -> None:
    X = random_samples(9, 5, seed=3).clip(*fit.box)
    client, server = connect(fit, plans)
    logits = run(client, server, X)
    assert logits.shape == (9, 3)
    assert np.abs(logits - wanted(fit, X)).max() <= plans.error.bound
    assert (decide(logits) == fit.model.decide(X)).all()


@pytest.mark.parametrize("n", [1, 4095, 4096, 4097])
def test_any_batch_size_around_the_slots_works(n: int) -> None:
    fit = stand_in(random_model(2, 8, 2), random_samples(100, 2))
    made = plan(fit, samples=min(n, 4096), layout="batch", precision="fast")
    assert made.chain.slots == 4096
    client, server = connect(fit, made)
    X = random_samples(n, 2, seed=4).clip(*fit.box)
    found = run(client, server, X)
    assert found.shape == (n, 2)
    assert np.abs(found - wanted(fit, X)).max() <= made.error.bound


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_equal_batches_at_the_worst_corner_do_not_overflow(layout) -> None:
    """Slots that are all equal put the whole value into one coefficient: the case that random batches never show."""
    fit = stand_in(random_model(3, 12, 2, alpha=0.5), random_samples(100, 3))
    made = plan(fit, samples=2048 if layout == "batch" else 4, layout=layout, precision="fast")
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * 3)).reshape(3, -1).T
    corners = np.where(corners, fit.box[1], fit.box[0])
    worst = corners[np.abs(wanted(fit, corners)).max(axis=1).argmax()]
    client, server = connect(fit, made)
    X = np.repeat(worst[None], made.per_request, axis=0)
    found = run(client, server, X)
    assert np.abs(found - wanted(fit, X)).max() <= made.error.bound


def test_inputs_on_every_corner_of_the_box_are_taken(fit: StandInFit, plans: Plan) -> None:
    corners = np.array(np.meshgrid(*[[0.0, 1.0]] * 5)).reshape(5, -1).T
    X = np.where(corners, fit.box[1], fit.box[0])
    client, server = connect(fit, plans)
    assert np.abs(run(client, server, X) - wanted(fit, X)).max() <= plans.error.bound


def test_an_input_outside_the_box_is_refused_by_feature(fit: StandInFit, plans: Plan) -> None:
    X = random_samples(4, 5).clip(*fit.box)
    X[2, 3] = np.nextafter(plans.domain.high[3], np.inf)
    with pytest.raises(InputError, match=r"1 of 4 samples lies outside.*X\[2, 3\].*feature 3 must lie in"):
        list(Client(plans).requests(X))
    with pytest.raises(InputError, match="NaN"):
        Client(plans).encrypt(np.full((1, 5), np.nan))
    with pytest.raises(InputError, match="columns"):
        Client(plans).encrypt(np.zeros((1, 4)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("d", "m", "K", "free", "alpha"),
    [(1, 1, 1, False, 0.3), (1, 3, 200, True, 0.1), (7, 30, 1, True, 1e-12), (6, 20, 5, False, 1e-9)],
)
def test_extreme_shapes_and_coefficients_work(layout, d: int, m: int, K: int, free: bool, alpha: float) -> None:
    X = random_samples(200, d)
    fit = stand_in(random_model(d, m, K, free=free, alpha=alpha), X)
    made = plan(fit, samples=3, layout=layout, precision="fast", X=X)
    client, server = connect(fit, made)
    found = run(client, server, X[:3])
    assert found.shape == (3, K)
    bound = made.error.bound if K == 1 else 4 * made.error.bound
    assert np.abs(found - wanted(fit, X[:3])).max() <= max(bound, 1e-9)


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes"])
@pytest.mark.parametrize("precision", ["strict", "fast"])
def test_real_encrypted_decisions_of_trained_models_are_kept(trained, name: str, precision) -> None:
    data = trained(name)
    model = PolynomialModel.shared(data.mlp, *SHARED[name])
    X = data.X_cal.astype(np.float64)
    everything = np.vstack([X, data.X_test])
    fit = stand_in(model, X, np.stack([everything.min(axis=0), everything.max(axis=0)]))
    made = plan(fit, samples=len(data.X_test), layout="batch", precision=precision, X=X)
    client, server = connect(fit, made)
    changed = int((decide(run(client, server, data.X_test)) != model.decide(data.X_test)).sum())
    assert changed <= (0 if precision == "strict" else len(data.X_test) / 1000)


def near_and_far(seed: int = 0) -> np.ndarray:
    """The origin, where a decision is close, and points whose margins are wide."""
    rng = np.random.default_rng(seed)
    far = np.column_stack([rng.uniform(2, 3, 400), rng.uniform(-0.5, 0.5, 400)])
    return np.vstack([np.zeros((1, 2)), far])


@pytest.mark.parametrize(
    "model",
    [
        # A third logit, far more sensitive than the two largest, lies just below them at the origin.
        PolynomialModel.quadratic(
            np.eye(2), [0, 0], [[0, 0], [0, 0], [1, 0]], [[0, 0], [0, 0], [30, 0]], [0, -1e-3, -1.03e-3]
        ),
        # No slope at the origin, and curvatures that cancel on average.
        PolynomialModel.quadratic(np.eye(2), [0, 0], [[1.0, -1.0]], [[0.0, 0.0]], [1e-6]),
    ],
    ids=["a third logit", "a saddle"],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_strict_plan_says_can_not_change_does_not(model: PolynomialModel, layout: str) -> None:
    X = near_and_far()
    fit = stand_in(model, X, box=np.array([[-3.0, -3.0], [3.0, 3.0]]))
    made = plan(fit, samples=1000, layout=layout, X=X)
    if 0 in made.error.close:
        return
    client, server = connect(fit, made)
    again = np.zeros((1000, 2))
    logits = run(client, server, again)
    assert (decide(logits) == model.decide(again)).all()


def test_samples_that_are_not_the_calibration_set_are_no_basis_for_a_promise(fit: StandInFit) -> None:
    with pytest.raises(InputError, match="is not the fit's calibration data"):
        plan(fit, samples=4, X=1e-3 * random_samples(400, 5))


def test_a_server_refuses_a_plan_whose_bound_is_not_true(fit: StandInFit) -> None:
    fields = plan(fit, samples=4, layout="batch").to_dict()
    fields["domain"]["low"], fields["domain"]["high"] = [-40.0] * 5, [40.0] * 5
    with pytest.raises(InputError, match="could overflow"):
        Server(fit, Plan.from_dict(fields))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(per_request=0),
        lambda d: d.update(per_request=-1),
        lambda d: d["scales"].update(v=2000),
        lambda d: d["scales"].update(v=-3),
        lambda d: d["scales"].update(x=-3),
        lambda d: d["domain"].update(bound=-1.0),
        lambda d: d["domain"].update(low=[1.0] * 5, high=[0.0] * 5),
        lambda d: d["shape"].update(outputs=0),
        lambda d: d.update(samples=-4),
    ],
)
def test_numbers_no_plan_can_have_are_refused(fit: StandInFit, change) -> None:
    fields = plan(fit, samples=4, layout="batch").to_dict()
    change(fields)
    with pytest.raises(InputError):
        Plan.from_dict(fields)
