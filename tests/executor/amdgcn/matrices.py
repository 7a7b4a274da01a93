# SPDX-License-Identifier: MIT
"""Matrix products by published lane formulas: which element of A, B and D each lane's register holds.

MFMA: AMD's "CDNA 3 ISA" reference, chapter on matrix arithmetic, and AMD's matrix instruction calculator. WMMA:
"RDNA 3 ISA" and "RDNA 4 ISA" references. gfx950's doubled depths continue MFMA's rule; AMD's calculator does not know
them.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

from tests.executor.amdgcn.assembled import GFX9, INPUTS, Snippet, wait

FORMATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8}
OCP = {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2}
FNUZ = {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz}


@dataclasses.dataclass(frozen=True)
class Product:
    """D = A B + C: size x depth by depth x size. a, b: element formats."""

    name: str
    size: int
    depth: int
    a: str
    b: str
    on: tuple[str, ...]


def _mfma(shape: str, formats: str, on: tuple[str, ...], name: str = "") -> Product:
    size, _, depth = (int(part) for part in shape.split("x"))
    a, _, b = formats.partition("_")
    result = "i32" if a == "i8" else "f32"
    return Product(name or f"v_mfma_{result}_{shape}_{formats}", size, depth, a, b or a, on)


CDNA3, CDNA4 = ("gfx942", "gfx950"), ("gfx950",)
PRODUCTS = [
    *(_mfma(shape, "f16", ("gfx90a",), f"v_mfma_f32_{shape}f16") for shape in ("32x32x8", "16x16x16")),
    *(_mfma(shape, "bf16", ("gfx90a",), f"v_mfma_f32_{shape}bf16_1k") for shape in ("32x32x8", "16x16x16")),
    *(_mfma(shape, "f32", ("gfx90a",), f"v_mfma_f32_{shape}f32") for shape in ("32x32x2", "16x16x4")),
    *(_mfma(shape, "i8", ("gfx90a",), f"v_mfma_i32_{shape}i8") for shape in ("32x32x8", "16x16x16")),
    *(_mfma(shape, kind, CDNA3) for shape in ("32x32x8", "16x16x16") for kind in ("f16", "bf16")),
    *(_mfma(shape, "f32", CDNA3) for shape in ("32x32x2", "16x16x4")),
    *(_mfma(shape, "i8", CDNA3) for shape in ("32x32x16", "16x16x32")),
    *(_mfma(shape, kind, CDNA4) for shape in ("32x32x16", "16x16x32") for kind in ("f16", "bf16")),
    *(_mfma(shape, "i8", CDNA4) for shape in ("32x32x32", "16x16x64")),
    *(_mfma(shape, kind, CDNA3) for shape in ("32x32x16", "16x16x32") for kind in ("fp8_fp8", "bf8_bf8")),
    *(_mfma("32x32x16", kind, CDNA3) for kind in ("fp8_bf8", "bf8_fp8")),
    *(Product(f"v_wmma_f32_16x16x16_{kind}", 16, 16, kind, kind, ("gfx1100", "gfx1201")) for kind in ("f16", "bf16")),
    Product("v_wmma_i32_16x16x16_iu8", 16, 16, "i8", "i8", ("gfx1100", "gfx1201")),
    Product("v_wmma_f32_16x16x16_fp8_fp8", 16, 16, "fp8", "fp8", ("gfx1201",)),
]


def dtype(architecture: str, name: str) -> type:
    return (FNUZ if architecture == "gfx942" else OCP).get(name) or FORMATS[name]


def depths(product: Product, architecture: str, lane: int) -> list[int]:
    """k of each element of A, and of B, that a lane holds."""
    group = lane // product.size
    if architecture == "gfx1100":  # both halves of a wave hold all of it
        return list(range(16))
    held = product.depth * product.size // (64 if architecture in GFX9 else 32)
    if architecture == "gfx1201" and product.a in ("f16", "bf16"):
        return [8 * (e // 4) + 4 * group + e % 4 for e in range(held)]
    return [group * held + e for e in range(held)]


def rows(product: Product, architecture: str, lane: int) -> list[int]:
    """The row of D in each register of a lane; the column is the lane's number in its group."""
    group = lane // product.size
    if architecture == "gfx1100":
        return [2 * r + group for r in range(8)]
    if architecture == "gfx1201":
        return [8 * group + r for r in range(8)]
    if product.size == 32:
        return [8 * (r // 4) + 4 * group + r % 4 for r in range(16)]
    return [4 * group + r for r in range(4)]


class Problem:
    """Random A, B and C, as matrices and as the registers of a wave, uint32 (registers, 64)."""

    def __init__(self, product: Product, architecture: str, number: int) -> None:
        random = np.random.default_rng(number)
        lanes = 64 if architecture in GFX9 else 32
        kinds = [dtype(architecture, name) for name in (product.a, product.b)]
        shapes = [(product.size, product.depth), (product.depth, product.size)]
        integer = product.a == "i8"
        self.a, self.b = (
            random.integers(-128, 128, shape).astype(np.int8) if integer else random.standard_normal(shape).astype(kind)
            for shape, kind in zip(shapes, kinds, strict=True)
        )
        self.c: np.ndarray = (
            random.integers(-(2**20), 2**20, (product.size, product.size)).astype(np.int32)
            if integer
            else random.standard_normal((product.size, product.size)).astype(np.float32)
        )
        of_a = [self.a[lane % product.size, depths(product, architecture, lane)] for lane in range(lanes)]
        of_b = [self.b[depths(product, architecture, lane), lane % product.size] for lane in range(lanes)]
        of_c = [self.c[rows(product, architecture, lane), lane % product.size] for lane in range(lanes)]
        self.registers = [_registers(np.stack(held), lanes) for held in (of_a, of_b, of_c)]
        self.d: np.ndarray = self.a.astype(np.float64) @ self.b.astype(np.float64) + self.c
        self.d_of_lanes = np.stack(
            [self.d[rows(product, architecture, lane), lane % product.size] for lane in range(lanes)], 1
        )


def _registers(held: np.ndarray, lanes: int) -> np.ndarray:
    words = np.ascontiguousarray(held).view(np.uint32).T
    return np.concatenate([words, np.zeros((len(words), 64 - lanes), np.uint32)], 1)


def chosen(architecture: str) -> list[tuple[Product, Problem]]:
    found = [product for product in PRODUCTS if architecture in product.on]
    return [(product, Problem(product, architecture, number)) for number, product in enumerate(found)]


def snippet(product: Product, problem: Problem, architecture: str) -> Snippet:
    """A in v40, B in v48, C in v60 and up; D comes to v20 and up."""
    load = "global_load_dword" if architecture in GFX9 else "global_load_b32"
    lines = []
    for first, words in zip((40, 48, 60), problem.registers, strict=True):
        for register in range(len(words)):
            lines += [f"{load} v{first + register}, v0, s[4:5]", "s_add_u32 s4, s4, 256", "s_addc_u32 s5, s5, 0"]
    sizes = [len(words) for words in problem.registers]
    a, b, c, d = (
        f"v{at}" if size == 1 else f"v[{at}:{at + size - 1}]"
        for at, size in ((40, sizes[0]), (48, sizes[1]), (60, sizes[2]), (20, sizes[2]))
    )
    signs = " neg_lo:[1,1,0]" if product.name.endswith("iu8") else ""
    lines += [wait(architecture), f"{product.name} {d}, {a}, {b}, {c}{signs}", "s_nop 15", "s_nop 15"]
    return Snippet("\n".join(lines), sizes[2])


def inputs(cases: list[tuple[Product, Problem]]) -> np.ndarray:
    words = [words for _, problem in cases for words in problem.registers]
    return np.ascontiguousarray(np.concatenate([*words, np.zeros((INPUTS, 64), np.uint32)]))
