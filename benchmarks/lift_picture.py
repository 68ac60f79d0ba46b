"""Draws what `plan` chooses for one question, and what it would cost in each layout, from benchmarks/lift.json.

python benchmarks/lift_picture.py benchmarks/lift.json docs/assets/layouts.svg
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, GAP = 230, 210, 52, 34, 28
COLOURS = {"lift": "#0b6e4f", "packed": "#b3541e"}
TICKS = (1, 10, 100, 1000)


def drawn(rows: list[dict[str, Any]]) -> str:
    """The picture: a panel for each number of classes; filled circles mark the layout that `plan` takes."""
    classes = sorted({row["K"] for row in rows})
    widths = [row["d"] for row in rows]
    times = [ms for row in rows for ms in row["measured_ms"].values()]
    span = (math.log2(min(widths)), math.log2(max(widths)))
    low, high = math.log10(min(times)) - 0.1, math.log10(max(times)) + 0.1
    total = (LEFT + len(classes) * (WIDTH + GAP), TOP + HEIGHT + 58)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total[0]} {total[1]}" role="img" '
        'font-family="sans-serif" font-size="11">',
        "<title>One question: CPU time of layouts lift and packed, both sides, by the number of features</title>",
        f'<rect width="{total[0]}" height="{total[1]}" fill="white"/>',
    ]
    for panel, K in enumerate(classes):
        left = LEFT + panel * (WIDTH + GAP)

        def at(d: float, ms: float, left: int = left) -> tuple[float, float]:
            x = left + WIDTH * (math.log2(d) - span[0]) / (span[1] - span[0])
            return x, TOP + HEIGHT * (high - math.log10(ms)) / (high - low)

        out.append(f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>')
        out.append(f'<text x="{left + WIDTH / 2}" y="{TOP - 10}" text-anchor="middle">K = {K} classes</text>')
        for tick in TICKS:
            if low <= math.log10(tick) <= high:
                _, y = at(1, tick)
                out.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
                if panel == 0:
                    out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick} ms</text>')
        own = [row for row in rows if row["K"] == K]
        for row in own:
            x, _ = at(row["d"], 1)
            out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{row["d"]}</text>')
        for layout, colour in COLOURS.items():
            points = [(row, at(row["d"], row["measured_ms"][layout])) for row in own if layout in row["measured_ms"]]
            line = " ".join(f"{x:.1f},{y:.1f}" for _, (x, y) in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            for row, (x, y) in points:
                fill = colour if row["chosen"] == layout else "white"
                out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}"/>')
    y = TOP + HEIGHT + 42
    worst = max(row["over_best"] for row in rows)
    out.append(f'<text x="{LEFT}" y="{y}">features d.</text>')
    for i, (layout, colour) in enumerate(COLOURS.items()):
        x = LEFT + 80 + 80 * i
        out.append(f'<circle cx="{x}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{x + 8}" y="{y}">{layout}</text>')
    out.append(
        f'<text x="{LEFT + 250}" y="{y}">Filled: what plan takes, at most {100 * (worst - 1):.0f}% over the best</text>'
    )
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Read the measurements, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.write_text(drawn(json.loads(given.measured.read_text())["planner"]))


if __name__ == "__main__":
    main()
