from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from quad4fhe import InputError, MissingExtraError
from quad4fhe.io.samples import open_rows, read_samples
from support.reference_models import assert_refused, damages

X = np.array([[1.5, -2.0], [3.0, 4.25], [0.0, 1e-7]])
Y = np.array([0, 1, 1])
CSV = "a,b,Outcome\n1.5,-2,0\n3,4.25,1\n0,1e-7,1\n"

matrices = arrays(
    np.float64, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-1e6, 1e6, allow_subnormal=False)
)


@settings(max_examples=40, deadline=None)
@given(matrices)
def test_every_format_gives_back_the_numbers_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, matrix: Any
) -> None:
    folder = tmp_path_factory.mktemp("samples")
    text = "\n".join(",".join(repr(float(cell)) for cell in row) for row in matrix) + "\n"
    np.savez(folder / "x.npz", X=matrix)
    np.save(folder / "x.npy", matrix)
    (folder / "x.csv").write_text(text)
    (folder / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("x.npz", "x.npy", "x.csv", "x.csv.gz"):
        read, labels = read_samples(folder / name, "test")
        np.testing.assert_array_equal(read, matrix)
        assert labels is None


def test_parquet_gives_back_the_numbers_and_labels_that_were_written(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    columns = {"a": X[:, 0], "Target": ["no", "yes", "yes"], "n": [True, False, True], "__index_level_0__": [4, 5, 6]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    read, labels = read_samples(tmp_path / "x.parquet", "test")
    np.testing.assert_array_equal(read, np.column_stack([X[:, 0], [1, 0, 1]]))
    assert labels is not None
    assert labels.tolist() == ["no", "yes", "yes"]


@pytest.mark.parametrize(
    ("role", "keys", "wanted"),
    [
        ("calibration", ("X", "y"), "X"),
        ("test", ("X", "y"), "X"),
        ("calibration", ("X_cal", "y_cal", "X_test", "y_test"), "X_cal"),
        ("test", ("X_cal", "y_cal", "X_test", "y_test"), "X_test"),
        ("test", ("X", "y", "X_test"), "X_test"),
    ],
)
def test_the_role_picks_the_arrays_of_an_archive_and_labels_follow(
    tmp_path: Path, role: Literal["calibration", "test"], keys: tuple[str, ...], wanted: str
) -> None:
    content = {key: np.full((2, 3) if key[0] == "X" else 2, index) for index, key in enumerate(keys)}
    np.savez(tmp_path / "x.npz", **content)
    read, labels = read_samples(tmp_path / "x.npz", role)
    assert read[0, 0] == keys.index(wanted)
    assert (labels is None) == (wanted.replace("X", "y") not in keys)
    if labels is not None:
        assert labels[0] == keys.index(wanted.replace("X", "y"))


def test_integer_codes_are_multiplied_by_their_scale(tmp_path: Path) -> None:
    codes, scale = np.array([[10, -3], [7, 127]], np.int8), np.array([0.5, 0.25], np.float32)
    np.savez(tmp_path / "x.npz", X=codes, scale=scale)
    read, _ = read_samples(tmp_path / "x.npz", "test")
    np.testing.assert_array_equal(read, [[5.0, -0.75], [3.5, 31.75]])


def test_an_npy_file_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    read, _ = read_samples(tmp_path / "x.npy", "test")
    assert isinstance(read, np.memmap)
    assert not read.flags.writeable


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        "\ufeff" + CSV.replace("\n", "\r\n"),
        CSV.replace("\n", "\n\n"),
        CSV.replace("Outcome", '"LABEL"').replace("1.5", '"1.5"'),
        CSV.replace("a,b", "0,1"),
        "y,a,b\n0,1.5,-2\n1,3,4.25\n1,0,1e-7\n",
    ],
    ids=["plain", "windows", "blank lines", "quoted", "numbered names", "labels first"],
)
def test_a_header_names_the_labels(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text, newline="")
    read, labels = read_samples(tmp_path / "x.csv", "calibration")
    np.testing.assert_array_equal(read, X)
    np.testing.assert_array_equal(labels, Y)
    assert labels is not None
    assert labels.dtype.kind == "i"


def test_text_labels_are_kept_and_so_are_labels_between_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,target\n1,setosa\n2,virginica\n")
    (tmp_path / "y.csv").write_text("a,target\n1,0.5\n2,1\n")
    text, half = (read_samples(tmp_path / name, "test")[1] for name in ("x.csv", "y.csv"))
    assert text is not None
    assert half is not None
    assert text.tolist() == ["setosa", "virginica"]
    assert half.tolist() == [0.5, 1.0]


def test_the_diabetes_table_and_its_archive_hold_the_same_samples(trained: Callable[[str], Any]) -> None:
    folder = trained("diabetes").path.parents[1]
    if not (folder / "diabetes.csv.gz").exists():
        pytest.skip(f"no diabetes.csv.gz in {folder}")
    table, outcome = read_samples(folder / "diabetes.csv.gz", "test")
    archive, y = read_samples(folder / "diabetes.npz", "test")
    np.testing.assert_array_equal(table.astype(np.float32), archive)
    np.testing.assert_array_equal(outcome, y)


def npz(**content: Any) -> Callable[[Path], Any]:
    return lambda path: np.savez(path, **content)


def npy(array: Any) -> Callable[[Path], Any]:
    return lambda path: np.save(path, array, allow_pickle=True)


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


def data(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def parquet(**columns: Any) -> Callable[[Path], Any]:
    def write(path: Path) -> None:
        pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)

    return write


def archive_named_npy(path: Path) -> None:
    np.savez(path.with_suffix(".npz"), X=X)
    path.with_suffix(".npz").rename(path)


BAD: dict[str, tuple[str, Callable[[Path], Any], list[str]]] = {
    "missing": ("x.csv", lambda path: None, ["no such file"]),
    "folder": ("x.npz", lambda path: path.mkdir(), ["this is a folder"]),
    "empty": ("x.csv", text(""), ["the file is empty"]),
    "unknown suffix": ("x.xlsx", text("a"), ["wanted .npz, .npy, .csv, .csv.gz, .parquet"]),
    "gz of something else": ("x.txt.gz", text("a"), ["not a samples file"]),
    "no X": ("x.npz", npz(W1=X), ["holds 'W1'", "'X' or 'X_cal' for the calibration samples"]),
    "the other role": ("x.npz", npz(X_test=X), ["holds 'X_test'", "'X_cal'"]),
    "noise npz": ("x.npz", data(b"noise" * 9), ["the .npz archive cannot be read"]),
    "object npz": ("x.npz", npz(X=np.array([[None]], dtype=object)), ["'X'", "numbers or text"]),
    "object labels": ("x.npz", npz(X=X, y=np.array([1, "a", None], dtype=object)), ["'y'", "numbers or text"]),
    "text npz": ("x.npz", npz(X=np.array([["a"]])), ["X has dtype", "real numbers"]),
    "scale": ("x.npz", npz(X=np.ones((2, 3), np.int8), scale=np.ones(2)), ["scale has shape (2,)", "X (2, 3)"]),
    "labels of another length": ("x.npz", npz(X=X, y=Y[:2]), ["y has shape (2,)", "each of the 3 samples"]),
    "one sample as vector": ("x.npy", npy(np.ones(4)), ["X has shape (4,)", "(samples, features)"]),
    "no samples": ("x.npz", npz(X=np.ones((0, 4))), ["X has shape (0, 4)", "at least one"]),
    "object npy": ("x.npy", npy(np.array([[None]], dtype=object)), ["the .npy array cannot be read"]),
    "noise npy": ("x.npy", data(b"noise" * 9), ["the .npy array cannot be read"]),
    "archive as npy": ("x.npy", archive_named_npy, ["holds an archive", "name it .npz"]),
    "word": ("x.csv", text("a,b\n1,2\n3,four\n"), ["row 2 (line 3), column 'b': 'four' is not a number"]),
    "word, no header": ("x.csv", text("1,2\n\n3,four\n"), ["row 2 (line 3), column 2: 'four'"]),
    "hole": ("x.csv", text("a,b\n1,\n"), ["row 1 (line 2), column 'b'", "the cell is empty"]),
    "ragged": ("x.csv", text("a,b\n1,2\n3,4,5\n"), ["row 2 (line 3) has 3 cells, but the first row has 2"]),
    "text label without header": ("x.csv", text("5.1,3.5,setosa\n"), ["row 1", "'setosa'", "header"]),
    "saved index": ("x.csv", text(",a,b\n0,1,2\n"), ["column 1 has no name", "row index"]),
    "two label columns": ("x.csv", text("a,y,Label\n1,2,3\n"), ["'y' and 'Label'", "keep one"]),
    "header only": ("x.csv", text("a,b,y\n"), ["X has shape (0, 2)", "at least one"]),
    "rows shorter than the header": ("x.csv", text("a,b,y\n1\n"), ["row 1 (line 2) has 1 cells", "has 3"]),
    "labels only": ("x.csv", text("y\n1\n"), ["X has shape (1, 0)"]),
    "blank": ("x.csv", text("\n \n"), ["X has shape"]),
    "another encoding": ("x.csv", data("größe\n1\n".encode("latin-1")), ["the CSV table cannot be read", "UTF-8"]),
    "not gzip": ("x.csv.gz", text(CSV), ["the CSV table cannot be read"]),
    "truncated gzip": ("x.csv.gz", data(gzip.compress(CSV.encode())[:-9]), ["the CSV table cannot be read"]),
    "noise parquet": ("x.parquet", data(b"noise" * 9), ["the Parquet table cannot be read"]),
    "text in parquet": ("x.parquet", parquet(a=["x"], y=[1]), ["column 'a' has type string", "wanted numbers"]),
    "hole in parquet": ("x.parquet", parquet(a=[1.0, None]), ["row 2, column 'a'", "empty"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_without_samples_is_refused_in_one_line_with_its_path(case: str, tmp_path: Path) -> None:
    name, make, words = BAD[case]
    path = tmp_path / name
    make(path)
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(InputError) as caught:
        read_samples(path, "calibration")
    assert_refused(str(caught.value), f"{path}: ", *words)


def two_of_a_name(path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    pytest.importorskip("pyarrow.parquet").write_table(table, path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (two_of_a_name, "two columns are named 'a'; rename or drop one of them"),
        (parquet(a=["x"], y=[1]), "column 'a' has type string"),
        (parquet(y=[1]), "X has shape (1, 0)"),
        (data(b"noise" * 9), "the Parquet table cannot be read"),
    ],
)
def test_a_table_opened_by_parts_is_refused_with_its_path_once(
    make: Callable[[Path], Any], words: str, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    make(tmp_path / "x.parquet")
    with pytest.raises(InputError) as caught:
        open_rows(tmp_path / "x.parquet", "test")
    assert_refused(str(caught.value), f"{tmp_path / 'x.parquet'}: {words}")
    assert str(caught.value).count("x.parquet:") == 1


def test_a_row_group_must_have_the_rows_it_states(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    for written in (3, 5):
        pq.write_table(pa.table({"a": np.arange(8.0)}), tmp_path / "x.parquet", row_group_size=4)
        rows = open_rows(tmp_path / "x.parquet", "test")
        assert np.array_equal(rows.read(2, 7)[:, 0], np.arange(2.0, 7.0))
        pq.write_table(pa.table({"a": np.arange(8.0)}), tmp_path / "x.parquet", row_group_size=written)
        with pytest.raises(InputError, match=r"x.parquet: row group 0 has another number of rows than its metadata"):
            rows.read(0, 8)


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.csv", "x.csv.gz"])
def test_a_damaged_file_is_read_or_refused_in_one_line_and_nothing_else(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=X, y=Y)
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.csv").write_text(CSV)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(CSV.encode()))

    @settings(max_examples=150, deadline=None)
    @given(damages((tmp_path / name).read_bytes()))
    def check(damaged: bytes) -> None:
        (tmp_path / name).write_bytes(damaged)
        try:
            read_samples(tmp_path / name, "test")
        except InputError as error:
            assert_refused(str(error), name)

    check()


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"quad4fhe\[parquet\]"):
        read_samples(tmp_path / "x.parquet", "test")
