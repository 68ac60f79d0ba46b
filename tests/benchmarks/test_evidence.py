"""The README's evidence is what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import evidence
import peer_tables

BENCHMARKS = Path(evidence.__file__).parent
ROOT = BENCHMARKS.parent


def committed(name: str) -> Any:
    return json.loads((BENCHMARKS / f"{name}.json").read_text())


def test_the_picture_is_drawn_from_the_committed_results() -> None:
    shown = evidence.points(committed("peers"), committed("families"))
    assert evidence.OUT.read_text() == evidence.drawn(shown)


def test_every_peer_has_a_result_or_a_reason() -> None:
    for network in committed("peers")["networks"].values():
        for row in network["results"]:
            assert ("server" in row) != bool(row.get("skipped"))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_tables_of_other_tools_are_those_of_the_committed_results() -> None:
    page = peer_tables.PAGE.read_text()
    assert peer_tables.written(page, committed("peers")) == page


def test_the_readme_says_of_five_seeds_what_the_results_say() -> None:
    readme = (ROOT / "README.md").read_text().splitlines()
    shown = {cells(line)[0]: cells(line)[2:] for line in readme if " ± " in line}
    seeds = (ROOT / "results" / "RESULTS.md").read_text().split("\n## Five seeds\n")[1].split("\n## ")[0]
    found = {cells(line)[0]: cells(line) for line in seeds.splitlines() if " ± " in line}
    names = {"breast cancer": "BWC", "Diabetes": "Diabetes", "SST-5": "SST-5", "Shuttle": "Shuttle", "Otto": "Otto"}
    assert set(shown) == set(names)
    for name, values in shown.items():
        assert values == [found[names[name]][column] for column in (4, 6, 8)]
    assert [part.split("(")[0].split()[0] for part in found["BWC"][10].split(", ")] == ["hard", "rch", "rch", "rch"]


def test_the_readme_says_of_the_workload_what_the_committed_results_say() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    text = readme.split("**Other people's benchmark.**")[1].split("**Where others are better.**")[0]
    networks = [network["sizes"] for network in committed("he_org")["networks"].values()]
    for sizes in networks:
        assert sum(size["changed"] for size in sizes.values()) == 0
        assert sizes["medium"]["public_key_bytes"] == sizes["large"]["public_key_bytes"] == 0
        assert f"{100 * sizes['large']['accuracy']:.2f}%" in text
    single, large = ([sizes[name] for sizes in networks] for name in ("single", "large"))
    assert f"{max(size['server_cpu_seconds'] for size in single):.2f} s of server CPU" in text
    assert f"{max(size['cpu_seconds'] for size in large):.1f} s" in text
    assert f"{large[0]['bytes_per_image'] / 1e3:.0f} kB per image" in text
    assert f"{max(size['peak_bytes'] for sizes in networks for size in sizes.values()) / 2**20:.0f} MiB" in text
