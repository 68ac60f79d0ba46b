"""Write the measured tables of docs/alternatives.md from benchmarks/peers.json; measures nothing.

python benchmarks/peer_tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "alternatives.md"
BEGIN, END = "<!-- tables from benchmarks/peers.json -->", "<!-- end of the tables -->"
TITLES = {"otto": "Otto", "breast_cancer": "Breast cancer", "mnist": "MNIST"}
FORMS = {"one": "best", "wrong": "wrong bias", "few": "3 bits"}


def tables(document: dict[str, Any]) -> str:
    """All tables as Markdown."""
    parts = []
    for name, title in TITLES.items():
        if name not in document["networks"]:
            continue
        found = document["networks"][name]
        rows = [row for row in found["results"] if "server" in row]
        parts.append(f"**{title}, {found['shape']}**, one question (ms):\n")
        parts.append(_one([row for row in rows if row["per_request"] == 1]))
        if any(row["per_request"] > 1 for row in rows):
            parts.append("Many questions (µs per sample):\n")
            parts.append(_many([row for row in rows if row["per_request"] > 1]))
        failed = [f"{row['peer']}, {_form(row)}: {row['skipped']}" for row in found["results"] if "skipped" in row]
        if failed:
            parts.append("Without a result: " + "; ".join(failed) + ".\n")
        parts.append(_runs(rows))
    return "\n".join(parts)


def _runs(rows: list[dict[str, Any]]) -> str:
    """When and at which commit each tool was run, and the load of the machine."""
    runs: dict[str, list[str]] = {}
    for row in rows:
        load = "" if row["load"] is None else f", load {row['load']:.0f}"
        tools = runs.setdefault(f"{row['date']} at commit {row['commit']}{load}", [])
        if row["peer"] not in tools:
            tools.append(row["peer"])
    return "Run " + "; ".join(f"{when}: {', '.join(tools)}" for when, tools in runs.items()) + ".\n"


def _one(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| tool | encrypt | server | decrypt | up | down | keys | changed | largest error | lines |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        times = [_number(1e3 * row[part]) for part in ("encrypt", "server", "decrypt")]
        sizes = [_bytes(row[part]) for part in ("upload_bytes", "download_bytes", "key_bytes")]
        error = "-" if row["max_error"] is None else f"{row['max_error']:.0e}"
        cells = [f"{row['peer']}, {_form(row)}", *times, *sizes, _changed(row), error, str(row["lines"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _many(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| tool | encrypt | server | decrypt | up | down | keys | changed | samples per request |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        n = row["per_request"]
        times = [_number(1e6 * row[part] / n, 2) for part in ("encrypt", "server", "decrypt")]
        sizes = [_bytes(row[part] / n) for part in ("upload_bytes", "download_bytes")]
        cells = [f"{row['peer']}, {_form(row)}", *times, *sizes, _bytes(row["key_bytes"]), _changed(row), f"{n:,}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _form(row: dict[str, Any]) -> str:
    return FORMS.get(row["form"], row["form"])


def _changed(row: dict[str, Any]) -> str:
    return f"{row['changed']} of {row['samples']:,}"


def _number(value: float, digits: int = 3) -> str:
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    if not count:
        return "0"
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def written(page: str, document: dict[str, Any]) -> str:
    """The page with the tables of this document in their place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(document)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Rewrite the page."""
    document = json.loads((HERE / "peers.json").read_text())
    PAGE.write_text(written(PAGE.read_text(), document))


if __name__ == "__main__":
    main()
