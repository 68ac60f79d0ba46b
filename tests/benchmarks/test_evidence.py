"""The README's evidence is what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import evidence

BENCHMARKS = Path(evidence.__file__).parent


def committed(name: str) -> Any:
    return json.loads((BENCHMARKS / f"{name}.json").read_text())


def test_the_picture_is_drawn_from_the_committed_results() -> None:
    shown = evidence.points(committed("peers"), committed("families"))
    assert evidence.OUT.read_text() == evidence.drawn(shown)


def test_every_peer_has_a_result_or_a_reason() -> None:
    for network in committed("peers")["networks"].values():
        for row in network["results"]:
            assert ("server" in row) != bool(row.get("skipped"))
