"""The command line: one module per command. A command parses its options, calls the library and prints the result."""

# The front page lists the commands in the order of these imports.
from quad4fhe.cli import demo  # isort: skip
from quad4fhe.cli import fit  # isort: skip
from quad4fhe.cli import verify  # isort: skip
from quad4fhe.cli import compare  # isort: skip
from quad4fhe.cli import plan  # isort: skip
from quad4fhe.cli import predict  # isort: skip
from quad4fhe.cli import keygen  # isort: skip
from quad4fhe.cli import serve  # isort: skip
from quad4fhe.cli import models  # isort: skip
from quad4fhe.cli import query  # isort: skip
from quad4fhe.cli import score  # isort: skip
from quad4fhe.cli import bench  # isort: skip
from quad4fhe.cli import report  # isort: skip
from quad4fhe.cli import export  # isort: skip
from quad4fhe.cli import doctor  # isort: skip
from quad4fhe.cli.app import add_installed_commands, entry_point, main

__all__ = [
    "bench",
    "compare",
    "demo",
    "doctor",
    "entry_point",
    "export",
    "fit",
    "keygen",
    "main",
    "models",
    "plan",
    "predict",
    "query",
    "report",
    "score",
    "serve",
    "verify",
]

add_installed_commands()
