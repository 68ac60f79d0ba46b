"""Optional parts: which are installed, and the one command that adds each.

Read from the package's own metadata, so that an extra added there is examined here without a further word.
"""

from __future__ import annotations

import re
import sys
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
    "demo": "quad4fhe demo",
    "notebooks": "the notebooks of the documentation",
}
_REPRODUCE = "quad4fhe-reproduce"
_DEVELOPERS = frozenset({"fuzz", "release", "test", "docs"})
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def libraries() -> Finding:
    """The packages that every installation needs, and whether they are new enough."""
    needs = requirements(distribution("quad4fhe").requires or [])
    present, absent = _sorted_out([(package, bounds) for package, _, bounds in needs.get("", [])])
    if absent:
        return Finding(
            part="machine",
            name="libraries",
            status="failed",
            says=", ".join(absent),
            fix="pip install --upgrade quad4fhe",
        )
    return Finding(part="machine", name="libraries", status="ok", says=", ".join(present))


def findings() -> Iterator[Finding]:
    """One finding per extra of the installed package."""
    package = distribution("quad4fhe")
    needs = requirements(package.requires or [])
    for extra in sorted(set(package.metadata.get_all("Provides-Extra") or []) - _DEVELOPERS):
        yield _finding(extra, expanded(extra, needs))
    yield _reproduce()


def requirements(lines: list[str]) -> dict[str, list[tuple[str, str, str]]]:
    """(package, its extras, version bounds) by extra, from lines such as `numba>=0.59; extra == 'fast'`.

    What every installation needs is under the empty name.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in lines:
        match = _REQUIREMENT.match(line.strip())
        if match and not ("sys_platform != 'win32'" in line.replace('"', "'") and sys.platform == "win32"):
            extra = _EXTRA.search(match[4] or "")
            found.setdefault(extra[1] if extra else "", []).append((match[1], match[2] or "", match[3].strip()))
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
    present, absent = _sorted_out(packages)
    if not absent:
        return Finding(part=PART, name=extra, status="ok", says=f"{purpose}: {', '.join(present)}")
    says = f"{purpose}: without {', '.join(absent)}"
    return Finding(part=PART, name=extra, status="missing", says=says, fix=f"pip install 'quad4fhe[{extra}]'")


def _reproduce() -> Finding:
    """The package of the paper's tables."""
    present, absent = _sorted_out([(_REPRODUCE, "")])
    if present:
        return Finding(part=PART, name="reproduce", status="ok", says=f"quad4fhe reproduce: {present[0]}")
    says, fix = f"quad4fhe reproduce: without {absent[0]}", f"pip install '{_REPRODUCE}[train]'"
    return Finding(part=PART, name="reproduce", status="missing", says=says, fix=fix)


def _sorted_out(packages: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Packages that are there, and those that are not or are too old, in words."""
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
    return present, absent


def too_old(found: str, bounds: str) -> bool:
    """Whether a version is below a lower bound such as `>=0.59`; what can't be compared is taken as it is."""
    least = re.search(r">=\s*([0-9.]+)", bounds)
    own = re.match(r"[0-9.]+", found)
    if least is None or own is None:
        return False
    wanted, has = ([int(part) for part in text.strip(".").split(".")] for text in (least[1], own[0]))
    return has < wanted
