"""Build the release and try it: `make release`.

Wheels and source archives of quad4fhe and quad4fhe-reproduce go to `dist/`. Each is built twice, and both must be
equal to the last byte. twine and check-wheel-contents look at them. The wheel must hold no compiled code, because its
name says that it runs everywhere. Then an empty environment outside the clone installs the wheel, runs the demo and
asks a server a question.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o")
_WORDS = dict(os.environ)


def run(*words: str | Path, cwd: Path = ROOT, **settings: str) -> str:
    """Run a command that must succeed; return what it printed."""
    environment = {name: value for name, value in _WORDS.items() if name != "PYTHONPATH"} | settings
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> list[Path]:
    """Wheel and source archive of both packages, with the date of the last commit as the date of every file."""
    date = run("git", "log", "-1", "--format=%ct").strip()
    for package in (ROOT, ROOT / "reproduce"):
        run(sys.executable, "-m", "build", "--outdir", folder, package, SOURCE_DATE_EPOCH=date)
    return sorted(folder.iterdir())


def digest(file: Path) -> str:
    """The SHA-256 of a file in hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check(files: list[Path]) -> None:
    """Look at the archives: what twine asks for, what a wheel should hold, and no compiled code."""
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    wheels = [file for file in files if file.suffix == ".whl"]
    # W009: two packages at the top are meant; quad4fhe_start answers --help without loading the library.
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", "W009", *wheels)
    for wheel in wheels:
        if not wheel.name.endswith("-py3-none-any.whl"):
            sys.exit(f"{wheel.name} is for one system, wanted py3-none-any")
        names = zipfile.ZipFile(wheel).namelist()
        if compiled := [name for name in names if name.endswith(COMPILED)]:
            sys.exit(f"{wheel.name} holds compiled code: {', '.join(compiled)}")


def try_out(wheel: Path, folder: Path) -> None:
    """Install the wheel into an empty environment and use it as a stranger would, far from the clone."""
    venv.create(folder / "env", with_pip=True)
    tools = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    run(tools / "python", "-m", "pip", "install", "--quiet", f"{wheel}[demo,serve]", cwd=folder)
    where = run(tools / "python", "-c", "import quad4fhe; print(quad4fhe.__file__)", cwd=folder).strip()
    if not Path(where).is_relative_to(folder):
        sys.exit(f"the environment loads {where}, wanted the installed wheel")
    run(tools / "quad4fhe", "doctor", cwd=folder)
    run(tools / "quad4fhe", "demo", cwd=folder)
    if not (folder / "demo" / "report.html").exists():
        sys.exit("the demo wrote no report")
    ask(tools / "quad4fhe", folder)


def ask(command: Path, folder: Path) -> None:
    """Serve the demo's fit from the wheel, the page included, and ask it."""
    run(command, "fit", "demo/model.npz", "demo/calib.npz", cwd=folder)
    words = [command, "serve", "fit.safetensors", "--port", "0", "--page"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([str(word) for word in words], cwd=folder, stdout=log, stderr=log)
    try:
        address = None
        for _ in range(600):
            address = re.search(r"https?://\S+:\d+", (folder / "log").read_text())
            if address or server.poll() is not None:
                break
            time.sleep(0.1)
        if not address:
            sys.exit(f"the server did not start:\n{(folder / 'log').read_text()}")
        run(command, "query", address[0], "demo/test.npz", "--clip", "-o", "answers.csv", cwd=folder)
    finally:
        server.terminate()
        server.wait(30)
    if len((folder / "answers.csv").read_text().splitlines()) < 2:
        sys.exit("the server answered nothing")


def main() -> None:
    """Build, compare, check, try."""
    if run("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit("there are changes that are not committed; commit them, because a release is made of commits")
    shutil.rmtree(DIST, ignore_errors=True)
    files = build(DIST)
    with tempfile.TemporaryDirectory() as other:
        for again in build(Path(other)):
            if digest(again) != digest(DIST / again.name):
                sys.exit(f"{again.name} came out differently the second time")
    check(files)
    (wheel,) = DIST.glob("quad4fhe-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        try_out(wheel, Path(folder).resolve())
    (DIST / "SHA256SUMS").write_text("".join(f"{digest(file)}  {file.name}\n" for file in files))
    print(f"built twice, checked, installed and asked: {', '.join(file.name for file in files)}")


if __name__ == "__main__":
    main()
