# SPDX-License-Identifier: MIT
"""ld, st, atom and red, cvta, and conversions of fp8, against NumPy and ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tilekiln._core.dtypes import NUMPY

from tests.executor.ptx.small import kernel, lanes
from tools.executor.ptx.module import Module, reads, updates, writes

NUMBERS = np.random.default_rng(16)
U = np.uint32

ATOMS: dict[str, tuple[Any, Any]] = {
    "add.u32": (U, np.add),
    "add.s32": (np.int32, np.add),
    "max.s32": (np.int32, np.maximum),
    "max.u32": (U, np.maximum),
    "min.s32": (np.int32, np.minimum),
    "min.u32": (U, np.minimum),
    "or.b32": (U, np.bitwise_or),
    "and.b32": (U, np.bitwise_and),
}


@pytest.mark.parametrize("gives", [True, False])
@pytest.mark.parametrize("opcode", ATOMS)
def test_atomic_operations_of_one_word(opcode: str, gives: bool) -> None:
    """Of 32 lanes at one address; each is given what stood there before, in some order."""
    kind, formula = ATOMS[opcode]
    values = NUMBERS.integers(0, 2**32, 32, np.uint64).astype(U).view(kind)
    word, old = NUMBERS.integers(0, 2**32, 1, np.uint64).astype(U).view(kind), np.zeros(32, kind)
    body = "mul.wide.u32 d8, r0, 4; add.s64 d9, d1, d8; add.s64 d10, d2, d8; ld.global.u32 r4, [d9];\n"
    body += f"atom.global.{opcode} r5, [d0], r4; " if gives else f"red.global.{opcode} [d0], r4; mov.u32 r5, 0; "
    body += "st.global.u32 [d10], r5;"
    made = word.copy()
    Module(kernel(body, 3)).launch("k", (1,), (32,), [updates(made), reads(values), writes(old)])
    with np.errstate(over="ignore"):
        steps = [word[0]]
        for value in values:
            steps.append(formula(steps[-1], value, dtype=kind))
    assert made[0] == steps[-1]
    if gives:
        assert np.array_equal(old, np.array(steps[:-1], kind))


def test_counting_and_exchanging() -> None:
    """inc wraps behind its operand; exch leaves one lane's value and gives all others."""
    ticket, word = np.zeros(32, U), np.zeros(1, U)
    body = "mul.wide.u32 d8, r0, 4; add.s64 d9, d1, d8; atom.global.inc.u32 r5, [d0], 19; st.global.u32 [d9], r5;"
    Module(kernel(body, 2)).launch("k", (1,), (32,), [updates(word), writes(ticket)])
    assert np.array_equal(np.sort(ticket), np.sort(np.arange(32) % 20))
    assert word[0] == 12
    word[0] = 99
    body = "mul.wide.u32 d8, r0, 4; add.s64 d9, d1, d8; atom.global.exch.b32 r5, [d0], r0; st.global.u32 [d9], r5;"
    Module(kernel(body, 2)).launch("k", (1,), (32,), [updates(word), writes(ticket)])
    assert sorted([*ticket, *word]) == sorted([99, *range(32)])


