"""Core dumps hold no key."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPEN_A_KEY = """
import ctypes, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from quad4fhe.planning.chains import chain
from quad4fhe.he.seal import Context, SecretKey
context = Context(chain(2048, (18, 18)))
before = resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
key = SecretKey(context)
print(*before, resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), hard)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_core_dumps_are_off_while_a_key_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_A_KEY], capture_output=True, text=True, check=True)
    before, dumpable, after, dumpable_after, hard = map(int, done.stdout.split())
    assert (before, dumpable) == (hard, 1)
    assert (after, dumpable_after) == (0, 0)
