"""How much memory a worker may use, by a limit of the operating system on the process itself.

Decides what a worker's plans can need at the most, and that asking for more is a MemoryError in that worker, not a
machine without memory. Every size a stranger sends is fixed by the plan already: this is the fence behind that one.
"""

from __future__ import annotations

import math
from pathlib import Path

from quad4fhe.circuit.plan import Plan
from quad4fhe.errors import InputError
from quad4fhe.he.container import Kind, form

_SPARE = 2**30  # bytes beyond what is counted: work space, compiled kernels, fragments
_STATUS = Path("/proc/self/status")


def need(plan: Plan, keys: int) -> int:
    """Bytes that jobs of one plan can take, with room to spare: twice what is held while one is answered."""
    words = [math.prod(form(plan, kind).shape) for kind in (Kind.request, Kind.reply)]
    if plan.layout == "batch":  # the hidden layer and the skipped terms, where features come in several chunks
        words.append((plan.shape.units + plan.shape.outputs) * 2 * len(plan.chain.primes) * plan.chain.ring)
    else:
        words.append(keys * math.prod(form(plan, Kind.keys).shape))
    return 2 * 8 * sum(words)


def limit_memory(limit: int | None, needed: int) -> int | None:
    """Let this process have `limit` bytes; without one, what it has now and `needed`; where 0, no limit is set.

    Counts what the process can write to and shares with nobody, so mapped payloads are free. Returns the limit that was
    set, or None: only Linux both counts such memory and enforces the limit.
    """
    if limit == 0 or not _STATUS.exists():
        return None
    import resource  # not on every platform

    now = next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith("VmData:")) * 1024
    if limit is not None and limit < now:
        raise InputError(
            f"a worker has {now / 2**20:.0f} MiB in use once its models are loaded, which is more than the "
            f"{limit / 2**20:.0f} MiB it may have; give it more"
        )
    chosen = now + needed + _SPARE if limit is None else limit
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        chosen = min(chosen, most)
    resource.setrlimit(resource.RLIMIT_DATA, (chosen, most))
    return chosen
