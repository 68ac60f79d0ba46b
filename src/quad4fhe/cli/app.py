"""The frame of the command line: options that commands share, how results are printed, how errors end.

Exit codes: 0 success, 1 the answer is no (a certificate that fails, a target not reached), 2 bad input, 130 Ctrl-C.
How a manual page looks is left to `manual`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import quad4fhe
from quad4fhe._files import one_line, shown, write_atomically
from quad4fhe._terminal import Reporter
from quad4fhe._threads import start_with_one_thread
from quad4fhe.cli.manual import WIDTH, Manual
from quad4fhe.errors import CertificateError, FitError, Quad4FHEError, TargetNotReachedError

app = Manual(
    name="quad4fhe",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
_INTERRUPTED = 130  # what shells expect of a command ended by Ctrl-C
_UNREAD = 141  # ... and of one whose output nobody reads to the end, as in `quad4fhe ... | head`
_OF_THE_SYSTEM = {getattr(errno, name) for name in ("EACCES", "EPERM", "ENOENT", "EISDIR", "ENOTDIR", "EROFS", "ELOOP")}
_OF_THE_SYSTEM |= {errno.ENAMETOOLONG, errno.EMFILE}
_ANSWER_IS_NO = (CertificateError, FitError, TargetNotReachedError)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model: .npz, .safetensors, .onnx, .pt or .pth.", show_default=False)
]
CalibFile = Annotated[
    Path,
    typer.Argument(metavar="CALIB", help="Calibration data: .npz (X), .npy, .csv or .parquet.", show_default=False),
]
FitFile = Annotated[Path, typer.Argument(metavar="FIT", help="A fit file made by `quad4fhe fit`.", show_default=False)]


ROOT_EPILOG = """\b
A first run:
  quad4fhe demo

\b
From a model to an encrypted prediction:
  quad4fhe fit model.onnx calib.npz -o fit.safetensors
  quad4fhe verify fit.safetensors calib.npz
  quad4fhe plan fit.safetensors --calib calib.npz
  quad4fhe predict fit.safetensors test.npz --encrypted

Every command has a page of its own, `quad4fhe COMMAND --help`, takes --json, and exits 0 on success, 1 when the answer
is no, 2 on bad input, 130 on Ctrl-C. NO_COLOR=1 turns colour off; `--install-completion` lets the shell complete
commands and options."""


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


@contextmanager
def at_work() -> Iterator[Reporter]:
    """Progress of work that an engine may share out: Ray prints on standard output, which is for the result alone."""
    with Reporter() as progress, redirect_stdout(sys.stderr):
        yield progress


def print_table(title: str, lines: list[tuple[str, str]]) -> None:
    """Print (name, value) lines under a title."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(name, value)
    console = Console(highlight=False)
    console.print(table)
    console.print()


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all, or say in one line why not."""
    write_atomically(path, text.encode())


def say(text: str) -> None:
    """Print a sentence."""
    Console(highlight=False, soft_wrap=True).print(text, markup=False)


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error a user can cause is one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    json = "--json" in words
    try:
        return _run(words, json)
    except OSError as error:
        return _of_the_system(error, json)


def _run(words: list[str], json: bool) -> int:
    try:
        if words == ["--version"]:  # Typer itself would load pydantic first, to read the option
            typer.echo(_version())
            return 0
        code = app(args=words, prog_name="quad4fhe", standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Quad4FHEError as error:
        return _fail(str(error), 1 if isinstance(error, _ANSWER_IS_NO) else 2, json)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED, json)
    except typer.Abort as error:  # a question that was not answered
        if isinstance(error.__context__, KeyboardInterrupt):
            return _fail("interrupted", _INTERRUPTED, json)
        return _fail("a question got no answer: answer it, or give the file that the command's --help names", 2, json)
    except MemoryError as error:
        return _fail(f"not enough memory ({one_line(error)}); use fewer samples, or a larger machine", 2, json)
    except SystemExit as error:  # Typer and Rich end so when a pipe breaks
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _unread()
    except OSError:
        raise
    except Exception as error:  # passed on below unless it is Typer's
        # Typer reports what it could not parse with its own classes, whose package depends on its version.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        message, context = show(), getattr(error, "ctx", None)
        page = getattr(context, "command_path", "quad4fhe")
        return _fail(f"{message} (see {page} --help)", 2, json) if message else 2


def _of_the_system(error: OSError, json: bool) -> int:
    if error.errno == errno.EPIPE:
        return _unread()
    if error.errno == errno.ENOSPC:
        _discard_output()
        return _fail(f"the output could not be written: {error.strerror}", 2, json=False)
    if error.errno in _OF_THE_SYSTEM and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}; check the path and its permissions", 2, json)
    raise error


def _unread() -> int:
    """Nobody reads on, as after `| head`: that is no mistake, so nothing is said."""
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
    """The command line with its exit code; `quad4fhe_start` calls it."""
    start_with_one_thread()
    sys.exit(main())
