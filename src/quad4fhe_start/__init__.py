"""Starts the command line. A package of its own, so that nothing of quad4fhe is imported before it is ready.

Decides what Ctrl-C and a broken installation look like until then; everything after it is left to `quad4fhe.cli`.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130
_BROKEN = 2


def entry_point() -> None:
    """What the installed command runs."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if own:
        signal.signal(signal.SIGINT, _leave)
    try:
        from quad4fhe.cli import entry_point as run
    except ImportError as error:
        _say(f"can't start: {error}; try: pip install --force-reinstall quad4fhe")
        sys.exit(_BROKEN)
    if own:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: libraries that are half imported may swallow an exception, and nothing was begun yet."""
    _say("interrupted")
    os._exit(_INTERRUPTED)


def _say(text: str) -> None:
    os.write(2, f"quad4fhe: {' '.join(text.split())}\n".encode())
