"""Run the notebooks and store what they show: `make notebooks`, or `python docs/notebooks/run.py --check [NAME]`.

Outputs are committed, so that the site and a code browser show the pictures without running anything. `--check`, which
the tests call, runs everything again and compares what is shown: the kinds of outputs must be the same and the words
nearly (figures, and with them a word here and there, differ from machine to machine).
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
ALIKE = 0.9  # share of words that must be as stored
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def main(words: list[str]) -> int:
    """Run every notebook, or those named; store the outputs, or compare them."""
    check, names = "--check" in words, [word for word in words if word != "--check"]
    stale = []
    for path in [HERE / name for name in names] or sorted(HERE.glob("*.ipynb")):
        stored = nbformat.read(path, as_version=4)
        fresh = executed(stored)
        if not check:
            nbformat.write(fresh, path)
        elif not alike(shown(stored), shown(fresh)):
            stale += [path.name, *difflib.unified_diff(shown(stored), shown(fresh), "stored", "shown now", lineterm="")]
    if stale:
        print("\n".join([*stale, "The notebook shows something else now; store it with: make notebooks"]))
    return 1 if stale else 0


def alike(stored: list[str], fresh: list[str]) -> bool:
    """Whether the same cells show the same kinds of things, in nearly the same words."""
    if [line.partition("]")[0] for line in stored] != [line.partition("]")[0] for line in fresh]:
        return False
    return difflib.SequenceMatcher(None, " ".join(stored).split(), " ".join(fresh).split()).ratio() >= ALIKE


def executed(stored: Any) -> Any:
    """The notebook with fresh outputs and nothing that changes from run to run: no times, no kernel version."""
    fresh = nbformat.v4.new_notebook(
        cells=[nbformat.from_dict({**cell}) for cell in stored.cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    NotebookClient(fresh, timeout=600, startup_timeout=300, kernel_name="python3").execute()
    for cell in fresh.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = joined(cell.outputs)
    fresh.metadata = {"kernelspec": fresh.metadata["kernelspec"]}
    return fresh


def joined(outputs: list[Any]) -> list[Any]:
    """Outputs with printed text in one piece: into how many it was cut depends on the speed of the machine."""
    out: list[Any] = []
    for output in outputs:
        before = out[-1] if out else {}
        if output.output_type == "stream" == before.get("output_type") and output.name == before.name:
            before.text += output.text
        else:
            out.append(output)
    return out


def shown(notebook: Any) -> list[str]:
    """What a reader sees under each cell, without figures: texts, and the kinds of everything else."""
    lines = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            kinds = sorted(output.get("data", {}))
            words = " ".join(NUMBER.sub("#", text).split()) if "image/png" not in kinds else ""
            lines.append(f"cell {number}: {output.output_type} {kinds} {words}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
