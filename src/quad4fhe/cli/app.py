"""The frame of the command line: options that commands share, how results are printed, how errors end.

Exit codes: 0 success, 1 the answer is no (a certificate that fails, a target not reached), 2 bad input.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import quad4fhe
from quad4fhe.errors import CertificateError, FitError, InputError, Quad4FHEError, TargetNotReachedError

app = typer.Typer(
    name="quad4fhe",
    help="Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_INTERRUPTED = 130  # what shells expect of a command ended by Ctrl-C
_ANSWER_IS_NO = (CertificateError, FitError, TargetNotReachedError)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
ModelFile = Annotated[
    Path, typer.Argument(help="The model: .npz, .safetensors, .onnx, .pt or .pth.", show_default=False)
]
CalibFile = Annotated[
    Path, typer.Argument(help="Calibration data: .npz (X), .npy, .csv or .parquet.", show_default=False)
]
FitFile = Annotated[Path, typer.Argument(help="A fit file made by `quad4fhe fit`.", show_default=False)]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Run a trained one-hidden-layer ReLU classifier on encrypted data, keeping its decisions."""
    if version:
        typer.echo(f"quad4fhe {quad4fhe.__version__}")
        raise typer.Exit


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


def check_folder(path: Path) -> None:
    """Refuse, before any work is done, a file in a folder that does not exist."""
    if not path.parent.is_dir():
        raise InputError(f"can't write {path}: {path.parent} does not exist")


def write_text(path: Path, text: str) -> None:
    """Write a text file, or say in one line why not."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror or error}") from None


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
    try:
        code = app(args=words, prog_name="quad4fhe", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except Quad4FHEError as error:
        return _fail(str(error), 1 if isinstance(error, _ANSWER_IS_NO) else 2, "--json" in words)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED, "--json" in words)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - so that the interpreter's last flush does not fail again
        return _fail(f"the output could not be written: {error.strerror}", 2, json=False)
    except Exception as error:  # passed on below unless it is Typer's
        # Typer reports what it could not parse with its own classes, whose package depends on its version.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        message = show()
        return _fail(f"{message} (see quad4fhe --help)", 2, "--json" in words) if message else 2


def _fail(message: str, code: int, json: bool) -> int:
    if json:
        print_json({"error": message, "exit_code": code})
    sys.stderr.write(f"quad4fhe: {' '.join(message.split())}\n")
    return code


def entry_point() -> None:
    """What the installed command runs."""
    sys.exit(main())
