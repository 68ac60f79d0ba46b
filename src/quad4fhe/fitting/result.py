"""The result of a fit: the polynomial model, how it was found, and its certificate, in one file.

A fit that was made in this process shows everything it knows. A fit that was read from a file shows only what `verify`
checks.
"""

from __future__ import annotations

import hashlib
import html
import operator
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from quad4fhe._arrays import Array, BoolArray, IntArray
from quad4fhe.activations import RELU, Activation
from quad4fhe.deep import DeepMLP, GraphMLP
from quad4fhe.errors import InputError
from quad4fhe.feature_part import FeaturePart
from quad4fhe.fitting import file as fit_file
from quad4fhe.fitting.diagnostics import Agreement, Diagnostics, FamilyName, KeptShare, Version
from quad4fhe.fitting.families import FAMILIES
from quad4fhe.fitting.summary import certified_lines, kept, own_lines, verdict
from quad4fhe.io.files import check_place, one_line, opened, write_atomically
from quad4fhe.io.rows import Rows, as_rows
from quad4fhe.mlp import MLP
from quad4fhe.names import Names
from quad4fhe.polynomial import PolynomialModel
from quad4fhe.proof.certificate import Certificate, Certified
from quad4fhe.proof.exact import shard_decisions
from quad4fhe.proof.guarantee import Guarantee, HoldOut, Terms, is_above
from quad4fhe.proof.holdout import calibration_part
from quad4fhe.regime import Regime
from quad4fhe.workers.shards import SHARD_ROWS, Shard, Shards

