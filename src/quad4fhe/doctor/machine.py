"""The machine and the libraries that decide speed: Python, platform, cores, memory, BLAS, residue kernels.

Decides what counts as slow. Limits of a container count, not only what its host has.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import threadpoolctl

from quad4fhe.circuit.forecast import readable_bytes
from quad4fhe.doctor.finding import Finding
from quad4fhe.he.residues import kernels

PART = "machine"
_LEAST_PYTHON = (3, 11)
_LITTLE_MEMORY = 2 * 2**30
_CGROUP = Path("/sys/fs/cgroup")


def findings() -> Iterator[Finding]:
    """What the machine is, from the interpreter to the BLAS."""
    yield _found("quad4fhe", f"{version('quad4fhe')} in {Path(__file__).parents[1]}")
    yield _python()
    libc = " ".join(platform.libc_ver()).strip()
    yield _found("platform", f"{platform.system()} {platform.release()}, {platform.machine()}{libc and ', ' + libc}")
    yield _found("wheels", f"{sysconfig.get_platform()}; SEAL's: {_wheel('seal-python')}")
    yield _cores()
    yield _memory()
    yield _blas()
    yield _numba()


def _found(name: str, says: str) -> Finding:
    return Finding(part=PART, name=name, status="ok", says=says)


def _slow(name: str, says: str, fix: str) -> Finding:
    return Finding(part=PART, name=name, status="slow", says=says, fix=fix)


def _python() -> Finding:
    says = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        return Finding(part=PART, name="python", status="failed", says=says, fix="use Python 3.11 or newer")
    return _found("python", says)


def _wheel(package: str) -> str:
    """The platform tags of an installed wheel."""
    try:
        text = distribution(package).read_text("WHEEL") or ""
    except PackageNotFoundError:
        return "not installed"
    tags = [line.removeprefix("Tag:").strip() for line in text.splitlines() if line.startswith("Tag:")]
    return ", ".join(tags) or "built here"


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _read(_CGROUP / "cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        cores = min(cores, max(1, int(quota[0]) // max(1, int(quota[1]))))
    return cores


def memory() -> tuple[int, int] | None:
    """Bytes that are free and bytes in all, the container's where it has less; None where the system does not tell."""
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
        return _slow("cores", says, "give it two or more cores: a server computes one request per core")
    return _found("cores", says)


def _memory() -> Finding:
    known = memory()
    if known is None:
        return _found("memory", "unknown on this system")
    says = f"{readable_bytes(known[0])} free of {readable_bytes(known[1])}"
    if known[0] < _LITTLE_MEMORY:
        return _slow("memory", says, f"free some: large fits keep up to {readable_bytes(_LITTLE_MEMORY)} at once")
    return _found("memory", says)


def _blas() -> Finding:
    import scipy.linalg  # noqa: F401 - so that its BLAS is loaded, too

    libraries = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    shown = {
        f"{one['internal_api']} {one['version'] or ''} ({one.get('architecture', 'any')}), {one['num_threads']} threads"
        for one in libraries
    }
    says = "; ".join(sorted(shown)) or "none that threadpoolctl knows"
    if not libraries and sys.platform == "darwin":
        return _found("BLAS", "Accelerate, as it seems; its threads can't be counted")
    if not libraries:
        return _slow("BLAS", says, "pip install --force-reinstall numpy (its wheels bring OpenBLAS)")
    if max(one["num_threads"] for one in libraries) > usable_cores():
        return _slow("BLAS", says, f"export OPENBLAS_NUM_THREADS={usable_cores()}: more threads than cores only wait")
    return _found("BLAS", says)


def _numba() -> Finding:
    fix = "pip install 'quad4fhe[fast]'"
    try:
        name = kernels().NAME
    except Exception as error:  # a numba that does not suit this numpy breaks while it is imported, in ways of its own
        return _slow("numba", f"breaks when it is imported ({error})", f"pip install --upgrade numba; or {fix}")
    if name != "numba":
        return _slow("numba", "not installed: the layout batch runs on numpy, several times slower", fix)
    return _found("numba", f"{version('numba')}: compiled residue kernels")
