# SPDX-License-Identifier: MIT
"""Few rows that are normalised and gated, beside the stub of the driver: a case of host_products.py."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import tilekiln as tk

from tests.cuda.host_side import Device, refused, stub

NORMED_AND_GATED = 256 | 512 | 1024
"""Features, as kernels/gemm/gemm/cuda/params.h has them: constant weights, rows that are rounded, a second b."""


def few_rows(library: tk.Library, matrix: Callable[..., Device], row: Callable[[], dict[str, int]]) -> None:
    """The kernel of few rows takes them; where it does not, the product is refused."""
    w = matrix(2048, 3072, strides=(1, 2048))
    up: dict[str, Any] = {"b_up": w}
    norm: dict[str, Any] = {"a_norm": Device(2048), "norm_rounding": "transformers", "b_is_constant": True}
    library.gemm(matrix(8, 2048), w, out=matrix(8, 3072), **up, **norm)
    name = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(stub, "stub_name"))).value
    assert (name, row()["features"] & NORMED_AND_GATED) == (b"gemm_few_rows", NORMED_AND_GATED)
    turned = matrix(2048, 3072, strides=(3072, 1))
    cases: list[tuple[int, Any, dict[str, Any], str]] = [
        (9, w, norm, "a_norm: was given for 9 x 2048 by 3072 columns"),
        (9, w, up, "b_up: was given for 9 x 2048"),
        (8, w, {"c": matrix(8, 3072), **up}, "c: was given, must be null with b_up"),
        (8, turned, up, "b_up: was given, must be null but for row-major a and out"),
        (8, w, {"b_up": turned}, "b_up: was row-major"),
    ]
    for rows, b, more, text in cases:
        call = functools.partial(library.gemm, matrix(rows, 2048), b, out=matrix(rows, 3072), **more)
        said = refused(call, ValueError)
        assert text in said, said
