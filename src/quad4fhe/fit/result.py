"""The result of a fit: the polynomial model, how it was found, and what is certified of it, in one file.

Decides what a fit remembers and how it is written (`.safetensors` with a JSON manifest, no pickle). How the numbers
were found is the business of the regimes, what they are worth of `certificate`.
"""

from __future__ import annotations

import hashlib
import html
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from quad4fhe._arrays import Array, IntArray
from quad4fhe._files import check_place, one_line, opened, write_atomically
from quad4fhe._rows import Rows, as_rows
from quad4fhe.certificate import Certificate, no_room
from quad4fhe.errors import CertificateError, InputError
from quad4fhe.exact import shard_decisions
from quad4fhe.fit.diagnostics import Agreement, Diagnostics
from quad4fhe.fit.words import percent, verdict
from quad4fhe.mlp import MLP
from quad4fhe.quadratic import QuadraticModel
from quad4fhe.shards import SHARD_ROWS, Shard, Shards

FORMAT = 1
_KEY = "quad4fhe"
_TENSORS = ("W1", "b1", "W2", "b2", "S", "T", "c", "box", "margins")


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


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest with the hash that binds it to the tensors."""

    sha256: str
    manifest: msgspec.Raw


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

    def agreement(self, X: ArrayLike | Rows) -> Agreement:
        """How many decisions of the ReLU model are kept on X, in exact arithmetic."""
        return count_agreement(self.mlp, self.model, X)

    def to_onnx(self, path: str | Path | None = None, *, dtype: str = "float64", labels: bool = False) -> Any:
        """The polynomial model as an onnx.ModelProto (Gemm, Mul, Add alone), also written to `path` where one is given.

        `labels` adds the decision as a second output. In float32 decisions within rounding of a tie may differ.
        """
        from quad4fhe.exporters import onnx

        proto = onnx.to_model(self.model, self._origin(), dtype, labels)
        if path is not None:
            onnx.write(proto, path)
        return proto

    def to_torch(self, *, dtype: str = "float64") -> Any:
        """The polynomial model as a torch module in evaluation mode: linear layers and one square."""
        from quad4fhe.exporters import torch

        return torch.to_module(self.model, dtype)

    def export(self, path: str | Path, *, dtype: str = "float64", labels: bool = False) -> None:
        """Write the polynomial model for other tools; the suffix says how (.onnx, .pt, .npz)."""
        from quad4fhe.exporters import export

        export(self.model, path, self._origin(), dtype=dtype, labels=labels)

    def _origin(self) -> Any:
        from quad4fhe.exporters import Origin

        return Origin(
            family=self.family,
            regime=self.regime,
            quadratic_sha256=self.model.sha256,
            relu_model_sha256=self.mlp.sha256,
            calibration_sha256=self.certificate.calibration_sha256,
            quad4fhe=self.versions["quad4fhe"],
        )

    def save(self, path: str | Path) -> None:
        """Write the fit to one .safetensors file, whole or not at all."""
        path = check_fit_path(path)
        write_atomically(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a fit file."""
        manifest, tensors = msgspec.json.encode(self._manifest()), self._tensors()
        envelope = Envelope(sha256=_digest(manifest, tensors), manifest=msgspec.Raw(manifest))
        # One key only: safetensors does not keep the order of several, and equal fits should be equal files.
        return save_tensors(tensors, {_KEY: msgspec.json.encode(envelope).decode()})

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a fit file; raises CertificateError if it was changed after it was written."""
        with opened(path) as file:
            data = file.read_bytes()
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the fit") -> Fit:
        """Read the content of a fit file; `name` is what an error calls it."""
        try:
            tensors = load_tensors(data)
            envelope = _envelope(data)
        except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, TypeError, RecursionError):
            raise InputError(
                f"{name} is not a fit file; make one with: quad4fhe fit MODEL CALIB -o fit.safetensors"
            ) from None
        if set(tensors) != set(_TENSORS) or envelope.sha256 != _digest(bytes(envelope.manifest), tensors):
            raise CertificateError(f"{name} was changed or damaged after it was written: its SHA-256 does not match")
        try:
            manifest = msgspec.json.decode(envelope.manifest, type=Manifest)
        except msgspec.ValidationError as error:
            raise InputError(
                f"{name} was written by another version of quad4fhe ({one_line(error)}); fit it again"
            ) from None
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
        kept = f"{percent(d.calibration.agreement)} of {d.samples} decisions kept"
        lines.append(("calibration", f"{kept}, {d.calibration.mismatches} lost"))
        if d.test is not None:
            kept = f"{percent(d.test.agreement)} of {d.test.samples} decisions kept"
            lines.append(("test", f"{kept}, {d.test.mismatches} lost"))
        for trial in d.families:
            chosen = " (chosen)" if trial.family == self.family and len(d.families) > 1 else ""
            estimate = f"{100 * trial.agreement:.2f}% ± {100 * trial.spread:.2f}"
            lines.append(("cross-validated", f"{trial.family} {estimate}{chosen}"))
        lines.append(("margin", f"{d.margin:.6g} (normalised {d.normalised_margin:.6g})"))
        if d.gap is not None:
            lines.append(("duality gap", f"{d.gap:.1e} (relative)"))
        words = {"lossless": "lossless on the calibration set, exactly", "measured": "measured, not lossless"}
        proof = f"; {no_room(held, self.mlp)} (evidence included)" if held.impossible else ""
        lines.append(("certificate", words[held.statement] + proof))
        if d.quantisation.decimals is not None:
            q = d.quantisation
            lines.append(("safe rounding", f"{q.decimals} decimals or {q.bits} bits after the point"))
        return lines + [("note", note) for note in d.notes]

    def __repr__(self) -> str:
        held = self.diagnostics.calibration
        kept = f"{held.samples - held.mismatches} of {held.samples} calibration decisions kept"
        return f"Fit(family={self.family!r}, regime={self.regime!r}, {kept}, {self.certificate.statement})"

    def _repr_html_(self) -> str:
        cell = "style='text-align: left'"
        rows = "".join(
            f"<tr><th scope='row' {cell}>{html.escape(name)}</th><td {cell}>{html.escape(value)}</td></tr>"
            for name, value in self.summary()
        )
        return f"<p>{html.escape(verdict(self))}</p><table>{rows}</table>"


def count_agreement(mlp: MLP, model: QuadraticModel, X: ArrayLike | Rows, name: str = "X") -> Agreement:
    """Decisions of `mlp` that `model` keeps on X (n, d), in exact arithmetic, part by part."""
    rows = as_rows(name, X, mlp.features)
    n = rows.shape[0]
    if n == 0:
        raise InputError(f"{name} has no rows, so there is no agreement to measure")
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        lost = shards.total(operator.add, _lost_of, model)
    return Agreement(samples=n, agreement=(n - lost) / n, mismatches=lost)


def _lost_of(shard: Shard, model: QuadraticModel) -> int:
    return int(np.count_nonzero(shard_decisions(shard.subject, shard).label != shard_decisions(model, shard).label))


def check_fit_path(path: str | Path) -> Path:
    """Refuse, before any work is done, a place where a fit can't be saved."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a fit is saved as .safetensors, not {path.name!r}; choose a name such as fit.safetensors")
    return check_place(path)


def _coefficient(value: float | list[float] | None) -> Any:
    return np.array(value) if isinstance(value, list) else value


def _digest(manifest: bytes, tensors: dict[str, Array]) -> str:
    digest = hashlib.sha256(b"quad4fhe-fit-1")
    digest.update(len(manifest).to_bytes(8, "little") + manifest)
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _envelope(data: bytes) -> Envelope:
    header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return msgspec.json.decode(header["__metadata__"][_KEY], type=Envelope)
