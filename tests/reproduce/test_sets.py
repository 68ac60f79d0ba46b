"""The data sets of the paper: the right file or one clear line, from the folder or from the public source."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from conftest import DATA
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe_reproduce.data import fetch as fetching
from quad4fhe_reproduce.data.fetch import can_fetch, fetch
from quad4fhe_reproduce.data.prepared import file_hash, note_path, read_rows
from quad4fhe_reproduce.data.sets import SETS, DataSet, data_set


@pytest.mark.parametrize("data", SETS, ids=lambda each: each.name)
def test_the_files_of_the_data_folder_are_those_of_the_registry(data: DataSet) -> None:
    if not (DATA / data.file).exists():
        pytest.skip(f"no {data.file}: set QUAD4FHE_DATA to the data folder (looked in {DATA})")
    assert file_hash(data, DATA) == (data.sha256, "")
    if data.text:
        with gzip.open(DATA / data.file, "rt", encoding="utf-8") as handle:
            labels = [int(row["label"]) for row in csv.DictReader(handle)]
        assert (len(labels), len(set(labels))) == (data.rows, data.classes)
    else:
        with np.load(DATA / data.file) as archive:
            assert archive["X"].shape == (data.rows, data.columns)
            assert np.array_equal(np.unique(archive["y"]), np.arange(data.classes))


def test_names_and_files_are_unique_and_every_set_says_where_it_is_from() -> None:
    assert len({each.name for each in SETS}) == len({each.file for each in SETS}) == len(SETS)
    assert all(each.licence and each.source.page.startswith("https://") for each in SETS)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no data set is called 'iris'; wanted one of breast_cancer, diabetes"):
        data_set("iris")


def test_a_missing_file_is_one_line_with_its_name_hash_and_source(tmp_path: Path) -> None:
    otto = data_set("otto")
    with pytest.raises(InputError) as caught:
        read_rows(otto, tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(tmp_path / "otto.npz") in line
    assert otto.sha256 in line
    assert "kaggle.com/c/otto-group" in line


def test_a_file_with_one_wrong_byte_is_refused_with_both_hashes(tmp_path: Path) -> None:
    data = data_set("breast_cancer")
    file = fetch(data, tmp_path)
    expected = json.loads(note_path(file).read_text())["sha256"]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_rows(data, tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(file) in line
    assert data.sha256 in line
    assert line.count("SHA-256") == 1
    assert expected not in line  # what was found is the hash of the damaged file


def test_the_built_in_set_is_fetched_as_scikit_learn_has_it(tmp_path: Path) -> None:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    data = data_set("breast_cancer")
    fetch(data, tmp_path)
    rows = read_rows(data, tmp_path)
    assert rows.X is not None
    assert np.array_equal(rows.X, X)
    assert np.array_equal(rows.y, y)
    assert rows.origin == "scikit-learn breast_cancer"
    before = (tmp_path / data.file).stat().st_mtime_ns
    fetch(data, tmp_path)
    assert (tmp_path / data.file).stat().st_mtime_ns == before


def test_what_no_program_can_fetch_says_where_a_person_can(tmp_path: Path) -> None:
    assert not can_fetch(data_set("otto"))
    with pytest.raises(InputError, match=r"Otto can't be fetched by a program; it is made from train.csv: https://"):
        fetch(data_set("otto"), tmp_path)


def test_a_source_that_fails_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: DataSet) -> bytes:
        raise OSError("Temporary failure\nin name resolution")

    monkeypatch.setitem(fetching._SOURCES, "OpenML", fail)
    with pytest.raises(InputError) as caught:
        fetch(data_set("shuttle"), tmp_path / "data")
    line = str(caught.value)
    assert "\n" not in line
    assert "Shuttle could not be fetched from OpenML (Temporary failure in name resolution); see https://" in line
    assert not (tmp_path / "data").exists()


def test_openml_labels_become_class_ids_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    labels = np.array([str(1 + i % 7) for i in range(70)], dtype=object)
    found = SimpleNamespace(data=np.arange(140.0).reshape(70, 2), target=labels)
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: found)
    fetch(data_set("shuttle"), tmp_path)
    rows = read_rows(data_set("shuttle"), tmp_path)
    assert np.array_equal(rows.y, np.arange(70) % 7)
    assert rows.split is None


def test_a_source_with_other_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    found = SimpleNamespace(data=np.zeros((6, 2)), target=np.array(list("aabbcc"), dtype=object))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: found)
    with pytest.raises(InputError, match="3 classes came, wanted 7"):
        fetch(data_set("shuttle"), tmp_path)


def test_a_missing_package_of_a_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"'datasets', which is not installed: pip install './reproduce\[download\]'"
    ):
        fetch(data_set("sst5"), tmp_path)


def test_hugging_face_texts_are_read_back_with_their_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    rows = [{"label": i % 5, "label_text": "word", "text": f'a "quoted", text {i}\nof two lines'} for i in range(10)]
    parts = {"train": rows[:5], "validation": rows[5:7], "test": rows[7:]}
    monkeypatch.setitem(__import__("sys").modules, "datasets", SimpleNamespace(load_dataset=lambda _: parts))
    fetch(data_set("sst5"), tmp_path)
    read = read_rows(data_set("sst5"), tmp_path)
    assert read.texts == [row["text"] for row in rows]
    assert read.y.tolist() == [row["label"] for row in rows]
    assert read.split is not None
    assert read.split.tolist() == [0] * 5 + [1] * 2 + [2] * 3
