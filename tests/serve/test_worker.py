"""A worker checks the file of every upload, and ends when it runs out of memory between two tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from quad4fhe import Fit
from quad4fhe.he import container
from quad4fhe.he.session import Client
from quad4fhe.layouts.planner import plan
from quad4fhe.serve.worker import ModelFiles, Setup, Task, Worker


def test_uploaded_keys_are_read_also_where_the_worker_holds_that_name(fitted: tuple[Path, Fit], tmp_path: Path) -> None:
    """The server may have evicted the first upload; whatever it keeps of the second one, other workers will read."""
    file, fit = fitted
    made = plan(fit, samples=1, layout="packed", precision="fast")
    worker = Worker(Setup([ModelFiles(str(file), [made.to_dict()])], 0))
    client = Client(made)
    good = b"".join(container.write_keys(made, client.key_id, client.evaluation_keys()))
    (tmp_path / "good").write_bytes(good)
    (tmp_path / "bad").write_bytes(good[:200] + bytes(len(good) - 232) + good[-32:])

    def upload(name: str) -> str | None:
        return worker.do(Task(made.sha256.hex(), str(tmp_path / name), client.key_id.hex())).error

    assert upload("good") is None
    assert upload("good") is None
    assert upload("bad") is not None
    assert upload("good") is None
    (tmp_path / "request").write_bytes(b"".join(container.write_request(made, client.encrypt(fit.box[0][None])[0])))
    (tmp_path / "reply").touch()
    paths = [str(tmp_path / name) for name in ("gone", "request", "reply")]
    task = Task(made.sha256.hex(), paths[0], client.key_id.hex(), *paths[1:])
    assert worker.do(task).error is None  # the keys in memory answer: their file is not read for every request


OUT_OF_MEMORY = """
import json, sys, time
from quad4fhe.he.session import Server
from quad4fhe.serve.worker import ModelFiles, Setup, Task, Worker

def work_ahead(server):
    raise MemoryError

Server.work_ahead = work_ahead
plan = json.loads(sys.argv[2])
worker = Worker(Setup([ModelFiles(sys.argv[1], [plan])], 0))
worker.do(Task(sys.argv[3]))
time.sleep(60)
"""


def test_a_worker_that_runs_out_of_memory_between_tasks_ends(fitted: tuple[Path, Fit]) -> None:
    file, fit = fitted
    made = plan(fit, samples=1, layout="packed", precision="fast")
    arguments = [str(file), json.dumps(made.to_dict()), made.sha256.hex()]
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY, *arguments], capture_output=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, b"")
