"""The result of a fit: the polynomial model, how it was found, and what is certified of it, in one file.

Decides what a fit remembers and how it is written (`.safetensors` with a JSON manifest, no pickle). How the numbers
were found is the business of the regimes, what they are worth of `certificate`.
"""

from __future__ import annotations

import hashlib
import html
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from quad4fhe._arrays import Array, IntArray, samples
from quad4fhe.certificate import Certificate
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.exact import decisions
from quad4fhe.fit.trace import SoftStep
from quad4fhe.fit.trials import Conditioning, FamilyStep, FamilyTrial
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel

FORMAT = 1
_TENSORS = ("W1", "b1", "W2", "b2", "S", "T", "c", "box", "margins")
Coefficient = float | Array


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """Samples with positive slack in the soft problem, the sum of their slacks and the largest."""

    count: int
    sum: float
    max: float


class Quantisation(msgspec.Struct, frozen=True, kw_only=True):
    """How coarsely the coefficients may be rounded.

    `tolerance` is m*/M of the quantisation corollary: any unit-norm direction closer than this separates too (hard
    fits only). Rounding alpha, beta, eta and tau to `decimals` decimals, or to multiples of 2^-bits, was checked to
    keep exactly the same calibration decisions, at the threshold that is deployed; coarser rounding was checked not to.
    """

    tolerance: float | None
    decimals: int | None
    bits: int | None


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions kept on a data set."""

    samples: int
    agreement: float
    mismatches: int


class LineOptimum(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest mismatches any line in the lifted plane was found to have, and whether fewer is impossible."""

    mismatches: int
    optimal: bool


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the paper asks a run to record, and the duality gap, critical cap and optimum it does not.

    `hard` says what the exact test found. `margin` is that of the regime's own problem (distance of the hulls or
    reduced hulls, or the worst pairwise margin) and `normalised_margin` the same at unit norm. `weight` is C (or c in
    the plane). Seconds are wall time by stage. For unitwise and head, `margin` is the worst margin of the logits and
    `normalised_margin` that over the norm of (S, T, c); `hard`, `critical_mu` and the traces are those of the shared
    fit that served as prior. `families` and `conditioning` hold one entry per family that was tried or fitted.
    """

    samples: int
    classes: int
    hard: Literal["feasible", "infeasible", "undecided", "not tried"]
    calibration: Agreement
    test: Agreement | None
    margin: float
    normalised_margin: float
    slack: Slack | None
    mu: float | None
    mu_plus: float | None
    mu_minus: float | None
    critical_mu: float | None
    weight: float | None
    gap: float | None
    cap_trace: list[tuple[float, float]]
    soft_trace: list[SoftStep]
    best_line: LineOptimum | None
    quantisation: Quantisation
    sweeps: int
    notes: list[str]
    seconds: dict[str, float]
    families: list[FamilyTrial] = []
    family_trace: list[FamilyStep] = []
    conditioning: list[Conditioning] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON document in a fit file's metadata."""

    format: int
    family: str
    regime: str
    threshold: str
    alpha: float | list[float] | None
    beta: float | list[float] | None
    eta: float | list[float] | None
    tau: float
    seed: int
    diagnostics: Diagnostics
    certificate: Certificate
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Fit:
    """A replacement of one model's ReLU, with its evidence.

    `alpha`, `beta`, `eta` are floats for the shared family, (m,) arrays for unitwise, None for head; `tau` is the
    decision threshold that was moved into c (0 unless shared with threshold="free"). `box` (2, d) is the range of each
    feature on the calibration set and `margins` (n,) the gap between the winning logit and the next on each
    calibration sample.
    """

    mlp: MLP
    model: QuadraticModel
    family: str
    regime: str
    threshold: str
    alpha: Any
    beta: Any
    eta: Any
    tau: float
    seed: int
    box: Array
    margins: Array
    diagnostics: Diagnostics
    certificate: Certificate
    versions: dict[str, str]

    @property
    def S(self) -> Array:
        """The weights of the squares, (K, m)."""
        return self.model.S

    @property
    def T(self) -> Array:
        """The weights of the pre-activations, (K, m)."""
        return self.model.T

    @property
    def c(self) -> Array:
        """The constants, (K,)."""
        return self.model.c

    def decision_function(self, X: ArrayLike) -> Array:
        """The polynomial model's logits (n, K), or scores (n,) where the model has one output."""
        logits = self.model.logits(X)
        return logits[:, 0] if self.model.outputs == 1 else logits

    def predict(self, X: ArrayLike) -> IntArray:
        """The polynomial model's decisions (n,)."""
        return self.model.decide(X)

    def agreement(self, X: ArrayLike) -> Agreement:
        """How many decisions of the ReLU model are kept on X, in exact arithmetic."""
        checked = samples("X", X, self.mlp.features)
        return count_agreement(self.mlp, self.model, checked)

    def save(self, path: str | Path) -> None:
        """Write the fit to one .safetensors file, whole or not at all."""
        path = Path(path)
        if path.suffix != ".safetensors":
            raise InputError(
                f"a fit is saved as .safetensors, not {path.name!r}; choose a name such as fit.safetensors"
            )
        data = self.to_bytes()
        try:
            _write_atomically(path, data)
        except OSError as error:
            raise InputError(f"can't write {path}: {error.strerror or error}; nothing was changed there") from None

    def to_bytes(self) -> bytes:
        """The content of a fit file."""
        manifest = msgspec.json.encode(self._manifest())
        tensors = self._tensors()
        metadata = {"quad4fhe": manifest.decode(), "sha256": _digest(manifest, tensors)}
        return save_tensors(tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a fit file; raises CertificateError if it was changed after it was written."""
        path = Path(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"can't read {path}: {error.strerror or error}") from None
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the fit") -> Fit:
        """Read the content of a fit file; `name` is what an error calls it."""
        try:
            tensors = load_tensors(data)
            metadata = _metadata(data)
            text, digest = metadata["quad4fhe"], metadata["sha256"]
        except (SafetensorError, KeyError, ValueError, TypeError):
            raise InputError(
                f"{name} is not a fit file; make one with: quad4fhe fit MODEL CALIB -o fit.safetensors"
            ) from None
        if set(tensors) != set(_TENSORS) or digest != _digest(text.encode(), tensors):
            raise CertificateError(f"{name} was changed or damaged after it was written: its SHA-256 does not match")
        try:
            manifest = msgspec.json.decode(text, type=Manifest)
        except msgspec.ValidationError as error:
            raise InputError(f"{name} was written by another version of quad4fhe ({error}); fit it again") from None
        if manifest.format != FORMAT:
            raise InputError(f"{name} has format {manifest.format}, this version reads format {FORMAT}; fit it again")
        return cls(
            mlp=MLP(*(tensors[key] for key in ("W1", "b1", "W2", "b2"))),
            model=QuadraticModel(*(tensors[key] for key in ("W1", "b1", "S", "T", "c"))),
            family=manifest.family,
            regime=manifest.regime,
            threshold=manifest.threshold,
            alpha=_coefficient(manifest.alpha),
            beta=_coefficient(manifest.beta),
            eta=_coefficient(manifest.eta),
            tau=manifest.tau,
            seed=manifest.seed,
            box=tensors["box"],
            margins=tensors["margins"],
            diagnostics=manifest.diagnostics,
            certificate=manifest.certificate,
            versions=manifest.versions,
        )

    def _tensors(self) -> dict[str, Array]:
        own = {"S": self.S, "T": self.T, "c": self.c, "box": self.box, "margins": self.margins}
        arrays = {"W1": self.mlp.W1, "b1": self.mlp.b1, "W2": self.mlp.W2, "b2": self.mlp.b2, **own}
        return {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}

    def _manifest(self) -> Manifest:
        def plain(value: Any) -> Any:
            return value.tolist() if isinstance(value, np.ndarray) else value

        return Manifest(
            format=FORMAT,
            family=self.family,
            regime=self.regime,
            threshold=self.threshold,
            alpha=plain(self.alpha),
            beta=plain(self.beta),
            eta=plain(self.eta),
            tau=self.tau,
            seed=self.seed,
            diagnostics=self.diagnostics,
            certificate=self.certificate,
            versions=self.versions,
        )

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain Python data, for JSON."""
        document = msgspec.to_builtins(self._manifest())
        assert isinstance(document, dict)
        return document

    def summary(self) -> list[tuple[str, str]]:
        """The result in words: (name, value) lines for a terminal or a notebook."""
        d, held = self.diagnostics, self.certificate
        lines = [("family", self.family), ("regime", self.regime)]
        if self.family == "unitwise":
            lines.append(("coefficients", f"alpha, beta and eta for each of {self.mlp.units} hidden units"))
        elif self.family == "head":
            K, m = self.S.shape
            lines.append(("coefficients", f"S and T ({K} x {m}) and c ({K}), all free"))
        else:
            tau = f", tau {self.tau:.6g}" if self.tau else ""
            lines.append(("coefficients", f"alpha {self.alpha:.6g}, beta {self.beta:.6g}, eta {self.eta:.6g}{tau}"))
        kept = f"{100 * d.calibration.agreement:.2f}% of {d.samples} decisions kept"
        lines.append(("calibration", f"{kept}, {d.calibration.mismatches} lost"))
        if d.test is not None:
            kept = f"{100 * d.test.agreement:.2f}% of {d.test.samples} decisions kept"
            lines.append(("test", f"{kept}, {d.test.mismatches} lost"))
        for trial in d.families:
            chosen = " (chosen)" if trial.family == self.family and len(d.families) > 1 else ""
            estimate = f"{100 * trial.agreement:.2f}% ± {100 * trial.spread:.2f}"
            lines.append(("cross-validated", f"{trial.family} {estimate}{chosen}"))
        lines.append(("margin", f"{d.margin:.6g} (normalised {d.normalised_margin:.6g})"))
        if d.gap is not None:
            lines.append(("duality gap", f"{d.gap:.1e} (relative)"))
        words = {"lossless": "lossless on the calibration set, exactly", "measured": "measured, not lossless"}
        proof = "; no shared quadratic can keep all (evidence included)" if held.impossible else ""
        lines.append(("certificate", words[held.statement] + proof))
        if d.quantisation.decimals is not None:
            q = d.quantisation
            lines.append(("safe rounding", f"{q.decimals} decimals or {q.bits} bits after the point"))
        return lines + [("note", note) for note in d.notes]

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr align='left'><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self.summary()
        )
        return f"<table><caption>quad4fhe fit</caption>{cells}</table>"


def count_agreement(mlp: MLP, model: QuadraticModel, X: Any) -> Agreement:
    """Decisions of `mlp` that `model` keeps on X (n, d), in exact arithmetic."""
    n = int(X.shape[0])
    if n == 0:
        raise InputError("X has no rows, so there is no agreement to measure")
    lost = int(np.count_nonzero(decisions(mlp, X).label != decisions(model, X).label))
    return Agreement(samples=n, agreement=1.0 - lost / n, mismatches=lost)


def check_fit_path(path: str | Path) -> Path:
    """Refuse, before any work is done, a place where a fit can't be saved."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a fit is saved as .safetensors, not {path.name!r}; choose a name such as fit.safetensors")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"would be in {path.parent}, which does not exist"
        raise InputError(f"{path} {what}; choose a file in an existing folder")
    return path


def _coefficient(value: float | list[float] | None) -> Any:
    return np.array(value) if isinstance(value, list) else value


def _digest(manifest: bytes, tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(b"quad4fhe-fit-1")
    digest.update(len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _metadata(data: bytes) -> dict[str, str]:
    header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return dict(header["__metadata__"])


def _write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target and rename, so that a crash or a full disk leaves the old file as it was."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
