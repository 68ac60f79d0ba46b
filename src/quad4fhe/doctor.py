"""`quad4fhe doctor`: examine the machine, run the self-checks, and list the optional parts.

Nothing here prints, and a check that breaks is a finding, not an exception. Cores and memory are those of the
container, if it has limits.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Literal

import msgspec
import threadpoolctl
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quad4fhe import _selfchecks
from quad4fhe._progress import Progress, silent
from quad4fhe._threads import usable_cores
from quad4fhe.io.files import one_line
from quad4fhe.planning.costs import readable_bytes

Status = Literal["ok", "slow", "missing", "failed"]

_MACHINE, _CHECKS, _OPTIONAL = "machine", "self-checks", "optional parts"
_LEAST_PYTHON = (3, 11)
_LITTLE_MEMORY = 2 * 2**30
_CGROUP = Path("/sys/fs/cgroup")
_PURPOSE = {
    "sklearn": "scikit-learn models and QuadraticReplacement",
    "onnx": "ONNX models, in and out",
    "features": "the part of a network that runs at the client",
    "torch": "torch models, in and out",
    "parquet": "samples in .parquet files",
    "serve": "serve and query",
    "ray": "fits and scores on many machines",
    "report": "the report's pictures",
    "demo": "quad4fhe demo",
    "notebooks": "the notebooks of the documentation",
}
_DEVELOPERS = frozenset({"fuzz", "release", "test", "docs"})  # extras for developers of quad4fhe
_REPRODUCE = "quad4fhe-reproduce"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result: what was examined, what was found, and the command or step that fixes it (empty if none is needed).

    `ok` means that it works, `slow` that it works slowly, `missing` that an optional part is not installed, and
    `failed` that something every user needs does not work.
    """

    part: str
    name: str
    status: Status
    says: str
    fix: str = ""


class Examination(msgspec.Struct, frozen=True):
    """All findings, in order."""

    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether everything that every user needs works; slow or missing parts do not count."""
        return not any(finding.status == "failed" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"healthy": self.healthy, "findings": msgspec.to_builtins(self.findings)}


def examine(progress: Progress = silent) -> Examination:
    """Examine everything once; takes a few seconds."""
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        (_MACHINE, machine),
        (_CHECKS, selfchecks),
        (_OPTIONAL, optional_parts),
    ]
    found: list[Finding] = []
    for done, (name, part) in enumerate(parts):
        progress(name, done, len(parts))
        for finding in part():
            found.append(finding)
            progress(finding.name, done, len(parts))
    return Examination(found)


def selfchecks() -> Iterator[Finding]:
    """Run every self-check once."""
    for name, check, fix in _selfchecks.checks():
        try:
            says = check()
        except Exception as error:  # a check may raise anything, and the error is the finding
            failed = f"{type(error).__name__}: {one_line(error)}"
            yield Finding(part=_CHECKS, name=name, status="failed", says=failed, fix=fix)
        else:
            yield Finding(part=_CHECKS, name=name, status="ok", says=says)


# --- the machine ------------------------------------------------------------------------------------------------


def machine() -> Iterator[Finding]:
    """The interpreter, the platform, the libraries, cores, memory, BLAS and compiled kernels."""
    yield _ok("quad4fhe", f"{version('quad4fhe')} in {Path(__file__).parent}")
    yield _python()
    libc = " ".join(platform.libc_ver()).strip()
    yield _ok("platform", f"{platform.system()} {platform.release()}, {platform.machine()}{libc and ', ' + libc}")
    yield _ok("wheels", f"{sysconfig.get_platform()}; SEAL's: {_wheel('seal-python')}")
    yield _libraries()
    yield _cores()
    yield _memory()
    yield _blas()


def _ok(name: str, says: str) -> Finding:
    return Finding(part=_MACHINE, name=name, status="ok", says=says)


def _slow(name: str, says: str, fix: str) -> Finding:
    return Finding(part=_MACHINE, name=name, status="slow", says=says, fix=fix)


def _failed(name: str, says: str, fix: str) -> Finding:
    return Finding(part=_MACHINE, name=name, status="failed", says=says, fix=fix)


def _python() -> Finding:
    says = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        return _failed("python", says, "use Python 3.11 or newer")
    return _ok("python", says)


def _wheel(package: str) -> str:
    """The platform tags of an installed wheel."""
    try:
        text = distribution(package).read_text("WHEEL") or ""
    except PackageNotFoundError:
        return "not installed"
    tags = [line.removeprefix("Tag:").strip() for line in text.splitlines() if line.startswith("Tag:")]
    return ", ".join(tags) or "built here"


def _libraries() -> Finding:
    present, absent = _installed(required(distribution("quad4fhe").requires or []))
    if absent:
        return _failed("libraries", ", ".join(absent), "pip install --upgrade quad4fhe")
    return _ok("libraries", ", ".join(present))


def memory() -> tuple[int, int] | None:
    """Free and total bytes, the container's if it has less; None if the system does not tell."""
    lines = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    if not {"MemTotal", "MemAvailable"} <= set(lines):
        try:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return None
        return total, total
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        free = min(free, max(0, total - int(used or 0)))
    return free, total


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cores() -> Finding:
    cores = usable_cores()
    says = f"{cores} usable of {os.cpu_count()}"
    if cores == 1:
        return _slow("cores", says, "use two or more cores: a server computes one request per core")
    return _ok("cores", says)


