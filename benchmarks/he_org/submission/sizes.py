"""The workload's four sizes, and where the harness keeps the files of each."""

from __future__ import annotations

import os
from pathlib import Path

COUNTS = {"single": 1, "small": 15, "medium": 1_000, "large": 10_000}
NETWORKS = ("784-128-10", "784-128-64-10")
PIXELS = 784


class Size:
    """One size of the workload, by its number 0 to 3; paths are relative to the harness's root."""

    def __init__(self, number: str) -> None:
        if number not in ("0", "1", "2", "3"):
            raise SystemExit(f"the size is {number!r}, wanted 0 (1 image), 1 (15), 2 (1,000) or 3 (10,000)")
        self.name = list(COUNTS)[int(number)]
        self.count = COUNTS[self.name]
        io = Path("io") / self.name
        self.pixels = Path("datasets") / self.name / "intermediate" / "test_pixels.txt"
        self.public, self.secret = io / "public_keys", io / "secret_key"
        self.upload, self.download = io / "ciphertexts_upload", io / "ciphertexts_download"
        self.images, self.logits = io / "images.npy", io / "logits.npy"
        self.report = io / "server_reported_steps.json"
        self.labels = io / "encrypted_model_predictions.txt"
        self.plan = model_folder() / f"{self.name}.json"


def model_folder() -> Path:
    """The folder of the fit and the plans; QUAD4FHE_NETWORK chooses between the networks."""
    return Path(__file__).parent / "model" / os.environ.get("QUAD4FHE_NETWORK", NETWORKS[0])


def empty(folder: Path) -> None:
    """Make the folder, and remove the files of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
