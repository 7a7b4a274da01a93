# SPDX-License-Identifier: MIT
"""Dtypes of arrays: the word of each in declarations, its name in NumPy and frameworks, and DLPack's number of it.

>>> from tilekiln import dtypes
>>> dtypes.NUMPY["bf16"]
dtype(bfloat16)
>>> dtypes.WORDS["float8_e4m3fn"]
'fp8'

`NUMPY` and `TORCH` are made when they are asked for: importing this imports neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    NUMPY: dict[str, np.dtype[Any]]
    FLOATS: dict[str, np.dtype[Any]]
    TORCH: dict[str, Any]


class Dtype(NamedTuple):
    """A dtype of the C ABI."""

    name: str  # NumPy's, ml_dtypes', PyTorch's and JAX's
    code: int  # DLPack's
    bits: int


TABLE = {
    "fp32": Dtype("float32", 2, 32),
    "fp16": Dtype("float16", 2, 16),
    "bf16": Dtype("bfloat16", 4, 16),
    "fp8": Dtype("float8_e4m3fn", 10, 8),
    "bf8": Dtype("float8_e5m2", 12, 8),
    "fp8fnuz": Dtype("float8_e4m3fnuz", 11, 8),
    "bf8fnuz": Dtype("float8_e5m2fnuz", 13, 8),
    "int8": Dtype("int8", 0, 8),
    "int16": Dtype("int16", 0, 16),
    "int32": Dtype("int32", 0, 32),
    "int64": Dtype("int64", 0, 64),
    "uint8": Dtype("uint8", 1, 8),
    "uint16": Dtype("uint16", 1, 16),
    "uint32": Dtype("uint32", 1, 32),
    "uint64": Dtype("uint64", 1, 64),
    "fp64": Dtype("float64", 2, 64),
    "bool": Dtype("bool", 6, 8),
}
"""By the word of operator.yaml."""
NAMES = {word: one.name for word, one in TABLE.items()}
"""NumPy's name by word."""
WORDS = {name: word for word, name in NAMES.items()}
"""Word by NumPy's name."""
CODES = {one.name: (one.code, one.bits) for one in TABLE.values()}
"""DLPack's code and bits by NumPy's name."""


def _numpy() -> dict[str, Any]:
    import ml_dtypes
    import numpy as np

    return {word: np.dtype(getattr(ml_dtypes, name, name)) for word, name in NAMES.items()}


def _torch() -> dict[str, Any]:
    import torch

    return {word: getattr(torch, name) for word, name in NAMES.items()}


def _floats() -> dict[str, Any]:
    made = _numpy()
    return {word: made[word] for word in ("fp32", "fp16", "bf16")}


_MADE = {"NUMPY": _numpy, "FLOATS": _floats, "TORCH": _torch}
"""NumPy's dtype by word; those that rows and products of every target have; PyTorch's dtype by word."""


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _MADE[name]())
