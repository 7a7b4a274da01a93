# SPDX-License-Identifier: MIT
"""tilekiln_cuda_decoder_step of a library, by ctypes: a decode step through the layers of a decoder as one launch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

NAME = "tilekiln_cuda_decoder_step"
OPERATOR = "fmha_fwd_appendkv"
"""Libraries with this operator for cuda-sm90a may hold the kernel."""
NO_KERNEL = 2


class Call(ctypes.Structure):
    """Call of kernels/backends/cuda/decoder/params.h."""

    _fields_ = (
        ("size", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("stream", "layers", "x", "y", "cos", "sin", "lengths", "workspace",
                                                 "head", "last_norm", "logits", "tokens")),
        *((name, ctypes.c_int64) for name in ("workspace_bytes", "cos_row", "sin_row", "cache_row", "cache_head")),
        *((name, ctypes.c_int32) for name in (
            "device", "dtype", "count", "rows", "hidden", "inner", "heads", "kv_heads", "hdim", "rounds", "vocabulary",
            "padding")),
        ("scale", ctypes.c_float), ("epsilon", ctypes.c_float),
    )  # fmt: skip


class Function(NamedTuple):
    step: Callable[[Any], int]
    """Takes a reference of a Call; a status."""
    words: Callable[[], bytes]
    """Of the last status that was not 0."""

    def __call__(self, call: Call) -> tuple[int, str]:
        status = self.step(ctypes.byref(call))
        return status, self.words().decode() if status else ""


@functools.cache
def function_of(path: str) -> Function | None:
    """The function of the library at `path`; None: it has none."""
    library = ctypes.CDLL(path)
    if not hasattr(library, NAME):
        return None
    library.tilekiln_last_error.restype = ctypes.c_char_p
    return Function(getattr(library, NAME), library.tilekiln_last_error)
