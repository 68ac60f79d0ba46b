"""Arguments and options that several commands share, and the objects they stand for."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quad4fhe.errors import InputError, Quad4FHEError
from quad4fhe.fitting import families
from quad4fhe.io.files import opened, parsing
from quad4fhe.layouts import LAYOUTS
from quad4fhe.workers.registry import HELP, KINDS

if TYPE_CHECKING:
    import quad4fhe
    from quad4fhe._arrays import Array
    from quad4fhe.feature_part import FeaturePart
    from quad4fhe.io.columns import Columns
    from quad4fhe.names import Names
    from quad4fhe.serve.client import Remote

FAMILIES = (*families.FAMILIES.names(), families.AUTO)
DEGREES = (*map(str, families.DEGREES), "auto")
REGIMES = ("auto", "hard", "rch", "soft")
PRECISIONS = ("strict", "fast")
REPLIES = ("private", "logits", "plain")


def choice(names: Sequence[str], help: str) -> Any:
    """An option whose value is one of `names`."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            option = max(parameter.opts, key=len)
            raise InputError(f"{option} is {value!r}, wanted one of: {', '.join(names)}")
        return value

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return typer.Option(help=help, metavar="|".join(names), callback=check, autocompletion=complete)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model: .npz, .safetensors, .onnx, .pt or .pth.", show_default=False)
]
ActivationOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Activation of a state dict, which does not name it: relu, gelu, tanh, leaky_relu:0.2, ..."
    ),
]
BinaryFlag = Annotated[
    bool, typer.Option("--binary", help="Take a single ONNX output without Sigmoid as the score of class 1.")
]
SplitOption = Annotated[
    str,
    typer.Option(
        metavar="auto|never|first|NAME",
        help="Where to cut an ONNX graph: what comes before runs at the client. first: read the first layer alone.",
    ),
]
CalibFile = Annotated[
    Path,
    typer.Argument(metavar="CALIB", help="Calibration data: .npz (X), .npy, .csv or .parquet.", show_default=False),
]
FitFile = Annotated[Path, typer.Argument(metavar="FIT", help="A fit file made by `quad4fhe fit`.", show_default=False)]
DataFile = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Samples: .npz (X, optionally y), .npy, .csv or .parquet.", show_default=False),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        metavar="NAME",
        help="The column of labels in tables; by default y, label, target or outcome.",
    ),
]
ClipFlag = Annotated[bool, typer.Option("--clip", help="Move samples outside the box to its edge and count them.")]
PlanClipFlag = Annotated[
    bool, typer.Option("--clip", help="Have clients of the plan move samples outside the box to its edge.")
]


# --- where work runs --------------------------------------------------------------------------------------------

PoolOption = Annotated[str | None, choice(KINDS.names(), f"Where workers run. {HELP}.")]
WorkersOption = Annotated[int | None, typer.Option(help="Number of worker processes; by default one per core.", min=1)]


# --- plans ------------------------------------------------------------------------------------------------------

SamplesOption = Annotated[int, typer.Option(help="How many samples to score together.")]
LayoutOption = Annotated[str, choice(("auto", *LAYOUTS.names()), "auto: the cheapest; {layouts}.")]
PrecisionOption = Annotated[
    str, choice(PRECISIONS, "strict: no calibration decision may change; fast: one in a thousand may.")
]
RepliesOption = Annotated[
    str,
    choice(
        REPLIES,
        "What a client can learn from replies. private: the logits at its ciphertext and nothing else about the "
        "weights; logits: not even the effect of its encryption noise (layout lift alone); plain: the weights.",
    ),
]
WidenOption = Annotated[
    float | None,
    typer.Option(
        help="Add this share of each feature's range to the box on both sides; by default 0.5, less above degree 2."
    ),
]
BoxOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Take the range of the samples in FILE as the box; two rows, lowest and highest, suffice."
    ),
]
CalibOption = Annotated[
    Path | None, typer.Option(help="The fit's calibration data: gives sharper error bounds and cheaper parameters.")
]


@dataclass(frozen=True)
class Box:
    """The options about the box: a file of samples, a share to widen it by, and whether to clip."""

    file: Path | None = None
    widen: float | None = None
    clip: bool = False

    def __bool__(self) -> bool:
        return self != Box()

    def corners(self, features: int, names: Names | None) -> Array | None:
        """The range (2, d) of the samples in the file; None without a file."""
        from quad4fhe import read_samples
        from quad4fhe.planning.box import box_of

        if self.file is None:
            return None
        return box_of(read_samples(self.file, "test", named_columns(names, None))[0], features)

    def plan_options(self, features: int, names: Names | None) -> dict[str, Any]:
        """The arguments of `plan` and `plans` that these options ask for."""
        return {"box": self.corners(features, names), "widen": self.widen, "clip": self.clip}

    def held(self, X: Array, names: Names | None = None) -> Array:
        """The samples (n, d) inside this box, not the plan's: those outside are rejected, or moved to its edge."""
        import numpy as np

        from quad4fhe._box import widened
        from quad4fhe.planning.box import Outside

        if self.file is None:
            if self.widen is not None:
                raise InputError(
                    "--widen needs --box here, because the plan's box is fixed; for a wider one make the plan again: "
                    f"quad4fhe plan FIT --widen {self.widen:g} --json > plan.json, or quad4fhe serve FIT --widen"
                )
            return X
        corners = self.corners(X.shape[1], names)
        assert corners is not None
        box = widened(corners, self.widen) if self.widen else corners
        if self.clip:
            inside: Array = np.clip(X, *box)
            return inside
        outside = Outside(box, self.widen or 0.0)
        outside.add(X)
        outside.check(f"the box of {self.file}")
        return X


