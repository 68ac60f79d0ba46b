"""What a finished run leaves behind: one JSON document, from which every table and picture is made.

Decides what is recorded and under which name: the hash of everything that went in. Measuring is left to `measure` and
`encrypted`, reading and writing to `store`.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from quad4fhe_reproduce.recipes import Recipe, recipe

VERSION = 1
"""Of the experiments: raised whenever the same inputs would give other numbers, so that old runs are done again."""

Kind = Literal["plain", "pool", "families", "ckks", "seed"]


class Task(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run: what is measured on which model.

    "plain": the paper's columns, baselines and sensitivity. "pool": the small-pool experiment, all pools. "families":
    unitwise, head and auto, and every fit under encryption. "ckks": the paper's circuit, its grid and its precision
    sweep. "seed": as plain without baselines, for the spread over seeds.
    """

    kind: Kind
    name: str
    width: int
    seed: int

    @property
    def label(self) -> str:
        """The run in words, for progress."""
        return f"{self.name} {self.kind}, width {self.width}, seed {self.seed}"

    @property
    def recipe(self) -> Recipe:
        """How its model is made."""
        return recipe(self.name)

    def key(self, data_sha256: str) -> str:
        """The hash of every input of this run, which names its file."""
        return _hash([VERSION, self, self.recipe, data_sha256])

    def model_key(self, data_sha256: str) -> str:
        """The hash of what the trained model depends on: tasks that agree in it share one model."""
        return _hash([VERSION, self.recipe, data_sha256, self.width, self.seed, self.kind == "pool"])


def _hash(inputs: object) -> str:
    return hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()[:24]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one model or replacement does on the calibration and test sets; AUC is macro, one class against the rest."""

    name: str
    agreement_cal: float
    agreement_test: float
    mismatches_cal: int
    mismatches_test: int
    accuracy: float
    macro_f1: float
    auc: float | None
    degree: int | None = None
    depth: int | None = None
    products: int | None = None


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """One of our fits. `name` is paper (its own coefficients), polished, unitwise, head or auto.

    Coefficients are those of the shared family. `constraints` is the number of pairwise constraints n (K - 1), None
    for two classes. The lists have one entry per class, or per tenth of the test set in order of the ReLU margin.
    """

    name: str
    family: str
    regime: str
    alpha: float | None
    beta: float | None
    eta: float | None
    hard: str
    lossless: bool
    margin: float
    normalised_margin: float
    constraints: int | None
    slack_count: int | None
    slack_sum: float | None
    slack_max: float | None
    critical_mu: float | None
    gap: float | None
    decimals: int | None
    seconds: float
    measured: Measured
    class_f1: list[float | None]
    class_agreement: list[float | None]
    deciles: list[float]
    estimates: dict[str, float] = {}
    notes: list[str] = []


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A shared fit to the calibration set without the `share` of rows on which the ReLU model is least sure."""

    share: float
    fit: str
    regime: str
    alpha: float
    beta: float
    eta: float
    agreement_test: float
    agreement_all: float


class PoolResult(msgspec.Struct, frozen=True, kw_only=True):
    """One small pool; `fits` is empty where the pool has fewer rows than classes, or the ReLU model one answer."""

    share: float
    rows: int
    missing_classes: int
    why_unavailable: str = ""
    fits: list[Fitted] = []
    baselines: list[Measured] = []


class Encrypted(msgspec.Struct, frozen=True, kw_only=True):
    """A folded circuit: its plan for 4,096 samples, and what real encryption of test samples did.

    Bytes and forecast seconds are of the reference machine for the planned samples; `changed` decisions are those
    that differ from the same model in the clear, on `tried` test samples of which `clipped` lay outside the box.
    """

    fit: str
    layout: str
    precision: str
    ring: int
    bits: int
    primes: int
    samples: int
    upload_bytes: int
    download_bytes: int
    client_seconds: float
    server_seconds: float
    kept: bool
    key_bytes: int = 0  # of layout packed, which earlier releases had
    tried: int = 0
    changed: int | None = None
    clipped: int | None = None
    agreement: float | None = None
    accuracy: float | None = None
    measured_server_seconds: float | None = None
    measured_client_seconds: float | None = None


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """The paper's circuit with one activation in one configuration, under real encryption."""

    scheme: str
    ring: int
    depth: int
    log_q: int
    log2_scale: int
    feasible: bool
    reason: str
    samples: int
    mismatches: int
    accuracy: float | None
    max_error: float | None
    server_seconds: float | None


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Operations on ciphertexts for one request."""

    scheme: str
    encryptions: int
    ct_ct: int
    ct_pt: int
    rotations: int
    relinearisations: int
    rescales: int
    depth: int


class LiftedPlane(msgspec.Struct, frozen=True, kw_only=True):
    """Points of the binary lift for a picture: a stratified sample, the hull corners and the decisions lost."""

    q: list[float]
    h: list[float]
    positive: list[bool]
    lost: list[bool]
    offset: float
    bias: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run."""

    version: int
    key: str
    task: Task
    data_sha256: str
    origin: str
    library: str
    machine: str
    cpu_seconds: float
    wall_seconds: float
    epochs: int
    classes: int
    features: int
    n_train: int
    n_cal: int
    n_test: int
    relu: Measured
    fits: list[Fitted] = []
    baselines: list[Measured] = []
    dropped: list[Dropped] = []
    pools: list[PoolResult] = []
    encrypted: list[Encrypted] = []
    minimum: list[Circuit] = []
    sweep: list[Circuit] = []
    operations: list[Operations] = []
    plane: LiftedPlane | None = None
    notes: list[str] = []
