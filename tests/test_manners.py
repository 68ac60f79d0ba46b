"""What every command owes its user, checked on all of them: those that are added later, too."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import quad4fhe
from quad4fhe import MLP, fit
from quad4fhe.cli import app as frame
from quad4fhe.cli import main
from quad4fhe.cli.manual import Page
from quad4fhe.doctor import Examination, Finding

COMMANDS: dict[str, Any] = typer.main.get_command(frame.app).commands  # type: ignore[attr-defined]
RUN = [sys.executable, "-m", "quad4fhe"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def flags(command: Any) -> set[str]:
    return {flag for param in command.params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")}


def arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


# --- help -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_manual_page_has_what_a_reader_looks_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"Usage: quad4fhe {name}" in text
    assert f"  quad4fhe {name}" in text.split("Example")[1], "its docstring needs a paragraph that starts with Example:"
    assert "Exit codes:\n  0    success\n  1    " in text
    assert "\x1b" not in text
    assert not re.search(r"<[a-z]|list\[", text), "a type of Python is no help to a reader; give the option a metavar"
    assert run(capsys, name, "-h")[1] == text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json_and_describes_its_options(name: str) -> None:
    command = COMMANDS[name]
    assert "--json" in flags(command)
    assert not [param.name for param in command.params if not param.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name: str) -> None:
    """Every option of an example exists, and it has as many arguments as the command asks for."""
    command = COMMANDS[name]
    assert command.page.examples
    for line in command.page.examples:
        words = shlex.split(line.split(" > ")[0])
        assert words[:2] == ["quad4fhe", name]
        command.make_context(name, words[2:])  # raises what the parser would tell the user


def test_a_docstring_becomes_a_page() -> None:
    page = Page.of("Do it.\n\nAt length.\n\nExample: quad4fhe it a\nquad4fhe it b\n\nExit 1: it can't\nbe done")
    assert page.text == "Do it.\n\nAt length."
    assert page.examples == ("quad4fhe it a", "quad4fhe it b")
    assert page.no == "it can't be done"


@pytest.mark.parametrize("name", [*COMMANDS, ""])
def test_no_line_of_a_page_is_wider_than_the_terminal(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, *name.split(), "--help")[1]
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_front_page_lists_every_command_in_one_whole_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, "--help")[1]
    listed = text.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert not [line for line in listed if not line.endswith(".") or line.endswith("...")]
    assert "quad4fhe demo" in text


def test_there_is_one_module_per_command() -> None:
    shared = {"__init__", "again", "app", "manual", "options", "terminal"}
    modules = {path.stem for path in Path(frame.__file__).parent.glob("*.py")}
    assert modules - shared == set(COMMANDS) - {"bench", "compare", "reproduce"}  # those of another package


def test_a_value_that_is_not_offered_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fit", "model.npz", "calib.npz", "--family", "largest")
    assert code == 2
    assert err.startswith("quad4fhe: --family is 'largest', wanted one of: ")
    assert err.count("\n") == 1


# --- mistakes ---------------------------------------------------------------------------------------------------

GOOD = {"MODEL": "model.npz", "CALIB": "calib.npz", "FIT": "fit.safetensors"}
GOOD |= {"DATA": "test.npz", "URL": "http://127.0.0.1:9", "IN": "requests", "OUT": "replies"}
FILES = {"MODEL", "CALIB", "FIT", "DATA"}
NOT_WALKED = {"reproduce": "its arguments are names of tables"}
WALK = [
    (name, param.metavar)
    for name, command in COMMANDS.items()
    for param in arguments(command)
    if param.metavar in FILES and name not in NOT_WALKED
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    W1, b1, W2 = rng.normal(size=(5, 3)), rng.normal(size=5), rng.normal(size=(1, 5))
    X = rng.normal(size=(40, 3))
    b2 = -np.median(np.maximum(X @ W1.T + b1, 0) @ W2.T, axis=0)
    np.savez("model.npz", W1=W1, b1=b1, W2=W2, b2=b2)
    np.savez("calib.npz", X=X[:8])
    np.savez("test.npz", X=X)
    np.savez("wide.npz", X=np.ones((3, 4)))
    fit(MLP(W1, b1, W2, b2), X[:8], family="shared").save("fit.safetensors")
    Path("requests").mkdir()
    for suffix in ("npz", "safetensors"):
        Path(f"empty.{suffix}").touch()
        Path(f"text.{suffix}").write_text("this is not the file you are looking for\n")
        Path(f"folder.{suffix}").mkdir()
    return tmp_path


def test_every_command_that_reads_files_is_walked_through() -> None:
    unknown = {name: {p.metavar for p in arguments(COMMANDS[name])} - set(GOOD) for name in COMMANDS}
    assert {name for name, metavars in unknown.items() if metavars} == set(NOT_WALKED), "give it a metavar, or a reason"


def words_of(name: str, **instead: str) -> list[str]:
    words = [name, *(instead.get(param.metavar, GOOD[param.metavar]) for param in arguments(COMMANDS[name]))]
    required = [p for p in COMMANDS[name].params if p.param_type_name == "option" and p.required]
    return words + [word for param in required for word in (param.opts[0], "test.npz")]


@pytest.mark.parametrize("kind", ["nowhere", "folder", "empty", "text"])
@pytest.mark.parametrize(("name", "metavar"), WALK)
def test_a_wrong_file_is_one_line(
    name: str, metavar: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = f"{kind}.{GOOD[metavar].split('.')[1]}"
    before = sorted(os.listdir())
    code, out, err = run(capsys, *words_of(name, **{metavar: bad}), "--json")
    assert code == 2
    assert bad in err
    assert err.count("\n") == 1
    assert json.loads(out)["exit_code"] == 2
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("name", [name for name, metavar in WALK if metavar in ("CALIB", "DATA") and name != "query"])
def test_samples_of_another_width_are_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words_of(name, CALIB="wide.npz", DATA="wide.npz"))
    assert code == 2
    assert "4 columns" in err
    assert err.count("\n") == 1


OUTPUTS = [
    (name, param.opts[0])
    for name, command in COMMANDS.items()
    for param in command.params
    if param.name in ("out", "csv") and all(argument.metavar in GOOD for argument in arguments(command))
]


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_an_output_that_cannot_be_written_is_found_before_the_work(
    name: str, option: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = {"fit": "safetensors", "export": "npz", "report": "html"}.get(name, "csv")
    taken = Path(f"taken.{suffix}")
    taken.mkdir()
    locked = Path("locked")
    locked.mkdir()
    real = os.access  # the tests may run as root, who may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and real(path, mode))
    for bad in (taken, Path("nowhere") / f"out.{suffix}", locked / f"out.{suffix}"):
        code, _, err = run(capsys, *words_of(name), option, bad)
        assert code == 2
        assert str(bad) in err
        assert err.count("\n") == 1


def test_a_certificate_that_is_none_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")
    words = ["serve", "fit.safetensors", "--port", 0, "--layout", "batch", "--precision", "fast"]
    code, _, err = run(capsys, *words, "--tls-cert", "text.npz", "--tls-key", "text.npz")
    assert code == 2
    assert "give both as PEM" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "message", "says"),
    [
        ("fit", "try family='auto'", "try --family auto"),
        ("fit", 'use regime="auto".', "use --regime auto."),
        ("fit", "cost=2 is a choice for degree='auto'", "--cost 2 is a choice for --degree auto"),
        (
            "fit",
            "add holdout=0.1, or rows of their own, and fresh=True",
            "add --holdout 0.1, or rows of their own, and --fresh",
        ),
        ("plan", "take layout='batch', or scale the features", "take --layout batch, or scale the features"),
        ("fit", "it clips its output; refit it with clip=False", "it clips its output; refit it with clip=False"),
        ("plan", "N = 4096, a=1", "N = 4096, a=1"),
    ],
)
def test_hints_are_spelled_as_options_of_the_command(command: str, message: str, says: str) -> None:
    assert frame.as_options(message, command) == says


def test_a_target_that_is_missed_hints_at_an_option(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez("hard.npz", W1=rng.normal(size=(9, 3)), b1=np.zeros(9), W2=rng.normal(size=(6, 9)), b2=np.zeros(6))
    code, _, err = run(capsys, "fit", "hard.npz", "test.npz", "--target-agreement", 1, "--family", "shared")
    assert code == 1
    assert "--family auto" in err
    assert "family=" not in err


# --- endings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("Unable to allocate 7 TiB"), 2, "not enough memory (Unable to allocate 7 TiB)"),
        (PermissionError(errno.EACCES, "Permission denied", "own.file"), 2, "own.file: Permission denied"),
        (typer.Abort(), 2, "no passphrase was entered"),
    ],
)
def test_what_ends_a_command_from_outside_is_one_line(
    error: BaseException, code: int, says: str, folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("quad4fhe.fit", broken)
    found, _, err = run(capsys, "fit", "model.npz", "calib.npz")
    assert found == code
    assert says in err
    assert err.strip().count("\n") == 0


OUT_OF_MEMORY = """
import resource, seal
import quad4fhe.cli.app as cli