def layout_words() -> str:
    """What each layout is for. This loads them all, so `Manual` calls it when a help page is shown."""
    return "; ".join(f"{layout.name}: {layout.purpose}" for layout in LAYOUTS)


def load_model(command: str, model: Path, data: Path, test: Path | None = None, **options: Any) -> quad4fhe.MLP:
    """Read MODEL; if DATA is the model instead, the error names the command with the two in order."""
    from quad4fhe import MLP

    try:
        return MLP.load(model, **options)
    except InputError as error:
        try:
            MLP.load(data)
        except Quad4FHEError:
            raise error from None
    fix = f"quad4fhe {command} {quote(str(data))} {quote(str(model))}"
    fix += "" if test is None else f" --test {quote(str(test))}"
    raise InputError(f"{model} holds no model, but {data} does; the model comes first: {fix}")


def named_columns(names: Names | None, label: str | None) -> Columns:
    """The columns to read from a table: the features by their names, and the labels."""
    from quad4fhe.io.columns import Columns

    return Columns(None if names is None else names.features, label)


def model_columns(mlp: quad4fhe.MLP, calib: Path, label: str | None) -> Columns:
    """The columns to read for a model: by its own feature names, or else by those of the calibration data."""
    from quad4fhe.io.samples import sample_names

    return named_columns(mlp.names.or_else(sample_names(calib, mlp.features, mlp.classes, label)), label)


def make_plan(
    fitted: quad4fhe.Fit,
    samples: int,
    layout: str,
    precision: str,
    box: Box,
    calib: Path | None = None,
    replies: str = "private",
) -> quad4fhe.Plan:
    """Make the plan that these options ask for."""
    from quad4fhe import plan

    return plan(fitted, layout=layout, **plan_options(fitted, samples, precision, box, calib, replies))


def plan_options(
    fitted: quad4fhe.Fit, samples: int, precision: str, box: Box, calib: Path | None, replies: str
) -> dict[str, Any]:
    """The arguments of `plan` and `plans` that these options ask for."""
    from quad4fhe.raw import samples_for

    if samples < 1:
        raise InputError(f"--samples is {samples}, wanted at least 1")
    named = named_columns(fitted.names, None)
    X_cal = None if calib is None else fitted.calibration_part(samples_for(fitted.mlp, calib, "calibration", named)[0])
    return {
        "samples": samples,
        "precision": precision,
        "replies": replies,
        "X": X_cal,
        **box.plan_options(fitted.mlp.features, fitted.names),
    }


# --- servers -------------------------------------------------------------------------------------------

TrustFlag = Annotated[bool, typer.Option("--trust", help="Run a feature part that only the server vouches for.")]
TokenOption = Annotated[Path | None, typer.Option(help="A file that holds the API token.")]
CaOption = Annotated[Path | None, typer.Option(help="Trust this certificate authority (PEM) instead of the system's.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model's name or id, or the first digits of its id.")
]
LayoutChoice = Annotated[
    str | None, choice(LAYOUTS.names(), "The layout; by default the one that sends the fewest bytes for the rows.")
]


def connect(
    url: str,
    *,
    model: str | None,
    layout: str | None,
    token_file: Path | None,
    ca: Path | None,
    plan: quad4fhe.Plan | None = None,
    patience: float = 60.0,
    features: FeaturePart | None = None,
    trust: bool = False,
) -> Remote:
    """A connection to the server at `url`."""
    from quad4fhe import Remote

    token, verify = trusted(token_file, ca)
    named: dict[str, Any] = {"model": model, "layout": layout, "token": token, "verify": verify}
    named |= {"features": features, "trust": trust}
    return Remote(url, plan=plan, patience=patience, **named)


def trusted(token_file: Path | None, ca: Path | None) -> tuple[str | None, bool | ssl.SSLContext]:
    """The token, and which certificates a connection accepts."""
    from quad4fhe.serve.http import client_context

    token = None if token_file is None else _first_line(token_file, "token")
    if ca is None:
        return token, True
    with opened(ca), parsing("the certificate", "give a PEM file"):
        return token, client_context(str(ca))


def _first_line(file: Path, what: str) -> str:
    with opened(file), parsing(f"the {what}", "write it as one line of text"):
        lines = file.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].strip():
        raise InputError(f"{file}: the first line is empty, wanted the {what}")
    return lines[0].strip()
