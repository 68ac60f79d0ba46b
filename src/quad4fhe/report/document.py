"""`report`: find out everything about a fit and write it as one page, pictures and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import ArrayLike

from quad4fhe._progress import Progress, silent
from quad4fhe.errors import InputError, MissingExtraError
from quad4fhe.fitting import Fit
from quad4fhe.io.files import check_place, write_atomically
from quad4fhe.report.drawing import Picture
from quad4fhe.report.findings import Findings, Options, Source, find
from quad4fhe.report.section import Section
from quad4fhe.report.sections import SECTIONS


@dataclass(frozen=True, eq=False)
class Report:
    """What was found about a fit: what all sections share (`findings`), and the sections by name."""

    findings: Findings
    sections: dict[str, Section]

    @property
    def verdict(self) -> str:
        """What the fit keeps of the model's decisions, in a sentence or two."""
        return self.findings.verdict

    @cached_property
    def pictures(self) -> list[Picture]:
        """The pictures, in the order of the page."""
        return [picture for section in self.sections.values() for picture in section.pictures]

    def html(self) -> str:
        """The page: one document that needs no other file and no network."""
        from quad4fhe.report.page import page

        return page(self.findings, self.sections)

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        checked = check_page_path(path)
        write_atomically(checked, self.html().encode())
        return checked

    def save_pictures(self, folder: str | Path) -> list[Path]:
        """Write every picture as SVG and PNG into a folder, which is created if needed."""
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"can't make the folder {place}: {error.strerror or error}") from None
        written = []
        for picture in self.pictures:
            for suffix, data in (("svg", picture.svg()), ("png", picture.png())):
                written.append(place / f"{picture.name}.{suffix}")
                write_atomically(written[-1], data)
        return written

    def to_dict(self) -> dict[str, Any]:
        """What the page says, as plain data for JSON; the fit itself is in its own file."""
        found, test = self.findings, self.findings.test
        accuracy = None if test is None else test.accuracy
        document = {
            "verdict": self.verdict,
            "classes": found.classes,
            "verified": msgspec.to_builtins(found.verified),
            "calibration": msgspec.to_builtins(found.calibration.agreement),
            "test": None if test is None else msgspec.to_builtins(test.agreement),
            "accuracy": None if accuracy is None else {"relu": accuracy[0], "replacement": accuracy[1]},
        }
        for section in self.sections.values():
            document |= section.to_dict()
        return document | {"pictures": [{"name": p.name, "title": p.title, "alt": p.alt} for p in self.pictures]}


def report(
    fit: Fit,
    X_cal: ArrayLike,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    X_holdout: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    options: Options | None = None,
    source: Source | None = None,
    progress: Progress = silent,
) -> Report:
    """Find out everything a report shows about `fit` on its calibration data X_cal (n, d) and, if given, on X_test.

    Raises CertificateError where the certificate of the fit does not hold.

    Parameters
    ----------
    fit
        The fit.
    X_cal
        Its calibration samples (n, d).
    X_test
        Samples that the fit has not seen.
    y_test
        Class ids or names of the test samples; they add accuracies.
    X_holdout
        The rows behind the fit's promise about new inputs, without which the page does not show it. Not needed if X_cal
        still contains the rows that were set aside.
    classes
        Names of the classes.
    options
        How much to compute, and how many samples to plan for.
    source
        The files that the commands on the page name.
    progress
        Progress callback (what, done, total).
    """
    require_extra()
    found = find(
        fit,
        X_cal,
        X_test,
        y_test,
        X_holdout=X_holdout,
        classes=classes,
        options=options,
        source=source,
        progress=progress,
    )
    sections = {name: SECTIONS.get(name).find(found, progress) for name in SECTIONS.names()}
    progress("pictures", 0, 0)
    return Report(found, {name: section for name, section in sections.items() if section is not None})


def require_extra() -> None:
    """Raise MissingExtraError now, not after the work, if pages or pictures can't be made."""
    for package, module in (("matplotlib", "matplotlib.figure"), ("jinja2", "jinja2")):
        try:
            import_module(module)
        except ImportError:
            raise MissingExtraError(package, "report", "a report") from None


def check_page_path(path: str | Path) -> Path:
    """Reject, before any work is done, a path where a page can't be saved."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"a report is saved as .html, not {path.name!r}; choose a name such as report.html")
    return check_place(path)
