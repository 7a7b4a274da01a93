# SPDX-License-Identifier: MIT
"""Few rows that are normalised and gated, beside the stub of the driver: a case of host_products.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilekiln as tk

from tests.cuda.host_side import Device, counts, last, refused

NORMED_AND_GATED = 256 | 512 | 1024
"""Features, as kernels/gemm/gemm/cuda/params.h has them: constant weights, rows that are rounded, a second b."""


def few_rows(library: tk.Library, matrix: Callable[..., Device], row: Callable[[], dict[str, int]]) -> None:
    """The kernel of few rows takes them; where it does not, the product is refused."""
    w = matrix(2048, 3072, strides=(1, 2048))
    up: dict[str, Any] = {"b_up": w}
    norm: dict[str, Any] = {"a_norm": Device(2048), "norm_rounding": "transformers", "b_is_constant": True}
    library.gemm(matrix(8, 2048), w, out=matrix(8, 3072), **up, **norm)
    assert (last(), row()["features"] & NORMED_AND_GATED) == ("gemm_few_rows", NORMED_AND_GATED)
    turned = matrix(2048, 3072, strides=(3072, 1))
    cases: list[tuple[int, Any, dict[str, Any], str]] = [
        (9, w, norm, "a_norm: was given for 9 x 2048 by 3072 columns"),
        (9, w, up, "b_up: was given for 9 x 2048"),
        (8, w, {"c": matrix(8, 3072), **up}, "c: was given, must be null with b_up"),
        (8, turned, up, "b_up: was given, must be null but for row-major a and out"),
        (8, w, {"b_up": turned}, "b_up: was row-major"),
    ]
    for rows, b, more, text in cases:
        given = {"out": matrix(rows, 3072), "error": ValueError, **more}
        refused(f"...{text}...", library.gemm, matrix(rows, 2048), b, **given)


def few_words(library: tk.Library, matrix: Callable[..., Device], b: Device, scale: Device) -> None:
    """Packed words of int4, int8 and e4m3; 5 panels, 128 along k, groups of 32."""
    up, norm = {"b_up": b, "b_up_scale": scale}, {"a_norm": Device(128), "b_is_constant": True}
    library.flatmm_quant(matrix(8, 128), b, scale, out=Device(8, 5, 64), **up, **norm)
    assert (last(), *counts("grid")) == ("words_few_int4", 20)  # 16 columns of each
    for more in (norm, up):
        given = {"out": Device(9, 5, 64), "error": ValueError, **more}
        refused("...was given for 9 x 128...", library.flatmm_quant, matrix(9, 128), b, scale, **given)
    two = Device(5, 2, 64, dtype="fp32")
    for kind, shape in (("int8", (5, 32, 64, 4)), ("fp8", (5, 64, 64, 2))):
        of_bytes = Device(*shape, dtype=kind)
        library.flatmm_quant(matrix(300, 128), of_bytes, scale, out=Device(300, 5, 64))
        assert last() == f"words_few_{kind}"  # 38 times 8 rows
        odd = {"out": Device(3, 5, 64), "group": 96, "error": ValueError}
        refused("...and groups of 96, must have...", library.flatmm_quant, matrix(3, 128), of_bytes, two, **odd)
