"""Arrays put where worker processes can read them: one file for all of them, so that no worker needs a copy.

Decides where that file lies and that it goes when it is done with. For workers on this machine it has no name where
the system allows that (Linux), so that it is gone however the driver ends; which workers those are, `shards` says.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from quad4fhe._rows import ArrayRows, FileRows, Rows, StackedRows
from quad4fhe.errors import InputError

_BLOCK = 2**22  # bytes made contiguous at once


class Staged:
    """`rows` as workers can have them: those in memory are in the file, others are as they were."""

    def __init__(self, rows: Rows, *, nameless: bool) -> None:
        self._file: IO[bytes] | None = None
        self._named: Path | None = None
        self._end = 0
        self._nameless = nameless and sys.platform == "linux" and Path("/proc/self/fd").is_dir()
        try:
            self.rows = self._staged(rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._named is not None:
            self._named.unlink(missing_ok=True)
            self._named = None

    def _staged(self, rows: Rows) -> Rows:
        if isinstance(rows, StackedRows):
            return StackedRows([self._staged(part) for part in rows.parts])
        if not isinstance(rows, ArrayRows):
            return rows
        folder = "TMPDIR"
        try:
            folder = tempfile.gettempdir()
            return self._written(rows)
        except OSError as error:
            raise InputError(
                f"the samples can't be put where workers can read them, {folder} ({error.strerror or error}); "
                "set TMPDIR to a folder with room, or give a .npy file"
            ) from None

    def _written(self, rows: ArrayRows) -> FileRows:
        path, file = self._place()
        array, offset = rows.array, self._end
        dtype = array.dtype.newbyteorder("=")
        step = max(1, _BLOCK // max(1, dtype.itemsize * rows.shape[1]))
        for start in range(0, rows.shape[0], step):
            block = np.ascontiguousarray(array[start : start + step], dtype=dtype)
            file.write(memoryview(block.reshape(-1).view(np.uint8).data))
        file.flush()
        self._end += array.size * dtype.itemsize
        return FileRows(path, dtype, rows.shape, offset)

    def _place(self) -> tuple[Path, IO[Any]]:
        if self._file is None and self._nameless:
            self._file = tempfile.TemporaryFile(prefix="quad4fhe-")  # noqa: SIM115 - open as long as workers read it
        elif self._file is None:
            handle, name = tempfile.mkstemp(prefix="quad4fhe-", suffix=".rows")
            self._named, self._file = Path(name), os.fdopen(handle, "wb")
        # Opened by this path, a file without a name is a file of the worker's own, with its own position.
        return self._named or Path(f"/proc/{os.getpid()}/fd/{self._file.fileno()}"), self._file
