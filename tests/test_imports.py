"""Arrows point one way: nothing below imports anything above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import quad4fhe
from quad4fhe.layouts import LAYOUTS

SOURCE = Path(quad4fhe.__file__).parent

# From the ground up. A module may import from its own floor and from floors before it.
FLOORS = [
    {"errors", "_arrays", "_dyadic", "_progress", "_threads", "_registry", "names", "_box"},
    {"io"},
    {"workers"},
    {"activations", "feature_part", "feature_checks", "feature_process", "feature_child"},
    {"mlp", "deep", "raw", "importers"},
    {"polynomial", "regime", "_forecast", "exporters"},
    {"proof"},
    {"fitting"},
    {"planning"},
    {"layouts"},
    {"he"},
    {"serve", "folders", "report"},
    {"demo", "_selfchecks", "doctor", "sklearn", "cli", "__init__", "__main__"},
]
FLOOR = {name: level for level, names in enumerate(FLOORS) for name in names}


@cache
def _modules() -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


def _imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("quad4fhe.") for name in found if name.startswith("quad4fhe.")}


def _needed_at_start(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules that are imported when this one is, not inside functions or for type checkers only."""
    named = [
        node for node in tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("quad4fhe")
    ]
    found = set()
    for node in named:
        package = (node.module or "").removeprefix("quad4fhe").lstrip(".")
        for alias in node.names:
            inner = f"{package}.{alias.name}".lstrip(".")
            found.add(inner if inner in modules else package)
    return found & modules


def test_the_house_stays_low_and_its_modules_short() -> None:
    """The longest chain of imports, and the longest module; see CONTRIBUTING.md."""
    modules = {name.removesuffix(".__init__"): tree for name, tree in _modules().items()}
    needs = {name: _needed_at_start(tree, set(modules)) - {name} for name, tree in modules.items()}
    depth: dict[str, int] = {}

    def depth_of(name: str) -> int:
        if name not in depth:
            depth[name] = 0
            depth[name] = 1 + max((depth_of(each) for each in needs[name]), default=0)
        return depth[name]

    assert max(map(depth_of, modules)) <= 14
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert max(lines.values()) <= 450


def test_every_module_imports_only_from_its_floor_or_below() -> None:
    wrong = []
    for module, tree in _modules().items():
        room = module.split(".")[0]
        assert room in FLOOR, f"{module} has no floor: say in this test where it belongs"
        for target in _imports(tree):
            if target.split(".")[0] in FLOOR and FLOOR[target.split(".")[0]] > FLOOR[room]:
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_checking_a_certificate_uses_nothing_of_the_solvers() -> None:
    modules = _modules()
    seen, todo = set(), ["proof.verification", "proof.guarantee", "proof.holdout"]
    while todo:
        module = todo.pop()
        if module in seen or module not in modules:
            continue
        seen.add(module)
        # The constructors of MLP reach the importers when they are called; a check never calls them.
        todo += [t for t in _imports(modules[module]) if not (module == "mlp" and t.startswith("importers"))]
    assert not {module for module in seen if module.split(".")[0] == "fitting"}
    assert "proof.exact" in seen


def test_only_a_layout_knows_its_name() -> None:
    """What differs between layouts is asked of the layout, so that a new one is one folder and one line."""
    wrong = []
    for module, tree in _modules().items():
        if module.split(".")[0] == "layouts":
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Compare | ast.Match):
                continue
            literals = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if isinstance(node, ast.Match):
                literals = {
                    each.value
                    for case in node.cases
                    for each in ast.walk(case.pattern)
                    if isinstance(each, ast.Constant)
                }
            wrong += [f"{module}:{node.lineno} compares {name!r}" for name in literals & set(LAYOUTS.names())]
    assert not wrong


def test_only_one_file_imports_the_seal_binding() -> None:
    users = set()
    for module, tree in _modules().items():
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.append(node.module)
            if any(name.split(".")[0] == "seal" for name in names):
                users.add(module)
    assert users <= {"he.seal"}


def test_a_command_starts_without_what_only_some_commands_need() -> None:
    heavy = [
        "numpy",
        "scipy",
        "seal",
        "safetensors",
        "threadpoolctl",
        "torch",
        "ray",
        "matplotlib",
        "numba",
        "sklearn",
        "onnx",
        "pyarrow",
    ]
    program = f"import sys, quad4fhe.cli; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "[]"
