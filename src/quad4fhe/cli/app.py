"""The frame of the command line: the application, its exit codes, and commands of other packages.

Exit codes: 0 success, 1 the answer is no (a certificate that fails, a target not reached), 2 bad input, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer

import quad4fhe
from quad4fhe._threads import start_with_one_thread
from quad4fhe.cli.manual import WIDTH, Manual
from quad4fhe.cli.options import JsonFlag, layout_words
from quad4fhe.cli.terminal import print_json
from quad4fhe.errors import (
    CertificateError,
    FitError,
    InputError,
    Quad4FHEError,
    TargetNotReachedError,
)
from quad4fhe.io.files import one_line, shown

app = Manual(
    {"{layouts}": layout_words},
    name="quad4fhe",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
_INTERRUPTED = 130  # what shells expect of a command that Ctrl-C ended
_UNREAD = 141  # ... and of a command whose reader stops early, as in `quad4fhe ... | head`
_PATH_ERRORS = {getattr(errno, name) for name in ("EACCES", "EPERM", "ENOENT", "EISDIR", "ENOTDIR", "EROFS", "ELOOP")}
_PATH_ERRORS |= {errno.ENAMETOOLONG, errno.EMFILE}
_out_of_memory: list[MemoryError] = []  # keeps the objects of its frames alive; see `entry_point`
_ANSWER_IS_NO = (CertificateError, FitError, TargetNotReachedError)
_COMMANDS = "quad4fhe.commands"  # the group of entry points in which other packages name their commands
_REPRODUCE = ("compare", "bench", "reproduce")  # the commands of quad4fhe-reproduce, in reproduce/ of the repository

ROOT_EPILOG = """\b
A first run:
  quad4fhe demo

\b
From a model to an encrypted prediction:
  quad4fhe fit model.onnx calib.npz -o fit.safetensors
  quad4fhe verify fit.safetensors calib.npz
  quad4fhe plan fit.safetensors --calib calib.npz
  quad4fhe predict fit.safetensors test.npz --encrypted

`quad4fhe COMMAND --help` describes a command. Every command takes --json and exits with 0 on success, 1 when the answer
is no, 2 on bad input and 130 on Ctrl-C. Set NO_COLOR=1 to turn colour off."""


@app.callback(invoke_without_command=True, epilog=ROOT_EPILOG)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions."""
    if version:
        typer.echo(_version())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _version() -> str:
    return f"quad4fhe {quad4fhe.__version__}"


# --- commands of other packages ---------------------------------------------------------------------------------


def add_installed_commands() -> None:
    """Add the commands that installed packages offer; `quad4fhe-reproduce` in this repository is one of them.

    If a package can't be loaded, only its own command fails. Without quad4fhe-reproduce, its commands say how to
    install it.
    """
    found = entry_points(group=_COMMANDS)
    for point in found:
        _add(point)
    for name in _REPRODUCE:
        if name not in found.names:
            _refuse(
                name,
                InputError(
                    f"quad4fhe {name} is a command of the package quad4fhe-reproduce, which is not installed: "
                    "in a clone of quad4fhe, pip install ./reproduce"
                ),
            )


def _add(point: EntryPoint) -> None:
    try:
        command = point.load()
    except Exception as error:  # a package may raise anything while it is imported
        package = "its package" if point.dist is None else point.dist.name
        _refuse(point.name, InputError(f"{package} can't be loaded ({one_line(error)}); install it again"))
        return
    app.command(point.name)(command)


def _refuse(name: str, error: Quad4FHEError) -> None:
    """Register a command that accepts any arguments and raises an error."""

    def command(context: typer.Context, json: JsonFlag = False) -> None:
        raise error

    command.__doc__ = f"Not available here: `quad4fhe {name}` says why.\n\nExample: quad4fhe {name}"
    anything: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, hidden=True, context_settings=anything)(command)


# --- exit codes -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; an error that a user can cause is printed as one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    json = "--json" in words
    try:
        return _run(words, json)
    except OSError as error:
        return _system_error(error, json)


def _run(words: list[str], json: bool) -> int:
    try:
        if words == ["--version"]:  # Typer would load pydantic first, to read the option
            typer.echo(_version())
            return 0
        code = app(args=words, prog_name="quad4fhe", standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Quad4FHEError as error:
        return _fail(as_options(str(error), words[0]), 1 if isinstance(error, _ANSWER_IS_NO) else 2, json)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED, json)
    except typer.Abort as error:  # the user ended the prompt for a passphrase
        if isinstance(error.__context__, KeyboardInterrupt):
            return _fail("interrupted", _INTERRUPTED, json)
        return _fail("no passphrase was entered; type one, or put it into a file for --passphrase-file", 2, json)
    except MemoryError as error:
        _out_of_memory.append(error)
        return _fail(f"not enough memory ({one_line(error)}); use fewer samples, or a larger machine", 2, json)
    except SystemExit as error:  # how Typer and Rich exit when a pipe breaks
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _unread()
    except OSError:
        raise
    except Exception as error:
        # Typer reports arguments that it can't parse with its own exceptions, whose package depends on its version.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        message, context = show(), getattr(error, "ctx", None)
        page = getattr(context, "command_path", "quad4fhe")
        return _fail(f"{message} (see {page} --help)", 2, json) if message else 2


def as_options(message: str, command: str) -> str:
    """Write a hint for Python, such as family='auto', as the option of the command: --family auto."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    params = commands[command].params if command in commands else []
    flags = {param.name: max(param.opts, key=len) for param in params if param.param_type_name == "option"}

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'\"")
        if name not in flags:
            return found[0]
        return flags[name] if value == "True" else f"{flags[name]} {value}"

    return re.sub(r"\b([a-z_]+)=('[^']*'|\"[^\"]*\"|[\w.]*\w)", option, message)


def _system_error(error: OSError, json: bool) -> int:
    if error.errno == errno.EPIPE:
        return _unread()
    if error.errno == errno.ENOSPC:
        _discard_output()
        return _fail(f"the output could not be written: {error.strerror}", 2, json=False)
    if error.errno in _PATH_ERRORS and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}; check the path and its permissions", 2, json)
    raise error


def _unread() -> int:
    """End silently: a reader that stops early, as `| head` does, is not an error."""
    _discard_output()
    return _UNREAD


def _discard_output() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that the interpreter's last flush does not fail again


def _fail(message: str, code: int, json: bool) -> int:
    if json:
        print_json({"error": message, "exit_code": code})
    sys.stderr.write(f"quad4fhe: {shown(' '.join(message.split()))}\n")
    return code


def entry_point() -> None:
    """Run the command line and exit; `quad4fhe_start` calls it."""
    start_with_one_thread()
    code = main()
    if _out_of_memory and "seal" in sys.modules:
        # An allocation that fails inside SEAL leaves a lock taken, so that freeing its objects may wait forever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
