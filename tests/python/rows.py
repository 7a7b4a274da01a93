# SPDX-License-Identifier: MIT
"""Arrays and checks of the tests of operators over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS

from tests.gpu_run import TARGETS

DTYPES = FLOATS
# Rows of no vector, of a part, of several and a part, past L1 in every dtype.
SHAPES = [(0, 8), (1, 1), (3, 1), (1, 7), (2, 64), (5, 67), (3, 257), (7, 4099), (2, 20011)]


def draw(rows: int, columns: int, dtype: np.dtype, *shapes: str) -> tuple[Any, ...]:
    """Arrays of normal numbers: "rows" is (rows, columns), "row" (columns)."""
    random = np.random.default_rng(rows * 31 + columns)
    sizes = {"rows": (rows, columns), "row": columns}
    return tuple(random.standard_normal(sizes[shape]).astype(dtype) for shape in shapes)


def instances(lib: tk.Library, family: str, **axes: str) -> list[int]:
    """Those of one signature that this machine runs, one an ISA, and that of tiles where there is one."""
    found = lib.instances(" ".join([f"family={family}", *(f"{axis}={value}" for axis, value in axes.items())]))
    assert len([one for one in found if one.algorithm["pipeline"] != "amx"]) == TARGETS
    return [one.number for one in found if lib.instance_usable(one.number)]
