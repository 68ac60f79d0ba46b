"""The stages before encryption and after decryption, named as the harness calls them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sizes import PIXELS, Size, model_folder


def client_preprocess_input(size: Size) -> None:
    """Read the images, 784 numbers a line, 0 to 1, and take the pixels that the network sees."""
    images = _numbers(size.pixels).reshape(-1, PIXELS)
    if len(images) != size.count:
        raise SystemExit(f"{size.pixels} holds {len(images)} images, wanted {size.count} for size {size.name}")
    np.save(size.images, images[:, np.load(model_folder() / "pixels.npy")])


def client_postprocess(size: Size) -> None:
    """The label of each image, one a line."""
    labels = np.load(size.logits).argmax(axis=1)
    size.labels.write_text("".join(f"{label}\n" for label in labels))


def _numbers(path: Path) -> NDArray[np.float64]:
    """The numbers of a text file; quickly if all are written like 0.123456, as the harness writes them."""
    text = np.fromfile(path, dtype=np.uint8)
    if text.size % 9 == 0:
        columns = text.reshape(-1, 9).T
        whole = np.zeros(columns.shape[1], dtype=np.int32)
        written_so = (columns[1] == ord(".")).all() and (columns[8] <= ord(" ")).all()
        for k in (0, 2, 3, 4, 5, 6, 7):
            digit = columns[k] - np.uint8(ord("0"))  # anything but a digit is above 9
            written_so = written_so and digit.max(initial=0) <= 9
            whole *= 10
            whole += digit
        if written_so:
            return whole / 1e6
    return np.fromfile(path, sep=" ")
