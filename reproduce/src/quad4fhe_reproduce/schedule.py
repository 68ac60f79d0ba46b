"""Which runs a table needs, and in which order they are done.

Decides tables, runs and order: what matters most first, so that an interrupted reproduction is a useful one. Doing
them is left to `runner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quad4fhe.errors import InputError
from quad4fhe_reproduce.data.sets import data_set
from quad4fhe_reproduce.recipes import RECIPES, SEED, WIDTH, WIDTHS, recipe
from quad4fhe_reproduce.records import Kind, Task

SEEDS = (2027, 2028, 2029, 2030)
CKKS_SETS = ("otto", "cub200_lite0", "massive_en_minilm")
"""The paper's three encrypted tasks: Otto, DINOv2/FGVC-Aircraft and Qwen3/MASSIVE, on the data at hand."""

MLP_SETS = tuple(r.name for r in RECIPES if r.family == "mlp" and r.data.classes > 2)
BINARY_SETS = tuple(r.name for r in RECIPES if r.data.classes == 2)
FROZEN_SETS = tuple(r.name for r in RECIPES if r.family == "frozen")
ALL_SETS = (*BINARY_SETS, *MLP_SETS, *FROZEN_SETS)
QUICK_SETS = ("breast_cancer", "diabetes")
QUICK_WIDTH = 64

TABLES: dict[str, str] = {
    "mlp": "full-train MLPs at width 256",
    "binary": "binary feasibility and coefficients",
    "diagnostics": "regimes, constraints, slack and agreement",
    "smallpool": "fits to 1, 5, 10 and 20% of the data",
    "frozen": "MLP heads on frozen backbones",
    "widths": "widths 64, 128 and 256",
    "families": "unitwise, head and auto beside the shared fit",
    "encrypted": "our folded circuits under encryption",
    "ckks": "minimum configuration, operation counts and precision sweep of the paper's circuit",
    "seeds": "five seeds, mean and spread",
    "classes": "F1 and agreement by class",
    "margins": "sensitivity to samples of low margin",
}


def _tasks(
    kind: Kind, names: Iterable[str], widths: Sequence[int] = (WIDTH,), seeds: Sequence[int] = (SEED,)
) -> list[Task]:
    return [Task(kind=kind, name=name, width=width, seed=seed) for seed in seeds for width in widths for name in names]


def tasks(tables: Sequence[str] = (), *, quick: bool = False) -> list[Task]:
    """The runs of these tables (all of them by default) in the order they should be done.

    `quick` is a trial on the small sets: same code, narrow models, no spread over seeds.
    """
    for name in tables:
        if name not in TABLES:
            raise InputError(f"no table is called {name!r}; wanted one of {', '.join(TABLES)}")
    wanted = set(tables or TABLES)
    if quick:
        return _quick(wanted)
    rest = tuple(width for width in WIDTHS if width != WIDTH)
    full = {"diagnostics", "widths", "margins"}
    beyond = {"families", "encrypted", "diagnostics", "seeds", "classes", "margins"}
    groups: list[tuple[set[str], list[Task]]] = [
        (full | {"binary"}, _tasks("plain", BINARY_SETS)),
        (full | {"mlp"}, _tasks("plain", MLP_SETS)),
        (full | {"frozen"}, _tasks("plain", FROZEN_SETS)),
        ({"smallpool"}, _tasks("pool", ALL_SETS)),
        *((beyond | _showing(name), _tasks("families", [name])) for name in _cheapest_first(ALL_SETS)),
        ({"ckks"}, _tasks("ckks", CKKS_SETS)),
        ({"widths"}, _tasks("plain", ALL_SETS, rest)),
        ({"smallpool"}, _tasks("pool", BINARY_SETS, seeds=SEEDS)),
        ({"seeds"}, _tasks("seed", _cheapest_first(ALL_SETS), seeds=SEEDS)),
    ]
    return [task for names, group in groups if names & wanted for task in group]


def _showing(name: str) -> set[str]:
    """The tables of single sets that show this one's families."""
    own = "binary" if name in BINARY_SETS else "mlp" if name in MLP_SETS else "frozen"
    return {own, "ckks"} if name in CKKS_SETS else {own}


def _quick(wanted: set[str]) -> list[Task]:
    elsewhere = {"smallpool", "ckks"}
    groups: list[tuple[set[str], list[Task]]] = [
        (wanted - elsewhere - {"families", "encrypted", "classes"}, _tasks("plain", QUICK_SETS, (QUICK_WIDTH,))),
        ({"smallpool"}, _tasks("pool", QUICK_SETS[:1], (QUICK_WIDTH,))),
        (wanted - elsewhere - {"widths"}, _tasks("families", QUICK_SETS[:1], (QUICK_WIDTH,))),
    ]
    return [task for names, group in groups if names & wanted for task in group]


def _cheapest_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: data_set(name).rows * data_set(name).classes)


# CPU seconds of a run on a small set, and what a data set of 60,000 rows adds, measured once at width 256.
_SECONDS = {
    "plain": (4.0, 25.0),
    "pool": (4.0, 40.0),
    "families": (25.0, 120.0),
    "ckks": (100.0, 300.0),
    "seed": (4.0, 25.0),
}


def weight(task: Task) -> float:
    """A guess of the CPU seconds of a run, to say how much time is left."""
    data = recipe(task.name).data
    base, slope = _SECONDS[task.kind]
    size = data.rows * (1.0 + data.classes / 25.0) / 60_000.0
    return (base + slope * size) * (0.3 + 0.7 * task.width / WIDTH)
