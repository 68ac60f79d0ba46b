"""Write results in the smallest form that a person can still read: a record to a line, numbers to six digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DIGITS = 6


def write(path: Path, document: dict[str, Any]) -> None:
    """Write one JSON document, with a line for each entry and for each record of a list of records."""
    lines = [f"{json.dumps(key)}:{_entry(_rounded(value))}" for key, value in document.items()]
    path.write_text("{" + ",\n".join(lines) + "}\n")


def _entry(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(_line(each) for each in value) + "]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
