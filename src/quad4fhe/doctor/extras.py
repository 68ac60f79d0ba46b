"""Optional parts: which are installed, and the one command that adds each.

Read from the package's own metadata, so that an extra added there is examined here without a further word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version

from quad4fhe.doctor.finding import Finding

PART = "optional parts"
# What each part is for; those of developers are not missed by users.
_PURPOSE = {
    "fast": "compiled residue kernels",
    "sklearn": "scikit-learn models and QuadraticReplacement",
    "onnx": "ONNX models, in and out",
    "torch": "torch models, in and out",
    "parquet": "samples in .parquet files",
    "serve": "serve and query, keys with a passphrase",
    "ray": "fits and scores on many machines",
    "report": "the report's pictures",
    "exact": "faster exact arithmetic",
    "demo": "quad4fhe demo",
}
_DEVELOPERS = frozenset({"test", "docs", "dev"})
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def findings() -> Iterator[Finding]:
    """One finding per extra of the installed package."""
    package = distribution("quad4fhe")
    needs = requirements(package.requires or [])
    for extra in sorted(set(package.metadata.get_all("Provides-Extra") or []) - _DEVELOPERS):
        yield _finding(extra, expanded(extra, needs))


def requirements(lines: list[str]) -> dict[str, list[tuple[str, str, str]]]:
    """(package, its extras, version bounds) by extra, from lines such as `numba>=0.59; extra == 'fast'`."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in lines:
        match = _REQUIREMENT.match(line.strip())
        extra = _EXTRA.search(match[4] or "") if match else None
        if match and extra:
            found.setdefault(extra[1], []).append((match[1], match[2] or "", match[3].strip()))
    return found


def expanded(extra: str, needs: dict[str, list[tuple[str, str, str]]]) -> list[tuple[str, str]]:
    """(package, version bounds) of an extra, with those of the extras it includes."""
    out: list[tuple[str, str]] = []
    todo, seen = [extra], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        for package, inner, bounds in needs.get(one, []):
            if package.lower() == "quad4fhe":
                todo += [name.strip() for name in inner.split(",")]
            elif (package, bounds) not in out:
                out.append((package, bounds))
    return out


def _finding(extra: str, packages: list[tuple[str, str]]) -> Finding:
    purpose = _PURPOSE.get(extra, ", ".join(package for package, _ in packages))
    present, absent = [], []
    for package, bounds in packages:
        try:
            found = version(package)
        except PackageNotFoundError:
            absent.append(package)
            continue
        if too_old(found, bounds):
            absent.append(f"{package} {bounds} (found {found})")
        else:
            present.append(f"{package} {found}")
    if not absent:
        return Finding(part=PART, name=extra, status="ok", says=f"{purpose}: {', '.join(present)}")
    says = f"{purpose}: without {', '.join(absent)}"
    return Finding(part=PART, name=extra, status="missing", says=says, fix=f"pip install 'quad4fhe[{extra}]'")


def too_old(found: str, bounds: str) -> bool:
    """Whether a version is below a lower bound such as `>=0.59`; what can't be compared is taken as it is."""
    least = re.search(r">=\s*([0-9.]+)", bounds)
    own = re.match(r"[0-9.]+", found)
    if least is None or own is None:
        return False
    wanted, has = ([int(part) for part in text.strip(".").split(".")] for text in (least[1], own[0]))
    return has < wanted
