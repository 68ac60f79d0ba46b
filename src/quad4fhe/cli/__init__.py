"""The command line: parses, calls the API, prints. Every decision is taken elsewhere."""

from quad4fhe.cli import fitting  # isort: skip - commands are listed in this order in the help
from quad4fhe.cli import encrypted
from quad4fhe.cli.app import entry_point, main

__all__ = ["encrypted", "entry_point", "fitting", "main"]
