"""Names of features and classes: where they come from, where they show, and what is checked by them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quad4fhe import MLP, Fit, InputError, fit, plan, read_samples
from quad4fhe.cli import main
from quad4fhe.io.columns import Columns
from quad4fhe.names import NONE, Names, class_ids, names_of
from quad4fhe.planning.box import check_inside
from quad4fhe.planning.plan import Plan

FEATURES = ("age", "weight", "dose")
CLASSES = ("low", "middle", "high")
RNG = np.random.default_rng(4)
MODEL = MLP(RNG.normal(size=(8, 3)), RNG.normal(size=8), RNG.normal(size=(3, 8)), RNG.normal(size=3))
X = RNG.normal(size=(120, 3))
NAMED = names_of(FEATURES, CLASSES)


def table(path: Path, columns: dict[str, list[str]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text(",".join(columns) + "\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def cells(order: tuple[int, ...] = (0, 1, 2)) -> dict[str, list[str]]:
    return {FEATURES[i]: [repr(float(v)) for v in X[:, i]] for i in order}


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_names_travel_through_the_fit_file_and_the_plan_and_change_no_number(tmp_path: Path) -> None:
    plain, named = fit(MODEL, X, family="shared"), fit(MODEL.named(NAMED), X, family="shared")
    assert plain.names == NONE
    assert (plain.mlp.sha256, plain.model.sha256) == (named.mlp.sha256, named.model.sha256)
    assert all(np.array_equal(getattr(plain, key), getattr(named, key)) for key in ("S", "T", "c"))
    named.save(tmp_path / "fit.safetensors")
    assert Fit.load(tmp_path / "fit.safetensors").names == NAMED
    made = plan(named, samples=4, layout="batch")
    assert made.names == NAMED
    sent = json.loads(json.dumps(made.to_dict()))  # what clients/web/src/plan.ts reads
    assert (sent["feature_names"], sent["class_names"]) == (list(FEATURES), list(CLASSES))
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))).sha256 == made.sha256
    without = plan(plain, samples=4, layout="batch")
    assert without.names == NONE
    assert without.sha256 != made.sha256  # the client must agree on what a column and a class mean
    with pytest.raises(InputError, match=r"feature 2 \(dose\) must lie in"):
        check_inside(np.array([[0.0, 0.0, 99.0]]), made)


def test_a_plan_with_names_that_could_fool_a_terminal_is_refused() -> None:
    made = plan(fit(MODEL, X, family="shared"), samples=4, layout="batch").to_dict()
    for wrong in (["a", "b", "\x1b[2J"], ["a", "a", "b"], ["a", "", "b"], ["a"], ["a", "b", "c" * 201]):
        with pytest.raises(InputError):
            Plan.from_dict({**made, "class_names": wrong})
        with pytest.raises(InputError):
            Plan.from_dict({**made, "feature_names": wrong})


def test_columns_in_another_order_are_put_in_order_and_a_missing_one_is_named(tmp_path: Path) -> None:
    mixed = {"id": ["row"] * 120, **cells((2, 0, 1))}
    file = table(tmp_path / "mixed.csv", mixed)
    found, _ = read_samples(file, "test", Columns(FEATURES))
    assert np.array_equal(found, X)
    del mixed["weight"]
    with pytest.raises(InputError, match=r"no column 'weight'.*its columns are 'id', 'dose', 'age'"):
        read_samples(table(tmp_path / "short.csv", mixed), "test", Columns(FEATURES))
    np.savez(tmp_path / "mixed.npz", X=X[:, [1, 2, 0]], features=np.array(FEATURES)[[1, 2, 0]])
    assert np.array_equal(read_samples(tmp_path / "mixed.npz", "test", Columns(FEATURES))[0], X)


def test_a_parquet_table_is_read_by_name_part_by_part(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(
        pa.table({"dose": X[:, 2], "id": ["a"] * 120, "age": X[:, 0], "weight": X[:, 1]}), tmp_path / "x.parquet"
    )
    named = MODEL.named(Names(FEATURES, None))
    assert fit(named, tmp_path / "x.parquet", family="shared").certificate == fit(named, X, family="shared").certificate
    pq.write_table(pa.table({"dose": X[:, 2], "weight": X[:, 1]}), tmp_path / "y.parquet")
    with pytest.raises(InputError, match="no column 'age'"):
        fit(named, tmp_path / "y.parquet", family="shared")


def test_a_data_frame_is_taken_by_name() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(X, columns=list(FEATURES))
    found = fit(MODEL, frame, family="shared")
    assert found.names.features == FEATURES
    assert fit(found.mlp, frame[["dose", "age", "weight"]], family="shared").certificate == found.certificate
    with pytest.raises(InputError, match="X_cal has no column 'dose'"):
        fit(found.mlp, frame[["age", "weight"]], family="shared")


class Frame:
    """As much of a DataFrame as is used, for machines without pandas."""

    def __init__(self, values: np.ndarray, columns: list[str]) -> None:
        self._values, self.columns = values, columns

    @property
    def iloc(self) -> Frame:
        return self

    def __getitem__(self, place: tuple[slice, list[int]]) -> Frame:
        return Frame(self._values[place], [self.columns[i] for i in place[1]])

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._values)


def test_predict_takes_the_columns_of_a_frame_by_name() -> None:
    found = fit(MODEL, Frame(X, list(FEATURES)))
    assert found.names.features == FEATURES
    mixed = Frame(X[:, [2, 0, 1]], ["dose", "age", "weight"])
    assert (found.predict(mixed) == found.predict(X)).all()
    assert float(found.agreement(mixed)) == float(found.agreement(X))
    with pytest.raises(InputError, match="X has no column 'age'"):
        found.predict(Frame(X, ["a", "weight", "dose"]))


def test_labels_are_read_by_class_name_or_as_class_ids() -> None:
    assert class_ids(["high", "low"], NAMED, 3).tolist() == [2, 0]  # type: ignore[union-attr]
    assert class_ids([2, 0], NAMED, 3).tolist() == [2, 0]  # type: ignore[union-attr]
    assert class_ids(["none"], NAMED, 3) is None
    assert class_ids([3], NAMED, 3) is None
    digits = names_of(classes=[3, 5, 8])
    assert class_ids([8, 3], digits, 3).tolist() == [2, 0]  # type: ignore[union-attr]
    assert class_ids(np.array([8.0, 3.0]), digits, 3).tolist() == [2, 0]  # type: ignore[union-attr]


def test_the_commands_keep_show_and_check_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MODEL.save(tmp_path / "model.npz")
    decided = [CLASSES[c] for c in MODEL.decide(X)]
    calib = table(tmp_path / "calib.csv", cells())
    fit_file = tmp_path / "fit.safetensors"
    code, out, _ = run(capsys, "fit", tmp_path / "model.npz", calib, "-o", fit_file)
    assert code == 0
    assert "columns by name; classes by number" in out
    found = Fit.load(fit_file)
    replace(found, mlp=found.mlp.named(NAMED)).save(fit_file)
    test = table(tmp_path / "test.csv", {"grade": decided, **cells((1, 2, 0))})
    words = ["predict", fit_file, test, "--label-column", "grade", "-o", tmp_path / "out.csv"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    kept = float(np.mean(found.predict(X) == MODEL.decide(X)))
    assert f"accuracy   {kept:.2%} on the labels" in out
    assert f"high: {np.sum(found.predict(X) == 2)}" in out
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "decision,class,logit_low,logit_middle,logit_high"
    assert [line.split(",")[1] for line in lines[1:]] == [CLASSES[c] for c in found.predict(X)]
    code, _, err = run(capsys, "verify", fit_file, test, "--label-column", "marks")
    assert code == 2
    assert "no column 'marks' for --label-column; its columns are 'grade', 'weight', 'dose', 'age'" in err
    assert run(capsys, "verify", fit_file, test)[0] == 0  # in order by name, so it is the calibration data


def test_a_scikit_learn_model_brings_its_names() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    labels = np.array(CLASSES)[MODEL.decide(X)]
    made = neural.MLPClassifier((6,), max_iter=5, random_state=0)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        made.fit(pandas.DataFrame(X, columns=list(FEATURES)), labels)
    found = MLP.from_sklearn(made)
    assert found.names == Names(FEATURES, tuple(made.classes_))
    assert found.names.classes == tuple(sorted(CLASSES))


@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("labels", [CLASSES, (3, 5, 8)])
def test_the_labels_of_skl2onnx_are_the_class_names(
    labels, zipmap: bool, hidden: tuple[int, ...], tmp_path: Path
) -> None:
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    y = np.array(labels)[MODEL.decide(X)]
    made = neural.MLPClassifier(hidden, solver="lbfgs", tol=1e9, random_state=0).fit(X, y)
    proto = convert.to_onnx(made, X[:1].astype(np.float32), options={"zipmap": zipmap})
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    found = MLP.load(tmp_path / "model.onnx")
    assert found.names.classes == tuple(str(each) for each in made.classes_)
    assert (class_ids(made.predict(X), found.names, 3) == found.decide(X)).all()