FORMAT = 3
_OLD = (1, 2)  # the formats of version 0.2


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON document in a fit file's metadata."""

    format: int
    family: FamilyName
    regime: str
    threshold: Literal["zero", "free"]
    alpha: float | list[float] | None
    beta: float | list[float] | None
    eta: float | list[float] | None
    tau: float
    seed: Annotated[int, msgspec.Meta(ge=0)]
    diagnostics: Diagnostics
    certificate: Certificate
    versions: dict[str, Version]
    guarantee: Guarantee | None
    holdout: Terms | None
    salt: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    degree: Annotated[int, msgspec.Meta(ge=2, le=8)] = 2
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    activation: list[str | float | list[float]] | None = None
    activations: list[list[str | float | list[float]]] | None = None  # of a deeper network, one for each hidden layer


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Certified):
    """A replacement of one model's ReLU, with its evidence.

    `alpha`, `beta`, `eta` are floats for the shared family, (m,) arrays for unitwise, None for head and above degree 2,
    where `model` has the coefficients; `tau` is the decision threshold that was moved into c (0 unless shared with
    threshold="free"). `box` (2, d) is the range of each feature on the calibration set and `margins` (n,) the gap
    between the winning logit and the next on each calibration sample.

    `guarantee` is the promise about new inputs, if there is one. `regime` prints as its name, such as rch(0.01), and
    compares with strings: `fit.regime == "hard"`.

    Where `mlp` has a feature part, every method takes raw inputs; features that `mlp.inputs` made are taken as well.

    `model_id` names the model to clients. It is a hash of the weights and of `salt`, which is random and stays in the
    fit file, so it names the model without telling which of several known models it is.

    `loaded` says that the fit comes from a file. `verify` then checks the model, the coefficients, the box, the margins
    and the certificate against the calibration data. It can't check `regime`, `threshold`, `seed`, `diagnostics` and
    `versions`, which say how the fit was made: they are claims of the author of the file.
    """

    seed: int
    diagnostics: Diagnostics
    versions: dict[str, str]
    loaded: bool = False
    salt: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)

    @property
    def model_id(self) -> str:
        """What clients call the model."""
        return hashlib.sha256(b"quad4fhe-model-1" + self.salt + bytes.fromhex(self.model.sha256)).hexdigest()

    @property
    def names(self) -> Names:
        """The names of features and classes; those that are not known are None."""
        return self.mlp.names

    @property
    def S(self) -> Array:
        """The weights of the squares, (K, m), of a fit of degree 2."""
        return self.model.S

    @property
    def T(self) -> Array:
        """The weights of the pre-activations, (K, m), of a fit of degree 2."""
        return self.model.T

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return self.model.degree

    @property
    def c(self) -> Array:
        """The constants, (K,)."""
        return self.model.c

    def decision_function(self, X: ArrayLike) -> Array:
        """The polynomial model's logits (n, K), or scores (n,) where the model has one output."""
        logits = self.model.logits(self.mlp.inputs(X))
        return logits[:, 0] if self.model.outputs == 1 else logits

    def predict(self, X: ArrayLike) -> IntArray:
        """The polynomial model's decisions (n,)."""
        return self.model.decide(self.mlp.inputs(X))

    def is_reliable(self, X: ArrayLike) -> BoolArray:
        """Which decisions on X have the margin above which the fit calls them reliable, (n,)."""
        found = None if self.guarantee is None else self.guarantee.reliable
        if found is None:
            raise InputError("this fit names no margin of reliable decisions; fit with holdout=, fresh= and reliable=")
        return is_above(self.model.logits(self.mlp.inputs(X)), found)

    def calibration_part(self, X: ArrayLike) -> Array:
        """The calibration rows among X, which may be all the rows that a hold-out was set aside from."""
        split = None if self.holdout is None else self.holdout.terms.split
        rows = calibration_part(split, as_rows("X_cal", self.mlp.inputs(X), self.mlp.features))
        return self.mlp.marked(np.asarray(rows.part(0, rows.shape[0])))

    def agreement(self, X: ArrayLike | Rows) -> KeptShare:
        """The share of the ReLU model's decisions that is kept on X, in exact arithmetic: a float with its counts."""
        found = count_agreement(self.mlp, self.model, self.mlp.inputs(X))
        return KeptShare(found.mismatches, found.samples)

    def to_onnx(
        self,
        path: str | Path | None = None,
        *,
        dtype: str = "float64",
        labels: bool = False,
        folded: bool = False,
        batch: int | None = None,
    ) -> Any:
        """The polynomial model as an onnx.ModelProto (Gemm, Mul, Add alone), also written to `path` if one is given.

        `labels` adds the decision as a second output, `folded` puts the linear term into the squares, `batch` fixes the
        number of rows. In float32 decisions within rounding of a tie may differ.
        """
        from quad4fhe.exporters import Options, onnx

        proto = onnx.to_model(self._exported(folded), self._origin(), Options(dtype, labels, batch))
        if path is not None:
            onnx.write(proto, path)
        return proto

    def to_torch(self, *, dtype: str = "float64", folded: bool = False) -> Any:
        """The polynomial model as a torch module in evaluation mode: linear layers and one square."""
        from quad4fhe.exporters import torch

        return torch.to_module(self._exported(folded), dtype)

    def export(
        self,
        path: str | Path,
        *,
        dtype: str = "float64",
        labels: bool = False,
        folded: bool = False,
        batch: int | None = None,
    ) -> None:
        """Write the polynomial model for other tools; the suffix says how (.onnx, .pt, .npz)."""
        from quad4fhe.exporters import Options, export

        export(self._exported(folded), path, self._origin(), Options(dtype, labels, batch))

    def _exported(self, fold: bool) -> PolynomialModel:
        from quad4fhe.exporters import folded

        return folded(self.model) if fold else self.model

    def _origin(self) -> Any:
        from quad4fhe.exporters import Origin

        return Origin(
            family=self.family,
            regime=str(self.regime),
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
        return fit_file.write(msgspec.json.encode(self._manifest()), self._tensors())

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a fit file; raises CertificateError if it was changed after it was written."""
        with opened(path) as file:
            data = file.read_bytes()
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "the fit") -> Fit:
        """Read the content of a fit file; errors call it `name`."""
        document, tensors = fit_file.read(data, name)
        if document.get("format") in _OLD:
            raise InputError(
                f"{name} is a fit of quad4fhe 0.2, which is not read any more; fit again, it takes seconds"
            )
        if document.get("format") != FORMAT:
            other = str(document.get("format"))[:20]
            raise InputError(f"{name} has format {other!a}, this version reads format {FORMAT}; fit it again")
        try:
            manifest = msgspec.convert(document, Manifest)
            found = cls._of(manifest, tensors)
        except (msgspec.ValidationError, InputError) as error:
            raise InputError(f"{name} holds what no fit can say ({one_line(error)}); fit it again") from None
        fit_file.check_stated(found)
        fit_file.check_holdout(found, manifest.guarantee)
        return found

    @classmethod
    def _of(cls, manifest: Manifest, tensors: dict[str, Array]) -> Fit:
        return cls(
            mlp=_mlp(manifest, tensors).named(Names(manifest.feature_names, manifest.class_names)),
            model=_model(manifest.degree, tensors),
            family=FAMILIES.get(manifest.family).name,
            regime=Regime.parse(manifest.regime),
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
            holdout=_holdout(manifest, tensors),
            loaded=True,
            salt=bytes.fromhex(manifest.salt),
        )

    def _tensors(self) -> dict[str, Array]:
        own = {**_arrays(self.model), "c": self.c, "box": self.box, "margins": self.margins}
        arrays = {"W1": self.mlp.W1, "b1": self.mlp.b1, "W2": self.mlp.W2, "b2": self.mlp.b2, **own}
        arrays |= fit_file.layer_tensors(self.mlp.layers)
        if self.holdout is not None:
            arrays |= dict(zip(fit_file.HOLDOUT, (self.holdout.rows, self.holdout.box), strict=True))
        found = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
        if self.mlp.feature_part is not None:
            found[fit_file.PART] = np.frombuffer(self.mlp.feature_part.graph, dtype=np.uint8)
        if self.mlp.network is not None:
            found[fit_file.NETWORK] = np.frombuffer(self.mlp.network.graph, dtype=np.uint8)
        return found

    def _manifest(self) -> Manifest:
        def plain(value: Any) -> Any:
            return value.tolist() if isinstance(value, np.ndarray) else value

        return Manifest(
            format=FORMAT,
            family=self.family,
            regime=str(self.regime),
            threshold=cast(Literal["zero", "free"], self.threshold),
            alpha=plain(self.alpha),
            beta=plain(self.beta),
            eta=plain(self.eta),
            tau=self.tau,
            seed=self.seed,
            diagnostics=self.diagnostics,
            certificate=self.certificate,
            versions=self.versions,
            guarantee=self.guarantee,
            holdout=None if self.holdout is None else self.holdout.terms,
            salt=self.salt.hex(),
            degree=self.degree,
            feature_names=self.names.features,
            class_names=self.names.classes,
            activation=None if self.mlp.layers or self.mlp.activation.is_default else self.mlp.activation.plain(),
            activations=fit_file.plain_activations(self.mlp),
        )

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain Python data, for JSON, without the salt, which stays in the fit file."""
        document = msgspec.to_builtins(self._manifest())
        assert isinstance(document, dict)
        del document["salt"]
        return document

    def summary(self) -> list[tuple[str, str]]:
        """The result in words: (name, value) lines for a terminal or a notebook.

        Of a fit that was read from a file, only what `verify` checks.
        """
        return certified_lines(self) if self.loaded else own_lines(self)

    def __repr__(self) -> str:
        held, degree = kept(self.certificate), "" if self.degree == 2 else f", degree={self.degree}"
        count = f"{held.samples - held.mismatches} of {held.samples} calibration decisions kept"
        if self.loaded:
            return f"Fit(family={self.family!r}{degree}, {count}, {self.certificate.statement}; loaded, not verified)"
        return (
            f"Fit(family={self.family!r}{degree}, regime={str(self.regime)!r}, {count}, {self.certificate.statement})"
        )

    def _repr_html_(self) -> str:
        cell = "style='text-align: left'"
        rows = "".join(
            f"<tr><th scope='row' {cell}>{html.escape(name)}</th><td {cell}>{html.escape(value)}</td></tr>"
            for name, value in self.summary()
        )
        said = verdict(self, None if self.loaded else self.diagnostics.test)
        return f"<p>{html.escape(said)}</p><table>{rows}</table>"


def count_agreement(mlp: MLP, model: PolynomialModel, X: ArrayLike | Rows, name: str = "X") -> Agreement:
    """Decisions of `mlp` that `model` keeps on X (n, d), in exact arithmetic, part by part."""
    rows = as_rows(name, X, mlp.features)
    n = rows.shape[0]
    if n == 0:
        raise InputError(f"{name} has no rows, so there is no agreement to measure")
    with Shards(rows, SHARD_ROWS, mlp, name=name) as shards:
        lost = shards.total(operator.add, _lost_of, model)
    return Agreement.of(n, lost)


def _lost_of(shard: Shard, model: PolynomialModel) -> int:
    return int(np.count_nonzero(shard_decisions(shard.subject, shard).label != shard_decisions(model, shard).label))


def _arrays(model: PolynomialModel) -> dict[str, Array]:
    """The arrays of a model in a fit file; above degree 2 with a first layer of its own."""
    if model.is_quadratic:
        return {"S": model.S, "T": model.T}
    assert model.V is not None
    assert model.a is not None
    return {"W": model.W1, "t": model.b1, "V": model.V, "a": model.a}


def _model(degree: int, tensors: dict[str, Array]) -> PolynomialModel:
    if "S" in tensors:
        model = PolynomialModel.quadratic(*(tensors[key] for key in ("W1", "b1", "S", "T", "c")))
    else:
        model = PolynomialModel.by_unit(*(tensors[key] for key in ("W", "t", "V", "a", "c")))
    if model.degree != degree:
        raise InputError(f"it says degree {degree}, and its coefficients have {model.degree}")
    return model


def check_fit_path(path: str | Path) -> Path:
    """Check that a fit can be saved at this path, before any work is done."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise InputError(f"a fit is saved as .safetensors, not {path.name!r}; choose a name such as fit.safetensors")
    return check_place(path)


def _mlp(manifest: Manifest, tensors: dict[str, Array]) -> MLP:
    """The trained model in a fit file."""
    W1, b1, W2, b2 = (tensors[key] for key in ("W1", "b1", "W2", "b2"))
    activation = RELU if manifest.activation is None else Activation.from_plain(manifest.activation)
    part = FeaturePart(tensors[fit_file.PART].tobytes()) if fit_file.PART in tensors else None
    layers = fit_file.layers_of(tensors)
    if manifest.activations is not None and (manifest.activation is not None or not layers):
        raise InputError("it names activations of another network than it holds")
    if fit_file.NETWORK in tensors:
        if layers:
            raise InputError("it holds layers and a graph, and a network has one of them")
        network = FeaturePart(tensors[fit_file.NETWORK].tobytes())
        return GraphMLP(W1, b1, network, (W2, b2), activation=activation, feature_part=part)
    if layers:
        if manifest.activation is not None:
            raise InputError("it names one activation for several hidden layers")
        kinds = [Activation.from_plain(each) for each in manifest.activations or [["relu"]] * len(layers)]
        return DeepMLP(W1, b1, layers, (W2, b2), activation=kinds, feature_part=part)
    return MLP(W1, b1, W2, b2, activation=activation, feature_part=part)


def _holdout(manifest: Manifest, tensors: dict[str, Array]) -> HoldOut | None:
    """What the file says of hold-out rows."""
    arrays = [tensors[name] for name in fit_file.HOLDOUT if name in tensors]
    if len(arrays) != (0 if manifest.holdout is None else len(fit_file.HOLDOUT)):
        raise InputError("it holds a promise without its hold-out rows, or rows without a promise")
    return None if manifest.holdout is None else HoldOut(manifest.holdout, *arrays)


def _coefficient(value: float | list[float] | None) -> Any:
    return np.array(value) if isinstance(value, list) else value
