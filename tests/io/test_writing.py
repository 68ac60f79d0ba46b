"""Files are written whole or not at all, and locks and digests do what they say."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

from quad4fhe import InputError
from quad4fhe.io.files import file_sha256, locked, open_own, open_regular, own_folder, write_atomically, writing


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path, durable: bool) -> None:
    place = tmp_path / "file"
    with writing(place, durable=durable) as file:
        file.write(b"whole")
        assert not place.exists()
    assert place.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["file"]


def test_an_interrupted_write_changes_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def interrupted() -> None:
        with writing(place) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert place.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_must_be_new_does_not_replace_one_that_appears_meanwhile(tmp_path: Path) -> None:
    place = tmp_path / "file"

    def late() -> None:
        with writing(place, overwrite=False) as file:
            file.write(b"new")
            place.write_bytes(b"first")

    with pytest.raises(FileExistsError):
        late()
    assert place.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_follow_the_umask_unless_the_file_is_private(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        for name, private in (("shared", False), ("private", True)):
            with writing(tmp_path / name, private=private) as file:
                file.write(b"x")
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"shared": 0o640, "private": 0o600}


def test_a_link_is_replaced_by_writing_and_followed_by_write_atomically(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"through")
    assert link.is_symlink()
    assert target.read_bytes() == b"through"
    with writing(link) as file:
        file.write(b"instead")
    assert not link.is_symlink()
    assert target.read_bytes() == b"through"


def test_links_pipes_and_second_names_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder link").symlink_to(tmp_path)
    os.link(tmp_path / "file", tmp_path / "second")
    os.mkfifo(tmp_path / "pipe")
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"content").hexdigest()
    for name, opening in (("link", open_regular), ("pipe", open_regular), ("link", open_own), ("second", open_own)):
        with pytest.raises(OSError, match=r"symbolic link|not a regular file|second name"):
            opening(tmp_path / name)
    with pytest.raises(OSError, match="symbolic link"):
        own_folder(tmp_path / "folder link")


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InputError, match="another run is writing"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_folder_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't write .*No such file or directory; nothing was changed"):
        write_atomically(tmp_path / "no" / "file", b"")
