"""`python -m quad4fhe` is the command line."""

from quad4fhe.cli import entry_point

entry_point()
