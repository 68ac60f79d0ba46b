"""The help pages: a command's docstring becomes its manual page, with examples and exit codes at the end.

    One line for the list of commands.

    Further paragraphs.

    Example: quad4fhe fit model.onnx calib.npz

    Exit 1: what a "no" means for this command.

The pages are plain text: they wrap at any width, can be piped, and carry no colour codes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

WIDTH = 100
_NO = "the answer is no: a certificate that fails, a target not reached"
_CODES = {
    "0": "success",
    "1": _NO,
    "2": "bad input; one line says what came, what was wanted and how to fix it",
    "130": "interrupted with Ctrl-C; no file is left half written",
}
_VALUES = {Path: "FILE", int: "N", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True)
class Page:
    """The parts of a docstring: the text, lines to type, and the meaning of exit code 1."""

    text: str
    examples: tuple[str, ...]
    no: str

    @classmethod
    def of(cls, docstring: str) -> Page:
        """Take a docstring apart."""
        text, examples, no = list[str](), list[str](), _NO
        for paragraph in inspect.cleandoc(docstring).split("\n\n"):
            if paragraph.startswith("Example:"):
                examples += [line.removeprefix("Example:").strip() for line in paragraph.splitlines()]
            elif paragraph.startswith("Exit 1:"):
                no = " ".join(paragraph.removeprefix("Exit 1:").split())
            else:
                text.append(paragraph)
        return cls("\n\n".join(text), tuple(examples), no)


class Command(TyperCommand):
    """A command whose page names its arguments and options without Python types."""

    page: Page
    values: ClassVar[dict[str, str]]  # the metavar of each parameter, by its type
    later: ClassVar[Mapping[str, Callable[[], str]]]  # words that are slow to load, so only the page with them does

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            if param.metavar is None:
                param.metavar = self.values.get(str(param.name))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] FIT CALIB`; optional arguments stand in brackets."""
        return ["[OPTIONS]", *(_usage(param) for param in _arguments(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Two lists: arguments, options."""
        if _arguments(self):
            with formatter.section("Arguments"):
                formatter.write_dl([(param.metavar, param.help) for param in _arguments(self)])
        options: list[Any] = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        for param in options:
            for mark, words in self.later.items():
                if mark in param.help:
                    param.help = param.help.replace(mark, words())
        with formatter.section("Options"):
            formatter.write_dl([record for param in options if (record := param.get_help_record(ctx)) is not None])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples and exit codes."""
        examples = self.page.examples
        if examples:
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                for line in examples:
                    formatter.write(f"{' ' * formatter.current_indent}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl(list((_CODES | {"1": self.page.no}).items()))


class _Group(TyperGroup):
    """The front page: every command with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = [(name, command) for name, command in self.commands.items() if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, str(command.help).split("\n\n")[0]) for name, command in shown])


class Manual(typer.Typer):
    """A Typer whose commands get their help pages from their docstrings.

    `later` maps marks in the help of options to functions that give their words when a page is shown.
    """

    def __init__(self, later: Mapping[str, Callable[[], str]], **settings: Any) -> None:
        super().__init__(cls=_Group, rich_markup_mode=None, **settings)
        self._later = later

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command as Typer does."""
        register = super().command

        def decorate(function: Any) -> Any:
            page = Page.of(function.__doc__ or "")
            kind = type("Command", (Command,), {"page": page, "values": _values(function), "later": self._later})
            own: dict[str, Any] = {"help": page.text, "cls": kind}
            return register(name, **(own | settings))(function)

        return decorate


def _values(function: Any) -> dict[str, str]:
    """The metavar of each parameter by its name, such as FILE; flags have none."""
    kinds = {name: _types(hint) for name, hint in get_type_hints(function).items()}
    return {name: value for name, types in kinds.items() for kind, value in _VALUES.items() if kind in types}


def _types(hint: Any) -> list[Any]:
    """The types inside `list[Path] | None` and the like."""
    inside = get_args(hint)
    return [found for each in inside for found in _types(each)] if inside else [hint]


def _arguments(command: Command) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _usage(param: Any) -> str:
    name = param.metavar + ("..." if param.nargs != 1 else "")
    return name if param.required else f"[{name}]"
