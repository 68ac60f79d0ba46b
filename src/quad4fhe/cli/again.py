"""The command that was typed, with some options changed: advice that works when it is pasted."""

from __future__ import annotations

from shlex import join
from typing import Any

import typer


def again(context: typer.Context, drop: tuple[str, ...] = (), **changes: Any) -> str:
    """The command of this context with the parameters of `changes` set and those of `drop` left out."""
    arguments, options = [], []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if name in drop or not (given or name in changes):
            continue
        value = changes.get(name, context.params.get(name))
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif isinstance(value, bool):
            options.append(max((parameter.opts if value else parameter.secondary_opts), key=len))
        else:
            options += [max(parameter.opts, key=len), str(value)]
    return join([*context.command_path.split(), *arguments, *options])
