"""How a command's docstring becomes its manual page: what it does, an example, exit codes.

Decides the form of every `--help`, so that a command only has to describe itself:

    First sentence.

    Further paragraphs.

    Example: quad4fhe fit model.onnx calib.npz

    Exit 1: what a "no" means for this command.

Plain text on purpose: it wraps at any width, can be piped, and carries no colour codes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

WIDTH = 100
_NO = "the answer is no: a certificate that fails, a target not reached"
_CODES = """Exit codes:
  0    success
  1    {}
  2    bad input; one line says what came, what was wanted and how to fix it
  130  interrupted with Ctrl-C; no file is left half written"""
_VERBATIM = "\b\n"  # tells the formatter to leave the lines of a paragraph alone


class Manual(typer.Typer):
    """A Typer whose commands get their help from their docstrings, with examples and exit codes at the end."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command as Typer does."""
        register = super().command

        def decorate(function: Any) -> Any:
            text, epilog = page(inspect.getdoc(function) or "")
            return register(name, **({"help": text, "epilog": epilog} | settings))(function)

        return decorate


def page(docstring: str) -> tuple[str, str]:
    """The text of a manual page and what comes after the options."""
    text, examples, no = [], [], _NO
    for paragraph in docstring.split("\n\n"):
        if paragraph.startswith("Example:"):
            examples += [line.removeprefix("Example:").strip() for line in paragraph.splitlines()]
        elif paragraph.startswith("Exit 1:"):
            no = " ".join(paragraph.removeprefix("Exit 1:").split())
        else:
            text.append(paragraph)
    end = [_VERBATIM + _CODES.format(no)]
    if examples:
        end.insert(0, _VERBATIM + "\n  ".join(["Example:" if len(examples) == 1 else "Examples:", *examples]))
    return "\n\n".join(text), "\n\n".join(end)
