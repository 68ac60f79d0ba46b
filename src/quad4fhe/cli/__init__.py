"""The command line: one module per command. A command parses its options, calls the library and prints the result."""

from importlib import import_module

from quad4fhe.cli.app import add_installed_commands, entry_point, main

__all__ = ["COMMANDS", "entry_point", "main"]

COMMANDS = (
    *("demo", "fit", "verify", "plan", "predict", "serve", "models", "query"),
    *("score", "report", "export", "doctor"),
)
"""The commands, each a module of this package, in the order in which the front page lists them."""

for command in COMMANDS:
    import_module(f"quad4fhe.cli.{command}")
add_installed_commands()