def test_a_prefetch_reads_nothing() -> None:
    """Neither what nobody wrote, nor what lies outside of every allocation."""
    word, body = np.zeros(1, U), "prefetch.global.L1 [d0]; prefetch.global.L2 [d0+4096]; st.global.u32 [d0], 7;"
    Module(kernel(body, 1)).launch("k", (1,), (1,), [writes(word)])
    assert word[0] == 7


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_sums_of_vectors(parts: int) -> None:
    values, sums = NUMBERS.standard_normal((32, parts)).astype(np.float32), np.zeros((4, parts), np.float32)
    vector = {1: "", 2: ".v2", 4: ".v4"}[parts]
    item = "f1" if parts == 1 else "{" + ", ".join(f"f{k + 1}" for k in range(parts)) + "}"
    body = (
        f"mul.wide.u32 d8, r0, {4 * parts}; add.s64 d9, d1, d8; and.b32 r1, r0, 3; mul.wide.u32 d10, r1, {4 * parts};\n"
    )
    body += f"add.s64 d10, d10, d0; ld.global{vector}.f32 {item}, [d9]; red.global.add{vector}.f32 [d10], {item};"
    Module(kernel(body, 2)).launch("k", (1,), (32,), [updates(sums), reads(values)])
    np.testing.assert_allclose(sums, values.reshape(8, 4, parts).sum(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("space", ["shared", "generic"])
@pytest.mark.parametrize(
    ("width", "item", "bytes_"),
    [
        ("u8", "r5", 1), ("u16", "h5", 2), ("b32", "r5", 4), ("u64", "d15", 8), ("v2.u16", "{h5, h6}", 4),
        ("v2.b32", "{r5, r6}", 8), ("v4.f32", "{f1, f2, f3, f4}", 16), ("v2.u64", "{d15, d16}", 16),
    ],
)  # fmt: skip
def test_words_through_shared_memory(space: str, width: str, item: str, bytes_: int) -> None:
    """Also by addresses that name no state space."""
    data, made = NUMBERS.integers(0, 256, (32, bytes_), np.uint8), np.zeros((32, bytes_), np.uint8)
    body = (
        f"mul.lo.u32 r2, r0, {bytes_}; cvt.u64.u32 d6, r2; add.s64 d7, d1, d6; add.s64 d8, d0, d6; mov.u32 r1, tile;\n"
    )
    body += "add.s32 r3, r1, r2; cvt.u64.u32 d9, r3; cvta.shared.u64 d10, d9; cvta.to.shared.u64 d11, d10;\n"
    body += f"ld.global.{width} {item}, [d7];\n"
    if space == "shared":
        body += f"st.shared.{width} [r3], {item}; ld.shared.{width} {item}, [d11]; st.global.{width} [d8], {item};"
    else:
        body += f"st.{width} [d10], {item}; ld.{width} {item}, [d10]; st.{width} [d8], {item};"
    Module(kernel(body, 2, shared=512)).launch("k", (1,), (32,), [writes(made), reads(data)])
    assert np.array_equal(made, data)


@pytest.mark.parametrize("width", ["s8", "s16"])
def test_loads_extend_the_sign(width: str) -> None:
    kind = {"s8": np.int8, "s16": np.int16}[width]
    data = NUMBERS.integers(-128, 128, 32).astype(kind)
    body = f"mul.wide.u32 d8, r0, {data.itemsize}; add.s64 d9, d1, d8; ld.global.{width} r5, [d9];\n"
    body += "mul.wide.u32 d8, r0, 4; add.s64 d9, d0, d8; st.global.u32 [d9], r5;"
    made = np.zeros(32, np.int32)
    Module(kernel(body, 2)).launch("k", (1,), (32,), [writes(made), reads(data)])
    assert np.array_equal(made, data.astype(np.int32))


FP8 = {"e4m3x2": (NUMPY["fp8"], 448.0), "e5m2x2": (NUMPY["bf8"], 57344.0)}


@pytest.mark.parametrize("kind", FP8)
def test_every_byte_of_fp8(kind: str) -> None:
    """To fp16 and back from fp32; NaN is one of them."""
    dtype, _ = FP8[kind]
    for start in range(0, 256, 64):
        pairs = np.arange(start, start + 64, dtype=np.uint8)
        wide = lanes(f"cvt.rn.f16x2.{kind}", "rh", pairs.view(np.uint16), result=U).view(np.float16)
        with np.errstate(invalid="ignore"):
            expected = pairs.view(dtype).astype(np.float16)
        assert np.array_equal(wide, expected, equal_nan=True)


@pytest.mark.parametrize("kind", FP8)
def test_rounding_to_fp8(kind: str) -> None:
    """Ties, subnormals and what is too large, of both halves."""
    dtype, most = FP8[kind]
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    every = np.sort(every[np.isfinite(every)])
    middles = (every[1:] + every[:-1]) / 2
    values = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))])
    values = np.concatenate([values, [most * 1.1, -most * 1.1, np.inf, -np.inf, 1e-9, -0.0]]).astype(np.float32)
    values = np.concatenate([values, NUMBERS.standard_normal(-values.size % 32).astype(np.float32)])
    for part in values.reshape(-1, 32):
        made = lanes(f"cvt.rn.satfinite.{kind}.f32", "hff", part, part[::-1].copy(), result=np.uint16)
        expected = np.clip(part, -most, most).astype(dtype).view(np.uint8)
        assert np.array_equal(made.view(np.uint8).reshape(32, 2)[:, 1], expected)
        assert np.array_equal(made.view(np.uint8).reshape(32, 2)[:, 0], expected[::-1])
