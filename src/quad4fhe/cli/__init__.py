"""The command line: parses, calls the API, prints. Every decision is taken elsewhere."""

# The help lists commands in the order of these imports.
from quad4fhe.cli import fitting  # isort: skip
from quad4fhe.cli import encrypted  # isort: skip
from quad4fhe.cli import service  # isort: skip
from quad4fhe.cli import scoring  # isort: skip
from quad4fhe.cli import reporting  # isort: skip
from quad4fhe.cli import exporting  # isort: skip
from quad4fhe.cli import additions  # isort: skip
from quad4fhe.cli import checkup  # isort: skip
from quad4fhe.cli.app import entry_point, main

__all__ = [
    "additions",
    "checkup",
    "encrypted",
    "entry_point",
    "exporting",
    "fitting",
    "main",
    "reporting",
    "scoring",
    "service",
]