def command(*_, **__):
    parameters = seal.EncryptionParameters(seal.scheme_type.ckks)
    parameters.set_poly_modulus_degree(8192)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(8192, [60, 40, 40, 60]))
    context = seal.SEALContext(parameters, True, seal.sec_level_type.tc128)
    encryptor = seal.Encryptor(context, seal.KeyGenerator(context).create_public_key())
    factor, evaluator, held = encryptor.encrypt_zero(), seal.Evaluator(context), []
    limit = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData:")) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (limit + 2**24, resource.RLIM_INFINITY))
    while True:
        held.append(evaluator.multiply(factor, factor))

cli.app = command
cli.entry_point()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_DATA")
def test_a_command_that_runs_out_of_memory_inside_seal_ends() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, "plan"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("quad4fhe: not enough memory")


START = [sys.executable, "-c", "from quad4fhe_start import entry_point; entry_point()"]


def pretending(folder: Path, code: str) -> dict[str, str]:
    """The environment in which a package of this content is taken for quad4fhe."""
    (folder / "quad4fhe").mkdir()
    (folder / "quad4fhe" / "__init__.py").write_text(code)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(quad4fhe.__file__).parents[1])])}


def test_ctrl_c_is_one_line_even_while_libraries_are_imported(tmp_path: Path) -> None:
    slow = pretending(tmp_path, "import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(START, env=slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "quad4fhe: interrupted\n")


def test_ctrl_c_is_one_line_while_a_command_imports_its_libraries(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    source = str(Path(quad4fhe.__file__).parents[1])
    slow = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    words = [*START, "fit", "model.npz", "calib.npz"]
    with subprocess.Popen(
        words, env=slow, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "quad4fhe: interrupted\n")


def test_an_installation_that_cannot_start_says_what_to_do(tmp_path: Path) -> None:
    broken = pretending(tmp_path, "import no_such_library\n")
    done = subprocess.run(START, env=broken, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("quad4fhe: can't start: No module named 'no_such_library'; try: pip install")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    ["--help", "fit --frob --json", "predict fit.safetensors test.npz", "predict fit.safetensors test.npz --json"],
)
def test_a_pipe_that_nobody_reads_is_no_mistake(words: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*RUN, *words.split()], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_one_line(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system: no disk that is full on demand")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RUN, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == "quad4fhe: the output could not be written: No space left on device\n"


# --- terminal and shell -----------------------------------------------------------------------------------------


def on_a_terminal(*words: str, **variables: str) -> str:
    """What a command writes when its output is a terminal."""
    ours, theirs = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    process = subprocess.Popen([*RUN, *words], stdout=theirs, env=plain | {"TERM": "xterm-256color"} | variables)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(timeout=300) == 0
    return shown.decode()


def test_bold_and_colour_are_for_terminals(folder: Path) -> None:
    words = ("predict", "fit.safetensors", "test.npz")
    piped = subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=300, check=True).stdout
    assert "\x1b[" not in piped
    assert "\x1b[1m" in on_a_terminal(*words)


def test_no_color_is_respected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = Examination([Finding(part="machine", name="one", status="ok", says="works")])
    monkeypatch.setattr("quad4fhe.doctor.examine", lambda progress: found)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = re.compile(r"\x1b\[([0-9]+;)*(3[0-8]|9[0-7])[;m]")
    assert coloured.search(run(capsys, "doctor")[1])
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(run(capsys, "doctor")[1])


def completing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("shell", "words"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete --command")])
def test_the_shell_gets_a_completion_script(shell: str, words: str, capsys: Any, monkeypatch: Any) -> None:
    script = completing(capsys, monkeypatch, _QUAD4FHE_COMPLETE=f"source_{shell}")
    assert words in script
    assert "_QUAD4FHE_COMPLETE" in script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("quad4fhe ex", ["export"]), ("quad4fhe fit --fam", ["--family"]), ("quad4fhe fit --family u", ["unitwise"])],
)
def test_bash_completes_commands_options_and_values(
    typed: str, offered: list[str], capsys: Any, monkeypatch: Any
) -> None:
    place = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    assert completing(capsys, monkeypatch, _QUAD4FHE_COMPLETE="complete_bash", **place).split() == offered


def test_bash_takes_the_script_and_completes(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """The script itself, in a real bash: what it offers for `quad4fhe veri`."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this system")
    script = completing(capsys, monkeypatch, _QUAD4FHE_COMPLETE="source_bash")
    command = tmp_path / "quad4fhe"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quad4fhe "$@"\n')
    command.chmod(0o755)
    words = "COMP_WORDS=(quad4fhe veri); COMP_CWORD=1"
    typed = f"{script}\n{words}; _quad4fhe_completion '{command}'; echo \"${{COMPREPLY[@]}}\""
    monkeypatch.delenv("_QUAD4FHE_COMPLETE")
    assert subprocess.run([bash, "-c", typed], capture_output=True, text=True).stdout.strip() == "verify"


def test_python_m_is_the_command() -> None:
    done = subprocess.run([*RUN, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("quad4fhe 0.")