def _memory() -> Finding:
    known = memory()
    if known is None:
        return _ok("memory", "unknown on this system")
    says = f"{readable_bytes(known[0])} free of {readable_bytes(known[1])}"
    if known[0] < _LITTLE_MEMORY:
        return _slow("memory", says, f"free memory: large fits keep up to {readable_bytes(_LITTLE_MEMORY)} at once")
    return _ok("memory", says)


def _blas() -> Finding:
    import scipy.linalg  # noqa: F401 - loads SciPy's own BLAS, so that it is listed

    libraries = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    shown = {
        f"{one['internal_api']} {one['version'] or ''} ({one.get('architecture', 'any')}), "
        f"{one['num_threads']} thread{'' if one['num_threads'] == 1 else 's'}"
        for one in libraries
    }
    says = "; ".join(sorted(shown)) or "none that threadpoolctl knows"
    if not libraries and sys.platform == "darwin":
        return _ok("BLAS", "probably Accelerate, whose threads can't be counted")
    if not libraries:
        return _slow("BLAS", says, "pip install --force-reinstall numpy (its wheels bring OpenBLAS)")
    if max(one["num_threads"] for one in libraries) > usable_cores():
        return _slow("BLAS", says, f"export OPENBLAS_NUM_THREADS={usable_cores()}: more threads than cores only wait")
    return _ok("BLAS", says)


# --- optional parts ---------------------------------------------------------------------------------------------


def optional_parts() -> Iterator[Finding]:
    """One finding per extra of the installed package, read from its metadata, and one for reproduce."""
    package = distribution("quad4fhe")
    for extra in sorted(set(package.metadata.get_all("Provides-Extra") or []) - _DEVELOPERS):
        needs = required(package.requires or [], extra)
        purpose = _PURPOSE.get(extra, ", ".join(each.name for each in needs))
        yield optional_part(extra, purpose, needs, f"quad4fhe[{extra}]")
    yield optional_part("reproduce", "quad4fhe reproduce", [Requirement(_REPRODUCE)], f"{_REPRODUCE}[train]")


def optional_part(name: str, purpose: str, needs: list[Requirement], install: str) -> Finding:
    """Whether the requirements of an optional part are installed; `install` is what pip installs."""
    present, absent = _installed(needs)
    if not absent:
        return Finding(part=_OPTIONAL, name=name, status="ok", says=f"{purpose}: {', '.join(present)}")
    says = f"{purpose}: without {', '.join(absent)}"
    return Finding(part=_OPTIONAL, name=name, status="missing", says=says, fix=f"pip install '{install}'")


def required(lines: list[str], extra: str = "") -> list[Requirement]:
    """What an extra needs on this machine, with the extras it includes; without `extra`, what everyone needs."""
    known = [Requirement(line) for line in lines]
    wanted, found = [extra], {}
    for one in wanted:  # grows by the extras that others include
        for each in known:
            if not _applies(each, one):
                continue
            if canonicalize_name(each.name) == "quad4fhe":
                wanted += sorted(each.extras - set(wanted))
            else:
                found[each.name, str(each.specifier)] = each
    return list(found.values())


def _applies(requirement: Requirement, extra: str) -> bool:
    """Whether `extra` adds this requirement on this machine; with no extra, whether every user needs it."""
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    if not extra:
        return always
    return marker is not None and not always and marker.evaluate({"extra": extra})


def _installed(needs: list[Requirement]) -> tuple[list[str], list[str]]:
    """The installed packages, and those that are missing or have the wrong version, as text."""
    present, absent = [], []
    for each in needs:
        try:
            found = version(each.name)
        except PackageNotFoundError:
            absent.append(each.name)
            continue
        if each.specifier.contains(found, prereleases=True):
            present.append(f"{each.name} {found}")
        else:
            absent.append(f"{each.name} {each.specifier} (found {found})")
    return present, absent
