"""The command line: parses, calls the API, prints. Every decision is taken elsewhere."""

# The help lists commands in the order of these imports.
from quad4fhe.cli import fitting  # isort: skip
from quad4fhe.cli import encrypted  # isort: skip
from quad4fhe.cli import service  # isort: skip
from quad4fhe.cli import reporting  # isort: skip
from quad4fhe.cli.app import entry_point, main

__all__ = ["encrypted", "entry_point", "fitting", "main", "reporting", "service"]
