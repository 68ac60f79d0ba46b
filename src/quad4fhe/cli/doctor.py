"""`quad4fhe doctor`: what works on this machine, what is slow and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from quad4fhe.cli.app import app
from quad4fhe.cli.options import JsonFlag
from quad4fhe.cli.terminal import at_work, console, count, print_json, say

if TYPE_CHECKING:
    from quad4fhe.doctor import Examination

_STYLE = {"ok": "green", "slow": "yellow", "missing": "dim", "failed": "bold red"}


@app.command("doctor")
def doctor_command(json: JsonFlag = False) -> None:
    """Check this installation and list what is slow or missing.

    Examines Python, the platform, cores, memory, BLAS and compiled kernels; checks SEAL's byte layout, exact
    arithmetic, a certificate and an encrypted prediction in each layout; and lists optional parts with the command that
    installs each.

    Example: quad4fhe doctor
    quad4fhe doctor --json > doctor.json

    Exit 1: a check failed that every user needs; slow or missing parts do not count
    """
    from quad4fhe.doctor import examine

    with at_work() as progress:
        found = examine(progress)
    if json:
        print_json(found.to_dict())
    else:
        _show(found)
    if not found.healthy:
        raise typer.Exit(1)


def _show(found: Examination) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    for part in dict.fromkeys(finding.part for finding in found.findings):
        table = Table(title=part, title_justify="left", show_header=False, box=None, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in found.findings:
            if finding.part == part:
                fix = f"\n-> {finding.fix}" if finding.fix else ""
                # Text: in a plain string rich would read the brackets of 'quad4fhe[serve]' as markup.
                table.add_row(Text(finding.status, _STYLE[finding.status]), finding.name, Text(finding.says + fix))
        out.print(table)
        out.print()
    counts = {status: sum(f.status == status for f in found.findings) for status in _STYLE}
    if not found.healthy:
        say(f"{count(counts['failed'], 'essential check')} failed: do not trust the results of this installation.")
        return
    slow = f"{count(counts['slow'], 'part')} will be slow" if counts["slow"] else "nothing will be slow"
    missing = count(counts["missing"], "optional part is", "optional parts are")
    say(f"Everything essential works; {slow}; {missing} not installed.")
