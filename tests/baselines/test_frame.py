"""The comparison as other tools read it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from quad4fhe import InputError, compare
from support.cases import PAIRS, PAIRS_X


def test_a_comparison_is_a_frame_where_pandas_is_there() -> None:
    found = compare(PAIRS.mlp, PAIRS_X, PAIRS_X)
    if find_spec("pandas") is None:
        with pytest.raises(InputError, match="pip install pandas"):
            found.to_frame()
        pytest.skip("pandas is not installed: the message was tested, the frame was not")
    frame = found.to_frame()
    assert list(frame.index) == [row.name for row in found.rows]
