"""Run one stage of the workload.

python stages.py STAGE [SIZE]
"""

from __future__ import annotations

import sys
from importlib import import_module

from sizes import Size

STAGES = {
    "client_key_generation": "client",
    "server_preprocess_model": "server",
    "client_preprocess_input": "images",
    "client_encode_encrypt_input": "client",
    "server_encrypted_compute": "server",
    "client_decrypt_decode": "client",
    "client_postprocess": "images",
}
"""The module of every stage, in the harness's order; one that needs no ciphertexts does not load the library."""

WITHOUT_SIZE = "server_preprocess_model"


def main() -> None:
    """Run the stage named on the command line."""
    if len(sys.argv) < 2 or sys.argv[1] not in STAGES:
        raise SystemExit(f"name a stage: {', '.join(STAGES)}")
    name, given = sys.argv[1], sys.argv[2:]
    if len(given) != (0 if name == WITHOUT_SIZE else 1):
        raise SystemExit(f"usage: {name}" + ("" if name == WITHOUT_SIZE else " SIZE, with SIZE 0, 1, 2 or 3"))
    sizes = [Size(number) for number in given]
    try:
        getattr(import_module(STAGES[name]), name)(*sizes)
    except Exception as error:  # the library's errors are told by their module: two stages do not load it
        if type(error).__module__.partition(".")[0] != "quad4fhe" and not isinstance(error, OSError):
            raise
        raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
