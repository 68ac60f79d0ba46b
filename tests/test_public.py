"""The public face: what `import quad4fhe` offers, says of itself and costs."""

from __future__ import annotations

import ast
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quad4fhe
from quad4fhe import MLP, Client, InputError, Plan, fit, plan, score
from quad4fhe.he.session import Server
from quad4fhe.report import report
from support.cases import PAIRS, PAIRS_X

SOURCE = Path(quad4fhe.__file__).parent


def alone(program: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


def checked_imports() -> dict[str, str]:
    """Public names and their modules, as type checkers see them."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    froms = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in froms for alias in node.names}


def test_what_is_loaded_is_what_type_checkers_see() -> None:
    assert {name: f"quad4fhe.{home}" for name, home in quad4fhe._HOME.items()} == checked_imports()
    assert sorted(quad4fhe.__all__) == sorted(quad4fhe._HOME)
    for name, home in quad4fhe._HOME.items():
        value = getattr(quad4fhe, name)
        assert value.__name__ == name
        assert value.__module__ == f"quad4fhe.{home}"


def test_importing_and_listing_load_no_library() -> None:
    program = "import sys, quad4fhe; dir(quad4fhe); print([m for m in ('numpy', 'scipy', 'seal') if m in sys.modules])"
    assert alone(program) == "[]"


def test_a_server_loads_no_part_that_fits_or_reads_samples() -> None:
    program = (
        "import sys; from quad4fhe import Plan, PolynomialModel, answer; from quad4fhe.layouts import LAYOUTS; "
        "LAYOUTS.get('lift'); others = ('calibration', 'fitting', 'workers', 'io.rows', 'importers'); "
        "print([m for m in sys.modules if m in ('scipy.optimize', 'sklearn') "
        "or m.startswith(tuple('quad4fhe.' + other for other in others))])"
    )
    assert alone(program) == "[]"


def test_dir_names_everything() -> None:
    assert set(quad4fhe.__all__) | {"__version__", "__doc__"} <= set(dir(quad4fhe))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        quad4fhe.nonsense  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="nonsense"):
        exec("from quad4fhe import nonsense")


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """Importing a submodule sets it on its package, over whatever has its name there."""
    rooms = {path.stem for path in SOURCE.iterdir()}
    assert not rooms & set(quad4fhe.__all__)
    program = (
        "import importlib, pkgutil, quad4fhe; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(quad4fhe.__path__, 'quad4fhe.') "
        "if m.name.split('.')[1] in ('fitting', 'polynomials', 'circuit', 'scoring', 'data')]; "
        "print([n for n in quad4fhe.__all__ if type(getattr(quad4fhe, n)).__name__ == 'module'])"
    )
    assert alone(program) == "[]"


def test_help_opens_with_what_to_call() -> None:
    text = pydoc.plain(pydoc.render_doc(quad4fhe))
    assert text.index("found = fit(mlp, X_cal)") < text.index("CLASSES")
    for name in quad4fhe.__all__:
        assert name in text


def test_help_works_without_scikit_learn() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None; import pydoc, quad4fhe; "
        "text = pydoc.plain(pydoc.render_doc(quad4fhe)); print('fit(' in text, 'QuadraticReplacement' in dir(quad4fhe))"
    )
    assert alone(program) == "True False"


def test_what_help_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PAIRS.mlp.save("model.npz")
    for name in ("calib", "test"):
        np.savez(f"{name}.npz", X=PAIRS_X, y=PAIRS.mlp.decide(PAIRS_X))
    lines = [line.strip() for line in str(quad4fhe.__doc__).splitlines() if line.startswith("    ")]
    scope: dict[str, Any] = {name: getattr(quad4fhe, name) for name in quad4fhe.__all__}
    exec("\n".join(lines).replace("model.onnx", "model.npz"), scope)
    assert np.array_equal(scope["decisions"], fit(PAIRS.mlp, PAIRS_X).predict(PAIRS_X))


# --- docstrings -------------------------------------------------------------------------------------------------


def public_callables() -> Iterator[tuple[str, Any, str]]:
    """(name, callable, docstring) of public functions, classes with a constructor of their own, and their methods."""
    for name in [*quad4fhe.__all__, "report"]:
        value = report if name == "report" else getattr(quad4fhe, name)
        if inspect.isfunction(value):
            yield name, value, str(value.__doc__)
        elif inspect.isclass(value) and str(value.__module__).startswith("quad4fhe"):
            own = value.__dict__.get("__init__")
            if own is not None and own.__code__.co_filename.startswith(str(SOURCE)):
                yield name, own, str(value.__doc__)
            for method in vars(value).values():
                if inspect.isfunction(method) and not method.__name__.startswith("_"):
                    yield f"{name}.{method.__name__}", method, str(method.__doc__)


def test_public_functions_with_many_parameters_describe_each() -> None:
    seen = []
    for name, function, text in public_callables():
        parameters = [each for each in inspect.signature(function).parameters if each != "self"]
        if len(parameters) > 5:
            section = inspect.cleandoc(text).partition("Parameters\n----------\n")[2]
            assert re.findall(r"^(\w+)$", section, re.MULTILINE) == parameters, name
            seen.append(name)
    assert {"fit", "plan", "verify", "score", "report", "Remote", "QuadraticReplacement"} <= set(seen)


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz"])
def test_a_saved_model_is_the_same_model(name: str, tmp_path: Path) -> None:
    mlp = MLP([[0.1, 2**-1074], [-0.0, 3e300]], [1 / 3, -1.0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0.0, 1.0, 2.0])
    mlp.save(tmp_path / name)
    read = MLP.load(tmp_path / name)
    assert read.sha256 == mlp.sha256
    first = (tmp_path / name).read_bytes()
    read.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.onnx", "saved as .safetensors or .npz, not 'model.onnx'"),
        ("none/model.npz", "none does not exist"),
    ],
)
def test_a_model_that_cannot_be_saved_says_why(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        PAIRS.mlp.save(tmp_path / name)
    assert not os.listdir(tmp_path)


def test_a_saved_plan_is_the_same_plan(tmp_path: Path) -> None:
    made = plan(PAIRS, samples=100)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    (tmp_path / "plan.json").write_bytes((tmp_path / "plan.json").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"plan\.json: the plan cannot be read .*; make one with: quad4fhe plan"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match="no such file"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match="does not exist; make that folder"):
        made.save(tmp_path / "nowhere" / "plan.json")


def test_score_takes_folders_as_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        score(PAIRS, str(tmp_path / "nowhere"), str(tmp_path / "replies"))


# --- how things print -------------------------------------------------------------------------------------------


def test_client_and_server_print_in_one_short_line() -> None:
    made = plan(PAIRS, samples=100, layout="batch")
    both = f"layout batch, ring N = {made.chain.ring}, model {PAIRS.model_id[:12]}"
    client = Client(made)
    assert repr(client) == f"Client({both})"
    assert repr(Server(PAIRS, made)) == f"Server({both})"
