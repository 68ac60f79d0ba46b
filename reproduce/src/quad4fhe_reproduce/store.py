"""The folder of finished runs: one JSON file each, named by the hash of its inputs, written whole or not at all.

Decides where things lie under --out and when a file counts as a finished run. A damaged file counts as none, so the
run is done again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from quad4fhe.errors import InputError
from quad4fhe.io.files import locked, open_npz, read_npz, write_atomically, writing
from quad4fhe.mlp import MLP
from quad4fhe_reproduce.records import VERSION, Record, Task


@dataclass(frozen=True)
class Store:
    """Runs under `out`/runs, trained models under `out`/cache."""

    out: Path

    def make(self) -> None:
        """Make the folders, or say in one line why not."""
        try:
            for folder in (self.runs, self.cache):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"can't make the folder {self.out}: {error.strerror or error}; choose --out") from None

    @property
    def runs(self) -> Path:
        """The finished runs."""
        return self.out / "runs"

    @property
    def cache(self) -> Path:
        """Trained models, which can be made again at any time."""
        return self.out / "cache"

    def path(self, task: Task, key: str) -> Path:
        """The file of one run: readable, and unique by its hash."""
        return self.runs / f"{task.name}-{task.kind}-{task.width}-{task.seed}-{key[:12]}.json"

    def read(self, task: Task, key: str) -> Record | None:
        """The finished run, or None if it is not there or not whole."""
        record = read_record(self.path(task, key))
        return record if record is not None and record.key == key and record.task == task else None

    def write(self, record: Record) -> None:
        """Add a finished run."""
        write_atomically(self.path(record.task, record.key), msgspec.json.encode(record) + b"\n")

    def records(self) -> list[Record]:
        """Every whole run of this version, in the order of their file names; others are left alone."""
        records = [read_record(path) for path in sorted(self.runs.glob("*.json"))]
        return [record for record in records if record is not None and record.version == VERSION]

    def read_model(self, key: str) -> tuple[MLP, int] | None:
        """A trained model and its epochs, or None; a damaged file counts as none."""
        path = self.cache / f"{key}.npz"
        if not path.is_file():
            return None
        try:
            with open_npz(path, "it is made again") as archive:
                arrays = [read_npz(archive, name) for name in ("W1", "b1", "W2", "b2", "epochs")]
        except (InputError, OSError):
            return None
        return MLP(*arrays[:4]), int(arrays[4])

    def write_model(self, key: str, mlp: MLP, epochs: int) -> None:
        """Keep a trained model; failing to is no failure of the run."""
        with suppress(InputError, OSError), writing(self.cache / f"{key}.npz", durable=False) as file:
            np.savez(file, W1=mlp.W1, b1=mlp.b1, W2=mlp.W2, b2=mlp.b2, epochs=np.int64(epochs))

    def write_failure(self, task: Task, traceback: str) -> None:
        """Keep what went wrong with a run, for whoever mends it."""
        folder = self.out / "failed"
        try:
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"{task.name}-{task.kind}-{task.width}-{task.seed}.txt", traceback.encode())
        except (InputError, OSError):
            pass  # the failure itself is reported by the command

    def alone(self) -> AbstractContextManager[None]:
        """Lock the folder, so that two commands do not do the same runs."""
        return locked(self.out)


def read_record(path: Path) -> Record | None:
    """The run in a file, or None if the file is missing, damaged or of another shape."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None
