"""What `quad4fhe doctor` finds out: the machine, the libraries, self-checks, and which optional parts are there.

Decides what is examined and what makes an installation healthy. Each examination is in a module of its own; nothing
here prints, and a check that breaks is a finding, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from quad4fhe._progress import Progress, silent
from quad4fhe.doctor import extras, machine, selfchecks
from quad4fhe.doctor.finding import Finding, Status

__all__ = ["Examination", "Finding", "Status", "examine"]


class Examination(msgspec.Struct, frozen=True):
    """All findings, in the order in which they were made."""

    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether everything works that every user needs; slow or missing parts are no illness."""
        return not any(finding.status == "failed" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain literals, ready for JSON."""
        return {"healthy": self.healthy, "findings": msgspec.to_builtins(self.findings)}


def examine(progress: Progress = silent) -> Examination:
    """Look at everything once; a few seconds."""
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("machine", machine.findings),
        ("self-checks", selfchecks.findings),
        ("optional parts", extras.findings),
    ]
    found: list[Finding] = []
    for done, (name, part) in enumerate(parts):
        progress(name, done, len(parts))
        for finding in part():
            found.append(finding)
            progress(finding.name, done, len(parts))
    return Examination(found)
