"""Where the fit and its data lie, as far as the commands on the page need to know it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """The title of the page and the names of the files that its commands are to use."""

    title: str = "A fit"
    fit: str = "fit.safetensors"
    calibration: str = "calib.npz"
    test: str | None = None

    def verify(self) -> str:
        """The command that rechecks the certificate."""
        return _command("verify", self.fit, self.calibration)

    def plan(self, samples: int, layout: str, precision: str, widen: float) -> str:
        """The command that makes a plan of the page again."""
        options = ["--samples", str(samples), "--layout", layout, "--precision", precision, "--calib", self.calibration]
        return _command("plan", self.fit, *options, *(["--widen", f"{widen:g}"] if widen else []))

    def ladder(self) -> str:
        """The command that fits every rung of the ladder."""
        test = [] if self.test is None else ["--test", self.test]
        return _command("report", self.fit, self.calibration, *test, "--ladder", "all")


def _command(*words: str) -> str:
    return shlex.join(["quad4fhe", *words])
