"""The command line: parses, calls the API, prints. Every decision is taken elsewhere."""

from quad4fhe.cli import encrypted, fitting, service
from quad4fhe.cli.app import entry_point, main

__all__ = ["encrypted", "entry_point", "fitting", "main", "service"]
