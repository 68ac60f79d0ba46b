"""A passphrase comes only from a private file of its owner, and core dumps hold no key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quad4fhe import InputError
from quad4fhe.he.secrecy import private_line

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pass"
    path.write_text("correct horse\nsecond line\n")
    path.chmod(0o600)
    return path


def test_the_first_line_of_a_private_file_is_read(file: Path) -> None:
    assert private_line(file, "passphrase") == "correct horse"
    file.chmod(0o400)
    assert private_line(file, "passphrase") == "correct horse"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_or_write_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(InputError, match=f"others may read or change .*{mode:04o}.*chmod 600"):
        private_line(file, "passphrase")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_file_in_a_folder_that_others_can_write_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    try:
        with pytest.raises(InputError, match="others may replace files"):
            private_line(file, "passphrase")
        file.parent.chmod(0o1777)  # as /tmp: others can't replace it
        assert private_line(file, "passphrase") == "correct horse"
    finally:
        file.parent.chmod(0o700)


def test_a_folder_above_that_others_can_write_counts_too(tmp_path: Path) -> None:
    inner = tmp_path / "open" / "inner"
    inner.mkdir(parents=True, mode=0o700)
    path = inner / "pass"
    path.write_text("word")
    path.chmod(0o600)
    inner.parent.chmod(0o777)
    with pytest.raises(InputError, match=r"others may replace files in .*open "):
        private_line(path, "passphrase")


def test_links_folders_and_odd_contents_are_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(InputError, match="is a link"):
        private_line(link, "passphrase")
    with pytest.raises(InputError, match=r"is not a file|Is a directory"):
        private_line(tmp_path, "passphrase")
    with pytest.raises(InputError, match="No such file"):
        private_line(tmp_path / "missing", "passphrase")
    for content in (b"", b"\n", b" \nword", b"x" * 5000, b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="pass"):
            private_line(file, "passphrase")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_pipe_of_the_shell_is_fine() -> None:
    read, write = os.pipe()
    os.write(write, b"from a pipe\n")
    os.close(write)
    try:
        assert private_line(Path(f"/dev/fd/{read}"), "passphrase") == "from a pipe"
    finally:
        os.close(read)


OPEN_A_KEY = """
import ctypes, resource, sys
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from quad4fhe.planning.chains import chain
from quad4fhe.he.seal import Context, SecretKey
context = Context(chain(2048, (18, 18)))
before = resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
key = SecretKey(context)
print(*before, resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), hard)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_core_dumps_are_off_while_a_key_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_A_KEY], capture_output=True, text=True, check=True)
    before, dumpable, after, dumpable_after, hard = map(int, done.stdout.split())
    assert (before, dumpable) == (hard, 1)
    assert (after, dumpable_after) == (0, 0)
