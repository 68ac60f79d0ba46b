from __future__ import annotations

from pathlib import Path

import pytest

from quad4fhe import Fit
from support.serving import small_fit


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fit]:
    file = tmp_path_factory.mktemp("fits") / "fit.safetensors"
    made = small_fit(4, 8, 3, seed=1)
    made.save(file)
    return file, made
