"""The estimated security of every chain that the planner can choose.

Writes the tables of docs/security_parameters.md between its markers; no number depends on the machine, and a test
compares the page with what this prints:

    python benchmarks/security.py            # print them
    python benchmarks/security.py --write    # put them into the page
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from pathlib import Path

from lattice import Instance, bdd, dual_hybrid, estimate, usvp
from quad4fhe.layouts.batch.search import batch_chains
from quad4fhe.layouts.lift.search import lift_chains
from quad4fhe.planning.chains import SEAL_BITS, SECURE_BITS, Chain

PAGE = Path(__file__).parents[1] / "docs" / "security_parameters.md"
MUCH = 192  # bits; chains above are listed together

# What lattice-estimator printed, with its default cost model, for instances like ours: name, instance, attack, log2 of
# the cost, block size. Sources: its docs/schemes/hes.rst (first and third), its pull requests 119 and 97.
PUBLISHED = (
    ("SEAL 2.2, N = 8192", Instance(8192, 226), dual_hybrid, 121.8, 306),
    ("SEAL 2.2, N = 32768", Instance(32768, 889), dual_hybrid, 125.9, 313),
    ("HE Standard, n = 1024, secret of deviation 3", Instance(1024, 27, 3.0, 3.0, 1024), bdd, 136.7, 374),
    ("N = 65536", Instance(65536, 2 * 889 * math.log(2)), bdd, 186.3, 531),
)


def calibration() -> list[list[str]]:
    """Our estimate beside lattice-estimator's."""
    rows = []
    for name, lwe, attack, bits, block in PUBLISHED:
        ours = attack(lwe, "matzov")
        rows.append([name, f"{lwe.log_q:.0f}", ours.name, f"{bits} ({block})", f"{ours.bits:.1f} ({ours.block})"])
    return rows


def limit(ring: int, model: str) -> int:
    """The largest log2 q at which neither attack of the guidelines takes less than 2^128."""
    low, high = 1, 2 * SEAL_BITS[ring]
    while high - low > 1:
        middle = (low + high) // 2
        lwe = Instance(ring, middle)
        safe = min(usvp(lwe, model).bits, dual_hybrid(lwe, model).bits) >= 128
        low, high = (middle, high) if safe else (low, middle)
    return low


def limits() -> list[list[str]]:
    """The tables of 2024 and 2018 beside the limits of our estimate."""
    rows = []
    for ring, allowed in SECURE_BITS.items():
        at, before = (f"{estimate(Instance(ring, bits), 'matzov')[0].bits:.1f}" for bits in (allowed, SEAL_BITS[ring]))
        ours = (str(limit(ring, model)) for model in ("matzov", "bdgl16"))
        rows.append([str(ring), str(allowed), *ours, at, str(SEAL_BITS[ring]), before])
    return rows


def chosen() -> list[tuple[str, Chain]]:
    """Every chain that the planner can choose, with its layout."""
    lift = {made for replies in ("private", "plain") for made in lift_chains(replies)}
    return [("batch", each) for each in batch_chains()] + [("lift", each) for each in sorted(lift, key=str)]


def chains() -> list[list[str]]:
    """One row for each ring, layout and number of bits that count; chains with security to spare in one row."""
    found: dict[tuple[int, str, int], list[str]] = defaultdict(list)
    for layout, made in chosen():
        found[made.ring, layout, made.bits].append(_primes(made))
    rows, spare = [], defaultdict(list)
    for (ring, layout, bits), names in sorted(found.items()):
        cheapest = {model: estimate(Instance(ring, bits), model)[0] for model in ("core", "bdgl16", "matzov")}
        if cheapest["matzov"].bits > MUCH:
            spare[ring, layout].append((bits, len(names)))
            continue
        costs = [f"{cheapest[model].bits:.1f}" for model in ("matzov", "bdgl16", "core")]
        rows.append([str(ring), layout, str(bits), ", ".join(names), *costs, cheapest["matzov"].name])
    for (ring, layout), each in spare.items():
        most, count = max(bits for bits, _ in each), sum(number for _, number in each)
        rows.append([str(ring), layout, f"at most {most}", f"{count} more", f"over {MUCH}", "", "", ""])
    return sorted(rows, key=lambda row: (int(row[0]), row[1]))


def _primes(made: Chain) -> str:
    """The sizes of the primes."""
    sizes = [q.bit_length() for q in made.primes]
    return f"{len(sizes)} x {sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def tables() -> dict[str, str]:
    """The tables of the page, by the name of their marker."""
    return {
        "calibration": table(
            ["instance", "log2 q", "attack", "lattice-estimator (block)", "here (block)"], calibration()
        ),
        "limits": table(
            ["N", "guidelines 2024", "here, `matzov`", "here, `bdgl16`", "bits at the limit", "2018", "bits at that"],
            limits(),
        ),
        "chains": table(
            ["N", "layout", "bits", "primes", "`matzov`", "`bdgl16`", "`core`", "cheapest attack (`matzov`)"], chains()
        ),
    }


def filled(page: str) -> str:
    """The page with every table put between its markers."""
    for name, text in tables().items():
        start, end = f"<!-- {name}: benchmarks/security.py -->", f"<!-- end of {name} -->"
        page = re.sub(f"{re.escape(start)}.*?{re.escape(end)}", f"{start}\n\n{text}\n\n{end}", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/security_parameters.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(tables().values()))
