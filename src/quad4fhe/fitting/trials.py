"""What is recorded when families are compared: settings tried, estimates, and how well conditioned the results are."""

from __future__ import annotations

import msgspec

from quad4fhe.fitting.trace import Count, FamilyName, Share, Size


class FamilyStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting tried in cross-validation.

    `sharpness` multiplies the ReLU logits before their softmax, `strength` is the number of rows the prior is worth,
    `finish` says that the decision hinge came last. `agreement` is that of held-out calibration rows; settings are
    compared by `score` (the same, half and half with made rows where there are any), `spread` is its standard error.
    """

    family: FamilyName
    sharpness: Size
    strength: Size
    finish: bool
    agreement: Share
    score: Share
    spread: Size


class FamilyTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What cross-validation says of a family at its chosen setting; sharpness and strength are None for shared.

    `agreement` is the share of `rows` calibration decisions kept by a fit that had not seen them, `spread` its standard
    error, `made_agreement` the same on rows made by blending two of a fold (small calibration sets only).
    """

    family: FamilyName
    agreement: Share
    spread: Size
    made_agreement: Share | None
    rows: Count
    folds: Count
    sharpness: Size | None
    strength: Size | None
    finish: bool


class Conditioning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a replacement must cancel: what scales and precision under encryption have to cover.

    `largest` is the largest entry of S, T and c in magnitude, `amplification` the largest sum of the magnitudes of all
    terms of a logit on the calibration set, over the largest logit.
    """

    family: FamilyName
    largest: Size
    amplification: Size
