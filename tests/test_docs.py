"""What README and docs show is true: every block runs, every output is as shown, every link leads somewhere."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

import quad4fhe
from quad4fhe.cli import main
from quad4fhe.report.drawing import DARK, LIGHT
from quad4fhe.report.page import diagram
from support.serving import free_port

ROOT = Path(__file__).parents[1]
TEXTS = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = sorted([*(ROOT / name for name in TEXTS), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

# What stands in for a command that would set up an environment first.
STANDS_IN = {"make demo": "quad4fhe demo"}
# Shell lines that are not run, and why; every other line of every block is.
NOT_RUN = {
    "git clone": "fetches from the network",
    "npm pack": "fetches from the network",
    "pip install": "would change the environment that the tests run in",
    "python3 -m venv": "the tests have their environment already",
    ". .venv/bin/activate": "the tests have their environment already",
    "quad4fhe reproduce": "wants data sets that can't be redistributed; tests/reproduce run it on small ones",
    "make ": "sets up an environment of its own and may call these tests",
}
# Packages that are not in the extra `test`: blocks that import them run where they are installed.
OPTIONAL = ("torch", "ray", "mlflow")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|\n[^\n\-*\d|>][^\n]*\n|\n)\n {4}\S")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
FIGURE = re.compile(r"\b[0-9a-f]{12,}\b|[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
PORT = "8443"
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Reader:
    """Someone who types every block of a page, in order, in one empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scope: dict[str, object] = {}
        self.port = free_port()
        self.servers: list[subprocess.Popen[bytes]] = []
        tools = folder / ".tools"
        tools.mkdir()
        command = tools / "quad4fhe"
        start = "from quad4fhe.cli import entry_point; entry_point()"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{start}" "$@"\n')
        command.chmod(0o755)
        source = str(Path(quad4fhe.__file__).parents[1])
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, **ALONE, "PATH": path, "PYTHONPATH": source, "COLUMNS": "100"}

    def python(self, text: str) -> str:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(text, "a block of the page", "exec"), self.scope)
        return out.getvalue()

    def shell(self, text: str) -> str:
        for typed, run in STANDS_IN.items():
            text = re.sub(rf"^{typed}\b", run, text, flags=re.MULTILINE)
        lines = text.replace(PORT, str(self.port)).replace("\\\n", " ").splitlines()
        return "".join(self.line(line) for line in lines if not _not_run(line))

    def line(self, line: str) -> str:
        """What a line prints: commands of ours run in this process, which saves their start, and servers beside it."""
        if line.startswith("quad4fhe serve"):
            self.serve(line)
            return ""
        if shlex.split(line, comments=True) == ["quad4fhe", "demo"]:
            return demo(self.folder)
        if line.startswith("quad4fhe "):
            return own_command(line)
        words = ["bash", "-euo", "pipefail", "-c", line]
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, script: str) -> None:
        """Start a server as a reader does in another terminal, on a free port, and wait until it listens."""
        script += f" --port {self.port}"
        log = self.folder / ".tools" / "server.log"
        with log.open("wb") as file:
            words = ["bash", "-c", f"exec {script}"]
            server = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=file, stderr=file)
        self.servers.append(server)
        deadline = time.monotonic() + 300
        while not _listens(self.port):
            assert server.poll() is None, f"{script}\n{log.read_text()}"
            assert time.monotonic() < deadline, "the server did not begin to listen"
            time.sleep(0.2)

    def close(self) -> list[int]:
        """End the servers; their exit codes."""
        for server in self.servers:
            server.terminate()
        return [server.wait(timeout=300) for server in self.servers]


def own_command(line: str) -> str:
    """Run a command of ours as a shell would; what it prints, unless that goes to a file."""
    command, _, file = line.partition(" > ")
    out = io.StringIO()
    with redirect_stdout(out):
        code = main(shlex.split(command, comments=True)[1:])
    assert code == 0, f"{line}\n{out.getvalue()}"
    if not file:
        return out.getvalue()
    Path(file).write_text(out.getvalue(), encoding="utf-8")
    return ""


_demo: list[tuple[str, Path]] = []  # what the demo printed, and where its files are


def demo(folder: Path) -> str:
    """Run the demo here, or copy what it made before: several pages begin with it."""
    if _demo:
        shutil.copytree(_demo[0][1], folder / "demo")
    else:
        _demo.append((own_command("quad4fhe demo"), folder / "demo"))
    return _demo[0][0]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _not_run(line: str) -> bool:
    return any(line.strip().startswith(start) for start in ("#", *NOT_RUN)) or not line.strip()


def _masked(text: str) -> str:
    """Words alone: figures differ from machine to machine, line breaks with the width of the terminal."""
    return " ".join(FIGURE.sub("#", text).split())


