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


def launched() -> tuple[bytes, int]:
    """The kernel of the last launch, and its blocks across."""
    name = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(stub, "stub_name"))).value or b""
    return name, ctypes.c_uint.in_dll(stub, "stub_grid").value


def few_words(library: tk.Library, matrix: Callable[..., Device], b: Device, scale: Device) -> None:
    """Packed words of int4, int8 and e4m3; 5 panels, 128 along k, groups of 32."""
    up, norm = {"b_up": b, "b_up_scale": scale}, {"a_norm": Device(128), "b_is_constant": True}
    library.flatmm_quant(matrix(8, 128), b, scale, out=Device(8, 5, 64), **up, **norm)
    assert launched() == (b"words_few_int4", 20)  # 16 columns of each
    for more in (norm, up):
        nine = functools.partial(library.flatmm_quant, matrix(9, 128), b, scale, out=Device(9, 5, 64), **more)
        said = refused(nine, ValueError)
        assert "was given for 9 x 128" in said, said
    two = Device(5, 2, 64, dtype="fp32")
    for kind, shape in (("int8", (5, 32, 64, 4)), ("fp8", (5, 64, 64, 2))):
        of_bytes = Device(*shape, dtype=kind)
        library.flatmm_quant(matrix(300, 128), of_bytes, scale, out=Device(300, 5, 64))
        assert launched()[0] == f"words_few_{kind}".encode()  # 38 times 8 rows
        odd = functools.partial(library.flatmm_quant, matrix(3, 128), of_bytes, two, out=Device(3, 5, 64), group=96)
        said = refused(odd, ValueError)
        assert "and groups of 96, must have" in said, said
