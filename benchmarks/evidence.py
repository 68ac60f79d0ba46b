"""Draw the README's picture from committed results: the cost of one Otto question against the decisions kept.

    python benchmarks/evidence.py

Reads peers.json and families.json beside this file and writes docs/assets/evidence.svg; measures nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from math import log10
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "assets" / "evidence.svg"
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 36, 46, 56
OURS, OTHERS = "#0b6e4f", "#5b6472"


@dataclass(frozen=True)
class Point:
    """One tool: CPU seconds of a question on both sides, and the share of test decisions kept."""

    label: str
    seconds: float
    kept: float
    ours: bool


def points(peers: dict[str, Any], families: dict[str, Any]) -> list[Point]:
    """Our layouts, the quickest with two families, and every peer in its best form; no plain replies of lift."""
    otto = peers["networks"]["otto"]
    found = []
    rows = [row for row in otto["results"] if "server" in row and row["per_request"] == 1]
    rows = [row for row in rows if "plain" not in row["form"]]  # these tell the client the weights
    for row in rows:
        cost = _cost(row)
        if row["peer"] == "quad4fhe":
            layout = row["form"].split()[0]
            found.append(Point(f"quad4fhe, {layout}", cost, otto["kept"], True))
            if cost == min(_cost(each) for each in rows if each["peer"] == row["peer"]):
                found.append(Point(f"quad4fhe, {layout}, free head", cost, _free(families), True))
        elif row["form"] == "one":
            found.append(Point(row["peer"], cost, row.get("simulated_kept", otto["kept"]), False))
    return found


def _cost(row: dict[str, Any]) -> float:
    return float(row["encrypt"] + row["server"] + row["decrypt"])


def _free(families: dict[str, Any]) -> float:
    """The mean over seeds of the test agreement of family auto, which takes a free head, on all calibration rows."""
    rows = [row for row in families["results"] if (row["model"], row["family"]) == ("otto", "auto")]
    whole = [row["test"] for row in rows if row["share"] == 1.0]
    return float(sum(whole) / len(whole))


def drawn(shown: list[Point]) -> str:
    """The picture as SVG."""
    low, high = 10.0**-3, 10.0**2
    floor = 5 * int(100 * min(point.kept for point in shown) / 5) / 100 - 0.01

    def across(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (log10(seconds) - log10(low)) / (log10(high) - log10(low))

    def up(kept: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (kept - floor) / (1 - floor)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        "<title>One encrypted question on Otto (93-256-9): CPU time against test decisions kept</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600" fill="#1c2330">One encrypted question, Otto '
        "(93-256-9): left is cheaper, up is more faithful</text>",
    ]
    for exponent, text in zip(range(-3, 3), ("1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s"), strict=True):
        x = across(10.0**exponent)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e3e6ea"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#4a5260">{text}</text>')
    for percent in range(5 * int(20 * floor + 1), 101, 5):
        y = up(percent / 100)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e6ea"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#4a5260">{percent}%</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="#4a5260">CPU time of client and server, one '
        "thread, logarithmic</text>"
    )
    rows: dict[float, list[Point]] = {}
    for point in sorted(shown, key=lambda each: each.seconds):
        rows.setdefault(point.kept, []).append(point)
    for row in rows.values():
        for number, point in enumerate(row):
            x, y, colour = across(point.seconds), up(point.kept), OURS if point.ours else OTHERS
            # The first label of a row is left of its point; the others are above and below in turns.
            dx, dy, anchor = (-10, 4, "end") if number == 0 else (0, -10 if number % 2 else 20, "middle")
            if (number == 0 and x < LEFT + 150) or x > WIDTH - 130:
                dx, dy, anchor = (10, 4, "start") if x < WIDTH / 2 else (-10, 4, "end")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{colour}"/>')
            text = f'x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}" fill="{colour}"'
            parts.append(f"<text {text}>{escape(point.label)}</text>")
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Draw and write."""
    read = {name: json.loads((HERE / f"{name}.json").read_text()) for name in ("peers", "families")}
    shown = points(read["peers"], read["families"])
    OUT.write_text(drawn(shown))
    for point in shown:
        print(f"{point.label}: {1e3 * point.seconds:.3g} ms, {100 * point.kept:.2f}% kept")


if __name__ == "__main__":
    main()