def _shows(expected: str, seen: str) -> str | None:
    """The first piece of `expected` that is not in `seen`, in order; a line of three dots stands for anything."""
    rest = _masked(seen)
    for piece in re.split(r"^\.\.\.$", expected, flags=re.MULTILINE):
        wanted = _masked(piece)
        _, found, rest = rest.partition(wanted)
        if wanted and not found:
            return wanted
    return None


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=name)
def test_every_block_of_a_page_runs_and_prints_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "openssl " in page.read_text(encoding="utf-8") and shutil.which("openssl") is None:
        pytest.skip("this page uses openssl, which is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    reader, seen, left_out = Reader(tmp_path), "", set()
    try:
        for block in blocks(page):
            missing = {one for one in OPTIONAL if f"import {one}" in block.text and find_spec(one) is None}
            left_out |= missing
            if missing:
                continue
            if block.language == "python":
                seen = reader.python(block.text)
            elif block.language == "sh":
                seen = reader.shell(block.text)
            elif block.language == "text":
                lost = _shows(block.text, seen)
                assert lost is None, f"the page shows {lost!r}, the program prints {_masked(seen)!r}"
    finally:
        codes = reader.close()
    assert set(codes) <= {0, -signal.SIGTERM}, "a server did not stop in order"
    if left_out:
        pytest.skip(f"all blocks but those that import {', '.join(left_out)}, which is not installed, were run")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a language, or by indentation, would not be run."""
    languages = {"python", "sh", "text", "math", "tree", "ts"}
    languages |= {"console"} if page.name == "first_hour.md" else set()  # tests/test_first_hour.py runs these
    assert {block.language for block in blocks(page)} <= languages
    found = INDENTED.search(FENCE.sub("", page.read_text(encoding="utf-8")))
    assert found is None, f"fence this block: {found[0]!r}"


def test_what_a_page_shows_is_compared_word_by_word() -> None:
    seen = "kept 455 of 455\ncertificate  lossless on the\n calibration set"
    assert _shows("kept 114 of 114\n...\ncalibration set", seen) is None
    assert _shows("lossless on the calibration set, exactly", seen) == "lossless on the calibration set, exactly"
    assert _shows("calibration set\n...\nkept 1 of 1", seen) == "kept # of #"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_local_links_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    made = {"reference/cli.md"}  # made from the program's own help when the site is built
    assert set(missing) <= made


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_runs_and_shows_what_is_stored(notebook: Path, tmp_path: Path) -> None:
    for package in ("nbclient", "ipykernel", "matplotlib", "sklearn"):
        pytest.importorskip(package)
    script = ROOT / "docs" / "notebooks" / "run.py"
    source = str(Path(quad4fhe.__file__).parents[1])
    environment = {**os.environ, **ALONE, "PYTHONPATH": source, "IPYTHONDIR": str(tmp_path)}
    words = [sys.executable, str(script), "--check", notebook.name]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_every_picture_of_a_notebook_has_words_for_those_who_can_not_see_it(notebook: Path) -> None:
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            assert len(cell["metadata"]["alt"]) > 40


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    source = str(Path(quad4fhe.__file__).parents[1])
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": source, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_needs_no_network(site: Path) -> None:
    fetched = re.compile(r"<(?:script|img|iframe|source)[^>]+src=[\"']?https?:|<link[^>]+href=[\"']?https?:")
    styled = re.compile(r"url\([\"']?https?:|@import\s+[\"']?https?:")
    wrong = [str(file) for file in site.rglob("*.html") if fetched.search(file.read_text(encoding="utf-8"))]
    wrong += [str(file) for file in site.rglob("*.css") if styled.search(file.read_text(encoding="utf-8"))]
    assert not wrong
    assert (site / "index.html").exists()


def test_every_picture_of_the_site_is_there(site: Path) -> None:
    shown = re.compile(r'<img[^>]+src="(?!data:|https?:)([^"]+)"')
    for page in site.rglob("*.html"):
        start = site if page.name == "404.html" else page.parent  # a server sends that page for any address
        named = shown.findall(page.read_text(encoding="utf-8"))
        assert [one for one in named if not (start / one.lstrip("/")).exists()] == [], page


DIAGRAMS = sorted((ROOT / "src" / "quad4fhe" / "report" / "diagrams").glob("*.svg"))


@pytest.mark.parametrize("file", DIAGRAMS, ids=lambda file: file.stem)
def test_a_diagram_is_drawn_once_and_speaks_to_those_who_can_not_see_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    title, desc = (root.find(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc"))
    assert title is not None
    assert desc is not None
    assert len(str(desc.text)) > 100
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    assert set(re.findall(r"var\(--(\w+)\)", text)) <= set(LIGHT)  # the report's colours, in both themes
    own = re.findall(r"--(\w+):(#[0-9a-f]{6})", text)
    assert {(name, colour) for name, colour in own} <= {*LIGHT.items(), *DARK.items()}
    assert any(file.name in page.read_text(encoding="utf-8") for page in PAGES)
    assert "<style" not in diagram(file.stem)


def test_there_are_three_diagrams() -> None:
    assert [file.stem for file in DIAGRAMS] == ["plane", "sight", "way"]


def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    drawn = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8").count("```math")
    assert page.count("<math") == drawn > 5


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [one for one in quad4fhe.__all__ if not re.search(rf'<h3 id="quad4fhe[\w.]*\.{one}"', page)] == []
