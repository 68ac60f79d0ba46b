"""`fit` says what it can see of nonsense: every message in full, and where it must stay silent."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quad4fhe import MLP, Fit, InputError, fit, verify
from quad4fhe.cli import main
from quad4fhe.fitting.diagnostics import Accuracy, Agreement
from quad4fhe.fitting.labels import check_accuracy, read_labels
from quad4fhe.fitting.summary import verdict
from quad4fhe.fitting.warnings import about_classes, about_other_rows, about_scale
from quad4fhe.io.rows import ArrayRows, StackedRows
from quad4fhe.io.samples import rows_of

DRAW = np.random.default_rng(7)
MODEL = MLP(
    DRAW.standard_normal((12, 4)), DRAW.standard_normal(12), DRAW.standard_normal((3, 12)), DRAW.standard_normal(3)
)
X = DRAW.standard_normal((300, 4))
RIGHT = MODEL.decide(X)
Y = np.where(DRAW.uniform(size=300) < 0.9, RIGHT, (RIGHT + 1) % 3)  # the network is right on nine of ten labels
ALL_SAME = "features not scaled as in training, columns in another order, another activation"


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(MODEL, X, Y, family="shared", polish=False)


def test_the_accuracy_of_the_network_and_of_its_replacement_stand_side_by_side(found: Fit) -> None:
    right, kept = int((RIGHT == Y).sum()), int((found.predict(X) == Y).sum())
    assert found.diagnostics.accuracy == Accuracy(samples=300, network=right, replacement=kept)
    said = dict(found.summary())["accuracy"]
    assert said == f"the network is right on {right / 3:.2f}% of 300 labels, its replacement on {kept / 3:.2f}%"
    assert found.diagnostics.test_accuracy is None
    assert Fit.from_bytes(found.to_bytes()).diagnostics.accuracy == found.diagnostics.accuracy


def test_labels_come_with_tables_and_arrays_and_stay_with_their_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    table = np.column_stack([X, Y])
    np.savetxt(tmp_path / "a.csv", table, delimiter=",", header="a,b,c,d,label", comments="")
    frame = pandas.DataFrame(table, columns=["a", "b", "c", "d", "target"])
    for given in (tmp_path / "a.npz", tmp_path / "a.csv", [tmp_path / "a.npz"] * 2):
        rows = rows_of("X_cal", given, 4)
        own = rows.labels()
        assert own is not None
        assert own[: len(Y)].tolist() == Y.tolist()
    assert StackedRows([ArrayRows(X, Y), ArrayRows(X)]).labels() is None
    by_frame = fit(MODEL, frame, family="shared", polish=False, X_test=tmp_path / "a.csv")
    assert by_frame.diagnostics.accuracy == by_frame.diagnostics.test_accuracy
    part = fit(MODEL, X, Y, family="shared", polish=False, holdout=0.2, fresh=True)
    kept = np.isin(X[:, 0], part.calibration_part(X)[:, 0])
    assert part.diagnostics.accuracy is not None
    assert part.diagnostics.accuracy.network == (RIGHT == Y)[kept].sum()


def test_labels_from_one_by_name_and_in_sorted_order_are_recognised() -> None:
    ids, note = read_labels(MODEL, "y", RIGHT + 1, 300)
    assert (ids == RIGHT).all()
    assert note == "the labels 1 to 3 were read as the classes 0 to 2"
    ids, note = read_labels(MODEL, "y", np.array(["ant", "bee", "cow"])[RIGHT], 300)
    assert (ids == RIGHT).all()
    assert note == "the 3 different labels are not class ids or names: sorted, they were read as the classes 0 to 2"
    named = MODEL.named(MODEL.names.__class__(classes=("cow", "ant", "bee")))
    ids, note = read_labels(named, "y", np.array(["cow", "ant", "bee"])[RIGHT], 300)
    assert (ids == RIGHT).all()
    assert note == ""
    with pytest.raises(InputError) as caught:
        read_labels(MODEL, "y", RIGHT * 5 - 7.5, 300)
    assert str(caught.value).endswith(
        "are not classes of the model (class ids); give class ids from 0 to 2, or names of the classes"
    )
    with pytest.raises(InputError, match=r"y has shape \(7,\), wanted one label for each of the 300 rows"):
        fit(MODEL, X, Y[:7])


def test_labels_of_a_file_that_are_no_classes_are_said_and_nothing_stops(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=X[:, 0])
    made = fit(MODEL, tmp_path / "a.npz", family="shared", polish=False)
    assert "the labels are not the 3 classes of the model, so no accuracy was measured" in made.diagnostics.notes
    assert made.diagnostics.accuracy is None


def test_a_network_no_better_than_chance_is_refused_with_the_likely_causes(tmp_path: Path, capsys: Any) -> None:
    shuffled = np.random.default_rng(1).permutation(Y)
    right, usual = 100 * (shuffled == RIGHT).mean(), np.bincount(Y).argmax()
    said = (
        f"the network is right on {right:.1f}% of the 300 labels, no better than chance (answering class {usual} each "
        f"time is right on {100 * (usual == Y).mean():.1f}%); likely causes: {ALL_SAME}, labels in another order than "
        "the network's outputs; to fit it all the same, add "
    )
    with pytest.raises(InputError) as caught:
        fit(MODEL, X, shuffled)
    assert str(caught.value) == said + "insist=True"
    np.savez(tmp_path / "m.npz", W1=MODEL.W1, b1=MODEL.b1, W2=MODEL.W2, b2=MODEL.b2)
    np.savez(tmp_path / "c.npz", X=X, y=shuffled)
    files = [str(tmp_path / name) for name in ("m.npz", "c.npz", "f.safetensors")]
    typed = ["fit", *files[:2], "--family", "shared", "-o", files[2]]
    assert main(typed) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"quad4fhe: {said}--insist"
    assert main([*typed, "--insist"]) == 0


def test_labels_in_another_order_are_named_as_such() -> None:
    with pytest.raises(InputError) as caught:
        check_accuracy((Y + 1) % 3, RIGHT, 3, insist=False)
    best = 100 * (Y == RIGHT).mean()
    assert (
        f"with the classes in another order {best:.1f}% would be right, so the labels are likely in another order than "
        f"the network's outputs; other causes: {ALL_SAME}; to fit"
    ) in str(caught.value)


def test_a_network_that_finds_a_rare_class_is_not_chance_though_the_frequent_answer_is_more_often_right() -> None:
    labels = np.repeat([0, 1], [9800, 200])
    decided = np.where(np.random.default_rng(2).uniform(size=10_000) < 0.08, 1 - labels, labels)
    assert check_accuracy(labels, decided, 2, insist=False) == [
        f"the network is right on {100 * (decided == labels).mean():.1f}% of the labels, and answering class 0 each "
        "time on 98.0%: check the scale of the features, the order of columns and classes, and the activation"
    ]


def test_few_labels_prove_nothing_against_a_network() -> None:
    assert check_accuracy(np.arange(40) % 3, np.zeros(40, dtype=int), 3, insist=False) == []


def test_chance_is_told_from_weak_networks_at_the_stated_error() -> None:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 4, 2000)
    for weak, refused in ((0.0, 0), (0.2, 50)):
        passed = 0
        for _ in range(50):
            decided = np.where(draw.uniform(size=2000) < weak, labels, draw.integers(0, 4, 2000))
            try:
                check_accuracy(labels, decided, 4, insist=False)
                passed += 1
            except InputError:
                continue
        assert abs(passed - refused) <= 1


def test_five_rows_are_not_called_lossless_in_the_headline() -> None:
    made = fit(MODEL, X[:5], family="shared")
    assert made.certificate.statement == "lossless"
    said = "5 calibration rows are few for 3 classes: that they are kept says little about other rows"
    assert made.summary()[0] == ("warning", said)
    assert verdict(made).endswith("keeps all 5 calibration decisions, too few for 3 classes to say anything of others.")
    loaded = Fit.from_bytes(made.to_bytes())
    assert dict(loaded.summary())["certificate"] == "lossless on 5 rows, too few to say anything of others"


def test_missing_and_rare_classes_are_named() -> None:
    decided = np.repeat([0, 1, 3], [60, 50, 4])
    assert about_classes(decided, 5) == [
        "no calibration row is decided for 2 of 5 classes (the first is class 2): nothing is known of them",
        "fewer than 10 calibration rows are decided for 1 of 5 classes (class 3 has 4): little is known of them",
    ]
    assert about_classes(np.repeat([0, 1], 30), 2) == []


def scaled(factor: float) -> list[str]:
    draw = np.random.default_rng(4)
    mlp = MLP(draw.standard_normal((40, 6)), draw.standard_normal(40), draw.standard_normal((3, 40)), np.zeros(3))
    return about_scale(mlp, ArrayRows(factor * draw.standard_normal((400, 6))))


def test_features_far_from_the_scale_of_training_are_noticed_without_labels() -> None:
    assert scaled(1.0) == []
    (small,) = scaled(1 / 64)
    assert small.endswith(
        "of 40 hidden units are always on or always off on the calibration rows: check that the features have the "
        "scale of training"
    )
    (large,) = scaled(1e12)
    assert large.startswith("the two largest logits differ by ")
    assert large.endswith(
        "on the median calibration row, which no training reaches: check that the features have the scale of training"
    )


def test_rows_that_the_network_was_trained_on_are_suspected() -> None:
    kept, other = Agreement.of(2000, 0), Agreement.of(1000, 35)
    right = Accuracy(samples=2000, network=2000, replacement=2000)
    other_right = Accuracy(samples=1000, network=930, replacement=920)
    assert about_other_rows(kept, other, right, other_right) == [
        "the network is right on 100.00% of the calibration rows and on 93.00% of other rows: it may have been trained "
        "on the calibration rows, so go by the figures of other rows"
    ]
    assert about_other_rows(kept, other, None, None) == [
        "100.00% of the calibration decisions are kept, and 96.50% of those on other rows: go by the second figure, "
        "and take more calibration rows, on which the network was not trained"
    ]
    assert about_other_rows(kept, Agreement.of(1000, 4), None, None) == []
    assert about_other_rows(Agreement.of(50, 0), Agreement.of(50, 2), None, None) == []  # within the error


def test_many_lost_decisions_end_in_a_command_that_works_when_pasted(tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "my model.npz", W1=MODEL.W1, b1=MODEL.b1, W2=MODEL.W2, b2=MODEL.b2)
    np.savez(tmp_path / "c.npz", X=X)
    model, calib, out = (str(tmp_path / name) for name in ("my model.npz", "c.npz", "f.safetensors"))
    assert main(["fit", model, calib, "-o", out, "--family", "shared"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if "of the decisions are lost" in each]
    said, _, command = line.partition(": ")
    assert said.endswith("% of the decisions are lost. Other families keep more at the same cost")
    assert shlex.split(command) == ["quad4fhe", "fit", model, calib, "--out", out]
    assert main(shlex.split(command)[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [each for each in lines if "of the decisions are lost" in each]
    said, _, command = line.partition(": ")
    assert said.endswith("More calibration rows may keep more, and so does a higher degree, at a higher cost")
    assert shlex.split(command) == ["quad4fhe", "fit", model, calib, "--out", out, "--degree", "4"]
    assert main(shlex.split(command)[1:]) == 0


def test_evidence_against_shared_quadratics_is_not_held_against_another_family(tmp_path: Path, capsys: Any) -> None:
    made = fit(MODEL, X, family="head")
    assert made.certificate.impossible is not None
    assert "no shared" not in verdict(made) + str(made.summary())
    assert verify(made, MODEL, X).impossible
    np.savez(tmp_path / "c.npz", X=X)
    made.save(tmp_path / "f.safetensors")
    assert main(["verify", str(tmp_path / "f.safetensors"), str(tmp_path / "c.npz")]) == 0
    assert "contradict" not in capsys.readouterr().out
