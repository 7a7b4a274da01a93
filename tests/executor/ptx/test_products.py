# SPDX-License-Identifier: MIT
"""wgmma, mma, stmatrix: operands laid out as the PTX ISA draws them, sums against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tilekiln._core.dtypes import NUMPY

from tests.executor.ptx.small import kernel
from tools.executor.ptx.module import Module, reads, writes

NUMBERS = np.random.default_rng(15)
TYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": NUMPY["bf16"],
    "e4m3": NUMPY["fp8"],
    "e5m2": NUMPY["bf8"],
}
OF_WGMMA: dict[str, Any] = TYPES | {"s8": np.int8}
SPANS = {0: 16, 128: 128, 64: 64, 32: 32}
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
LANE = np.arange(128) % 32


def drawn(shape: tuple[int, int], kind: str) -> np.ndarray:
    if kind == "s8":
        return NUMBERS.integers(-128, 128, shape).astype(np.int8)
    return NUMBERS.standard_normal(shape).astype(TYPES[kind])


def exchanged(row: int, chunk: int, swizzle: int) -> int:
    """16-byte chunks of a row of `swizzle` bytes change places by the row: every one, every second, every fourth."""
    return chunk ^ row * swizzle // 128 % (swizzle // 16) if swizzle else chunk


def k_major(matrix: np.ndarray, swizzle: int) -> tuple[np.ndarray, int, int]:
    """Its image in shared memory, and the leading and the stride offsets, of rows with k beside k."""
    data = np.ascontiguousarray(matrix).view(np.uint8)
    rows, length = data.shape
    if not swizzle:  # blocks of 8 rows by 16 bytes, those of one k beside each other
        blocks = data.reshape(rows // 8, 8, length // 16, 16).transpose(2, 0, 1, 3)
        return blocks.ravel(), rows * 16, 128
    assert length == swizzle
    image = np.zeros_like(data)
    for row in range(rows):
        for chunk in range(length // 16):
            to = 16 * exchanged(row, chunk, swizzle)
            image[row, to : to + 16] = data[row, 16 * chunk : 16 * chunk + 16]
    return image.ravel(), 16, 8 * swizzle


def turned(matrix: np.ndarray, swizzle: int) -> tuple[np.ndarray, int, int]:
    """The same of an operand with rows beside rows: `matrix` is (rows, k)."""
    data = np.ascontiguousarray(matrix.T).view(np.uint8)  # (k, bytes of rows)
    depth, length = data.shape
    if not swizzle:
        blocks = data.reshape(depth // 8, 8, length // 16, 16).transpose(0, 2, 1, 3)  # by k, then by rows
        return blocks.ravel(), length // 16 * 128, 128
    image = np.zeros((length // swizzle, depth, swizzle), np.uint8)
    for k in range(depth):
        for chunk in range(length // 16):
            to = 16 * exchanged(k, chunk % (swizzle // 16), swizzle)
            image[chunk * 16 // swizzle, k, to : to + 16] = data[k, 16 * chunk : 16 * chunk + 16]
    return image.ravel(), depth * swizzle, 8 * swizzle


def descriptor(at: int, leading: int, stride: int, swizzle: int) -> int:
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[swizzle] << 62


def multiplied(
    kind: str, columns: int, a: tuple[np.ndarray, int, int] | np.ndarray, b: tuple[np.ndarray, int, int], how: Any
) -> np.ndarray:
    """64 rows by `columns` sums, of images or, for a, of fragments. how: swizzles, transposes, offsets into images."""
    swizzle_a, swizzle_b, turn_a, turn_b, skip_a, skip_b = how
    tile, base = 16384, 1024  # the kernel's shared array begins at 1024, as nothing is before it
    body = "shl.b32 r1, r0, 4; mov.u32 r2, tile; add.s32 r2, r2, r1; cvt.u64.u32 d10, r1;\n"
    images = [(b[0], 0)] if isinstance(a, np.ndarray) else [(b[0], 0), (a[0], tile // 2)]
    for number, (image, at) in enumerate(images):
        for part in range(-(-image.size // 2048)):
            body += (
                f"add.s64 d11, d{number + 1}, d10; ld.global.v4.u32 {{r4, r5, r6, r7}}, [d11+{2048 * part}];\n"
                f"st.shared.v4.u32 [r2+{at + 2048 * part}], {{r4, r5, r6, r7}};\n"
            )
    body += "fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 p0, r0, r0; mov.b64 d13, "
    body += f"{descriptor(base + skip_b, b[1], b[2], swizzle_b)};\n"
    register, sum_type, signs = ("r", "s32", "") if kind == "s8" else ("f", "f32", ", 1, 1")
    named = [f"{register}{40 + k}" for k in range(columns // 2)]
    sums = ", ".join(named)
    depth = 32 // np.dtype(OF_WGMMA[kind]).itemsize
    shape = f"m64n{columns}k{depth}.{sum_type}.{kind}.{kind}"
    if isinstance(a, np.ndarray):
        body += "add.s64 d11, d2, d10; ld.global.v4.u32 {r8, r9, r10, r11}, [d11];\n"
        first, turns = "{r8, r9, r10, r11}", f", {turn_b}"
    else:
        body += f"mov.b64 d12, {descriptor(base + tile // 2 + skip_a, a[1], a[2], swizzle_a)};\n"
        first, turns = "d12", f", {turn_a}, {turn_b}"
    turns = turns if depth == 16 else ""
    body += (
        f"wgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {first}, d13, p0{signs}{turns};\n"
        f"wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        f"mul.wide.u32 d14, r0, {2 * columns}; add.s64 d14, d14, d0;\n"
    )
    body += "".join(f"st.global.{sum_type} [d14+{4 * k}], {one};\n" for k, one in enumerate(named))
    made = np.zeros((128, columns // 2), np.int32 if kind == "s8" else np.float32)

    def padded(image: np.ndarray) -> np.ndarray:
        return np.concatenate([image, np.zeros(-image.size % 2048, np.uint8)])

    second = a if isinstance(a, np.ndarray) else padded(a[0])
    arguments = [writes(made), reads(padded(b[0])), reads(second)]
    Module(kernel(body, 3, shared=tile)).launch("k", (1,), (128,), arguments)
    result = np.zeros((64, columns), made.dtype)
    for k in range(columns // 2):
        rows = np.arange(128) // 32 * 16 + LANE // 4 + 8 * (k // 2 % 2)
        result[rows, k // 4 * 8 + 2 * (LANE % 4) + k % 2] = made[:, k]
    return result


def close(made: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_allclose(made, a.astype(np.float64) @ b.astype(np.float64).T, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", OF_WGMMA)
@pytest.mark.parametrize("swizzle", SPANS)
def test_wgmma_with_k_beside_k(kind: str, swizzle: int) -> None:
    """Both operands in shared memory, the second of the slices of k that a row of the swizzle holds."""
    size = np.dtype(OF_WGMMA[kind]).itemsize
    depth, length = 32 // size, max(32, swizzle) // size
    columns = {0: 8, 32: 16, 64: 24, 128: 32}[swizzle]
    a, b = drawn((64, length), kind), drawn((columns, length), kind)
    step = 1 if length > depth else 0
    skip = 32 * step
    made = multiplied(kind, columns, k_major(a, swizzle), k_major(b, swizzle), (swizzle, swizzle, 0, 0, skip, skip))
    part = slice(step * depth, (step + 1) * depth)
    close(made, a[:, part], b[:, part])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_wgmma_with_rows_beside_rows(kind: str, swizzle: int, which: str) -> None:
    a, b = drawn((64, 16), kind), drawn((64, 16), kind)
    turn_a, turn_b = which != "b", which != "a"
    image_a = turned(a, swizzle) if turn_a else k_major(a, 0)
    image_b = turned(b, swizzle) if turn_b else k_major(b, 0)
    how = (swizzle if turn_a else 0, swizzle if turn_b else 0, int(turn_a), int(turn_b), 0, 0)
    close(multiplied(kind, 64, image_a, image_b, how), a, b)


def fragments(matrix: np.ndarray, per: int) -> np.ndarray:
    """Four words of each of 32 lanes, of 16 rows: a word holds `per` neighbours of k."""
    lane = np.arange(32)
    words = []
    for w in range(4):
        rows = lane // 4 + 8 * (w & 1)
        k = 4 * per * (w >> 1) + per * (lane % 4)
        words.append(np.ascontiguousarray(matrix[rows[:, None], k[:, None] + np.arange(per)]).view(np.uint32)[:, 0])
    return np.stack(words, 1)


@pytest.mark.parametrize("kind", OF_WGMMA)
def test_wgmma_with_a_in_registers(kind: str) -> None:
    per = 4 // np.dtype(OF_WGMMA[kind]).itemsize
    a, b = drawn((64, 8 * per), kind), drawn((16, 8 * per), kind)
    held = np.concatenate([fragments(a[16 * warp : 16 * warp + 16], per) for warp in range(4)])
    close(multiplied(kind, 16, held, k_major(b, 32), (0, 32, 0, 0, 0, 0)), a, b)


@pytest.mark.parametrize("kind", TYPES)
def test_mma(kind: str) -> None:
    """m16n8k16, of bytes m16n8k32."""
    per = 4 // np.dtype(TYPES[kind]).itemsize
    a, b = drawn((16, 8 * per), kind), drawn((8, 8 * per), kind)
    c = NUMBERS.standard_normal((16, 8)).astype(np.float32)
    lane = np.arange(32)
    words_b = fragments(np.concatenate([b, b]), per)[:, [0, 2]]
    at = [(lane // 4 + 8 * (w >> 1), 2 * (lane % 4) + (w & 1)) for w in range(4)]
    body = "shl.b32 r1, r0, 4; cvt.u64.u32 d10, r1; add.s64 d11, d10, d1; ld.global.v4.u32 {r2, r3, r4, r5}, [d11];\n"
    body += "add.s64 d11, d10, d3; ld.global.v4.f32 {f1, f2, f3, f4}, [d11]; shl.b32 r1, r0, 3; cvt.u64.u32 d12, r1;\n"
    body += "add.s64 d11, d12, d2; ld.global.v2.u32 {r6, r7}, [d11];\n"
    body += f"mma.sync.aligned.m16n8k{8 * per}.row.col.f32.{kind}.{kind}.f32 {{f1, f2, f3, f4}}, {{r2, r3, r4, r5}}, "
    body += "{r6, r7}, {f1, f2, f3, f4};\nadd.s64 d11, d10, d0; st.global.v4.f32 [d11], {f1, f2, f3, f4};"
    made = np.zeros((32, 4), np.float32)
    sums = np.stack([c[place] for place in at], 1)
    arguments = [writes(made), reads(fragments(a, per)), reads(words_b), reads(sums)]
    Module(kernel(body, 4)).launch("k", (1,), (32,), arguments)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + c
    np.testing.assert_allclose(made, np.stack([exact[place] for place in at], 1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_is_what_ldmatrix_undoes(count: int, transposed: bool) -> None:
    """Rows of matrix m go where lanes 8 m and on say."""
    matrices = NUMBERS.integers(0, 2**16, (count, 8, 8), np.uint16)
    lane = np.arange(32)
    held = np.zeros((32, 4), np.uint32)
    for m in range(count):
        source = matrices[m].T if transposed else matrices[m]
        held[:, m] = np.ascontiguousarray(source[(lane // 4)[:, None], (2 * (lane % 4))[:, None] + [0, 1]]).view(
            np.uint32
        )[:, 0]
    items = ", ".join(f"r{4 + k}" for k in range(count))
    trans = ".trans" if transposed else ""
    body = "shl.b32 r1, r0, 4; cvt.u64.u32 d10, r1; add.s64 d11, d10, d1; ld.global.v4.u32 {r4, r5, r6, r7}, [d11];\n"
    body += f"and.b32 r2, r0, {8 * count - 1}; shl.b32 r2, r2, 4; mov.u32 r3, tile; add.s32 r3, r3, r2;\n"
    body += f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [r3], {{{items}}};\nbar.warp.sync -1;\n"
    body += f"setp.lt.u32 p0, r0, {8 * count}; @!p0 bra over;\n"
    body += "ld.shared.v4.u32 {r8, r9, r10, r11}, [r3]; add.s64 d11, d10, d0;\n"
    body += "st.global.v4.u32 [d11], {r8, r9, r10, r11}; over:"
    made = np.zeros((count * 8, 8), np.uint16)
    Module(kernel(body, 2, shared=512)).launch("k", (1,), (32,), [writes(made), reads(held)])
    assert np.array_equal(made.reshape(count, 8, 8), matrices)
