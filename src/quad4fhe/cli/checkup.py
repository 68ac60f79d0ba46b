"""The command doctor: what works on this machine, what will be slow, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quad4fhe._terminal import Reporter
from quad4fhe.cli.app import JsonFlag, app, print_json, say

if TYPE_CHECKING:
    from quad4fhe.doctor import Examination

_STYLE = {"ok": "green", "slow": "yellow", "missing": "dim", "failed": "bold red"}


@app.command("doctor")
def doctor_command(json: JsonFlag = False) -> None:
    """Check that this installation works, and say what is slow or missing.

    Looks at Python, the platform, cores, memory, BLAS and compiled kernels; checks SEAL's byte layout, exact
    arithmetic, a certificate and an encrypted prediction in both layouts; lists optional parts with the command that
    adds each.

    Example: quad4fhe doctor
    quad4fhe doctor --json > doctor.json

    Exit 1: a check failed that every user needs; slow or missing parts do not count
    """
    from quad4fhe.doctor import examine

    with Reporter() as progress:
        found = examine(progress)
    if json:
        print_json(found.to_dict())
    else:
        _show(found)
    if not found.healthy:
        raise typer.Exit(1)


def _show(found: Examination) -> None:
    console = Console(highlight=False)
    for part in dict.fromkeys(finding.part for finding in found.findings):
        table = Table(title=part, title_justify="left", show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in found.findings:
            if finding.part == part:
                fix = f"\n-> {finding.fix}" if finding.fix else ""
                # Text: in a string rich would take the brackets of 'quad4fhe[fast]' for its own.
                table.add_row(Text(finding.status, _STYLE[finding.status]), finding.name, Text(finding.says + fix))
        console.print(table)
        console.print()
    counts = {status: sum(f.status == status for f in found.findings) for status in _STYLE}
    if not found.healthy:
        say(f"{counts['failed']} essential checks failed: do not trust results of this installation.")
        return
    slow = f"{counts['slow']} things will be slow" if counts["slow"] else "nothing that would be slow"
    say(f"Everything essential works; {slow}; {counts['missing']} optional parts are not installed.")
