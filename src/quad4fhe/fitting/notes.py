"""The remarks that a fit can make about how it was made.

A fit file may hold these sentences and no others, so that a forger can't add text of their own.
"""

from __future__ import annotations

import re

NO_SHIFT = (
    "B = 0: eta does not shift the scores, so the zero threshold was put to the pairwise problem itself; "
    "threshold='free' allows the planar regimes"
)
UNDECIDED = (
    "the hard problem is undecided: no float64 coefficients were found to keep every decision, "
    "and no evidence against them survives exact arithmetic"
)
STILL_OPEN = "the hard problem was still open after {} rounds"
NOT_WIDEST = "the margins may not be the widest: relative duality gap {:.1e}"
SOFT_STOPPED = "the soft problem stopped at a relative duality gap of {:.1e}"
NO_POLISH = "the polish found no coefficients that keep more decisions"
EXTREME_SCALE = "the statistics have an extreme scale, so the soft problem was put in standardised coordinates"
TIES = "the ReLU logits tie exactly on {} rows; the lowest class index is their target"
DEEPER = "the network has {} hidden layers; the polynomial on the first one stands for all of them"
GRAPH = (
    "the polynomial on the first layer stands for the whole network, whose decisions are taken as onnxruntime computes "
    "them: measured, not proved"
)
SHARED = "one quadratic for all units, the paper's three numbers, keeps {:.2f}% (family='shared')"
NO_ROOM = "other families were not tried, because their rows do not fit in the memory allowed"
LOSSLESS = "the shared fit keeps every calibration decision, so no other family was tried"
TARGET_REACHED = "the shared fit reaches the target, so no other family was tried"
TOO_FEW = "{} calibration rows are too few to compare families (fewer than {})"
SOME_ROWS = "families were judged and fitted on {} of {} rows, and measured on all"
TARGET_DOUBTFUL = (
    "the target is reached on the calibration set, but {:.2f}% is the cross-validated estimate for new data"
)
LOWER_DEGREE = "degree {} cross-validates no better than degree {}, which was taken instead"
NEXT_DEGREE = "degree {} would keep {:.2f}% by cross-validation, at about {:.1f} times the server time of degree 2"
LABELS_FROM_ONE = "the labels 1 to {} were read as the classes 0 to {}"
LABELS_SORTED = "the {} different labels are not class ids or names: sorted, they were read as the classes 0 to {}"
LABELS_UNKNOWN = "the labels are not the {} classes of the model, so no accuracy was measured"
BELOW_MOST = (
    "the network is right on {:.1f}% of the labels, and answering class {} each time on {:.1f}%: check the scale of "
    "the features, the order of columns and classes, and the activation"
)

FEW_ROWS = "{} calibration rows are few for {} classes: that they are kept says little about other rows"
MISSING = "no calibration row is decided for {} of {} classes (the first is class {}): nothing is known of them"
FEW_OF_CLASS = (
    "fewer than {} calibration rows are decided for {} of {} classes (class {} has {}): little is known of them"
)
STILL_UNITS = (
    "{} of {} hidden units are always on or always off on the calibration rows: check that the features have the scale "
    "of training"
)
HUGE_LOGITS = (
    "the two largest logits differ by {:.1e} on the median calibration row, which no training reaches: check that the "
    "features have the scale of training"
)
KNOWN_ROWS = (
    "the network is right on {:.2f}% of the calibration rows and on {:.2f}% of other rows: it may have been trained on "
    "the calibration rows, so go by the figures of other rows"
)
KEPT_LESS = (
    "{:.2f}% of the calibration decisions are kept, and {:.2f}% of those on other rows: go by the second figure, and "
    "take more calibration rows, on which the network was not trained"
)

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?"
_KNOWN = re.compile(
    "|".join(
        _NUMBER.join(re.escape(part) for part in re.split(r"\{[^}]*\}", text))
        for name, text in sorted(globals().items())
        if name.isupper() and not name.startswith("_")
    ),
    re.ASCII,
)


def is_note(text: str) -> bool:
    """Whether a fit can make this remark."""
    return _KNOWN.fullmatch(text) is not None
