# SPDX-License-Identifier: MIT
"""Copies into and out of shared memory and what waits for them: boxes, bulk, cp.async, phases, against NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.executor.ptx.small import kernel
from tools.executor.ptx.module import Module, library, reads, updates, writes

NUMBERS = np.random.default_rng(15)
INIT = (
    "setp.eq.u32 p0, r0, 0; mov.u32 r1, tile; @p0 mbarrier.init.shared::cta.b64 [tile], {}; "
    "@p0 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
)
WAIT = "again{0}: mbarrier.try_wait.parity.shared::cta.b64 p1, [tile], {1}; @p1 bra done{0}; bra again{0}; done{0}:\n"
EXPECT = "@p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile], {};\n"


def tensor_map(
    address: int, array: np.ndarray, box: tuple[int, ...], swizzle: int, every: tuple[int, ...] = ()
) -> bytes:
    """Of a packed array whose last dimension is the map's first; swizzle as CUtensorMapSwizzle; every: its steps."""
    rank, kind = array.ndim, {1: 0, 2: 1, 4: 2}[array.itemsize]
    made = (ctypes.c_uint8 * 192)()
    at = (ctypes.addressof(made) + 63) // 64 * 64

    def of(values: tuple[int, ...], word: type) -> ctypes.Array:
        return (word * len(values))(*values)

    failed = library().ptx_tensor_map(
        ctypes.c_void_p(at), kind, rank, ctypes.c_uint64(address), of(array.shape[::-1], ctypes.c_uint64),
        of(array.strides[-2::-1], ctypes.c_uint64), of(box[::-1], ctypes.c_uint32),
        of((every or (1,) * rank)[::-1], ctypes.c_uint32), 0, swizzle, 0, 0,
    )  # fmt: skip
    assert not failed
    return ctypes.string_at(at, 128)


def boxed(
    array: np.ndarray, box: tuple[int, ...], at: tuple[int, ...], swizzle: int, every: tuple[int, ...] = ()
) -> np.ndarray:
    """The bytes of a box that a tensor copy brings, as they lie in shared memory."""
    address = library().ptx_allocate(array.nbytes)
    assert library().ptx_copy(address, array.ctypes.data, array.nbytes) == 0
    steps = (*every[:-1], 1) if every else (1,) * len(box)
    count = int(np.prod([-(-b // e) for b, e in zip(box, steps, strict=True)])) * array.itemsize
    body = INIT.format(1) + "mov.b64 d5, k_param_1; add.s32 r2, r1, 1024;\n"
    body += "".join(f"mov.u32 r{10 + k}, {value & 0xFFFFFFFF};\n" for k, value in enumerate(at[::-1]))
    places = ", ".join(f"r{10 + k}" for k in range(array.ndim))
    body += EXPECT.format(count)
    body += (
        f"@p0 cp.async.bulk.tensor.{array.ndim}d.shared::cluster.global.mbarrier::complete_tx::bytes [r2], "
        f"[d5, {{{places}}}], [tile];\n" + WAIT.format(0, 0) + "shl.b32 r3, r0, 4; add.s32 r2, r2, r3;\n"
        "cvt.u64.u32 d6, r3; add.s64 d6, d6, d0;\n"
    )
    body += "".join(
        f"ld.shared.v4.u32 {{r4, r5, r6, r7}}, [r2+{512 * k}]; st.global.v4.u32 [d6+{512 * k}], {{r4, r5, r6, r7}};\n"
        for k in range(count // 512)
    )
    text = kernel(body, 2, shared=1024 + count).replace(".param .u64 k_param_1", ".param .align 128 .b8 k_param_1[128]")
    made = np.zeros(count, np.uint8)
    try:
        given = [writes(made), tensor_map(address, array, box, swizzle, every)]
        Module(text).launch("k", (1,), (32,), given, seed=3)
    finally:
        library().ptx_release(address)
    return made


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "box", "at"),
    [
        ((40, 64), (16, 16), (0, 0)),
        ((40, 64), (16, 16), (35, 56)),
        ((40, 64), (16, 16), (-3, -8)),
        ((5, 9, 24), (2, 8, 16), (4, 5, 16)),
        ((5, 9, 24), (2, 8, 16), (-1, -7, -16)),
        ((3, 2, 5, 32), (1, 2, 8, 16), (1, 1, -2, 24)),
        ((2, 3, 2, 5, 32), (2, 1, 2, 4, 16), (1, 2, 0, 3, 0)),
        ((2, 3, 2, 5, 32), (2, 1, 2, 4, 16), (2, 0, 0, 0, 0)),
    ],
)
def test_boxes_of_tensors(shape: tuple[int, ...], box: tuple[int, ...], at: tuple[int, ...], swizzle: int) -> None:
    """Elements outside of the tensor are 0; rows of a box lie behind each other, their chunks exchanged."""
    span = (0, 32, 64, 128)[swizzle]
    box = (*box[:-1], span // 2 if span else box[-1])
    array = NUMBERS.integers(1, 2**16, shape, np.uint16)
    expected = np.zeros(box, np.uint16)
    places = np.stack(np.meshgrid(*map(np.arange, box), indexing="ij"), -1)
    there = places + np.array(at)
    inside = np.all((there >= 0) & (there < np.array(shape)), -1)
    expected[inside] = array[tuple(there[inside].T)]
    lines = np.ascontiguousarray(expected).view(np.uint8).reshape(-1, box[-1] * 2)
    image = np.zeros_like(lines)
    for row, line in enumerate(lines):
        for chunk in range(len(line) // 16):
            to = chunk ^ (row * span // 128 % (span // 16)) if span else chunk
            image[row, 16 * to : 16 * to + 16] = line[16 * chunk : 16 * chunk + 16]
    made = boxed(array, box, at, swizzle)
    assert np.array_equal(made.reshape(image.shape), image)


def test_boxes_of_every_second_element() -> None:
    """Steps begin where the copy does; that of the first dimension has no effect, and 8 are the most."""
    array = NUMBERS.integers(1, 2**16, (7, 20, 64), np.uint16)
    made = boxed(array, (6, 8, 64), (-2, 5, 0), 0, (3, 2, 4)).view(np.uint16).reshape(2, 4, 64)
    assert np.array_equal(made, np.stack([np.zeros((4, 64)), array[1, 5:13:2]]))
    with pytest.raises(AssertionError):
        tensor_map(1 << 36, array, (1, 18, 64), 0, (1, 9, 1))


def test_maps_that_the_driver_refuses() -> None:
    array = np.zeros((4, 24), np.uint16)
    for box, swizzle in (((4, 12), 0), ((4, 32), 1), ((4, 64), 2), ((4, 7), 0)):
        with pytest.raises(AssertionError):
            tensor_map(1 << 36, array, box, swizzle)
    with pytest.raises(AssertionError):  # rows off 16 bytes
        tensor_map(1 << 36, np.zeros((4, 12), np.uint16), (4, 8), 0)


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_ring_of_phases(seed: int) -> None:
    """One warp loads 12 tiles by bulk copies through two stages, another adds them up: parities turn, bytes count."""
    tiles = NUMBERS.integers(0, 1000, (12, 32), np.uint32)
    body = "mov.u32 r1, tile; setp.eq.u32 p0, r0, 0;\n"
    for stage in (0, 1):
        body += f"@p0 mbarrier.init.shared::cta.b64 [tile+{8 * stage}], 1;\n"
        body += f"@p0 mbarrier.init.shared::cta.b64 [tile+{16 + 8 * stage}], 32;\n"
    body += (
        "@p0 fence.mbarrier_init.release.cluster; bar.sync 0; mov.u32 r20, 0; setp.lt.u32 p4, r0, 32; @!p4 bra sums;\n"
    )
    for step in range(12):
        stage, parity = step % 2, step // 2 % 2
        if step >= 2:
            body += (
                f"free{step}: mbarrier.try_wait.parity.shared::cta.b64 p1, [tile+{16 + 8 * stage}], {1 - parity}; "
                f"@p1 bra go{step}; bra free{step}; go{step}:\n"
            )
        body += (
            f"@p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [tile+{8 * stage}], 128; add.s64 d6, d1, {128 * step};\n"
            f"@p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+{128 + 128 * stage}], [d6], "
            f"128, [tile+{8 * stage}];\n"
        )
    body += "ret;\nsums: sub.s32 r2, r0, 32; shl.b32 r2, r2, 2; add.s32 r3, r1, r2;\n"
    for step in range(12):
        stage, parity = step % 2, step // 2 % 2
        body += (
            f"full{step}: mbarrier.try_wait.parity.shared::cta.b64 p1, [tile+{8 * stage}], {parity}; "
            f"@p1 bra here{step}; bra full{step}; here{step}:\n"
            f"ld.shared.u32 r4, [r3+{128 + 128 * stage}]; add.u32 r20, r20, r4;\n"
            f"mbarrier.arrive.shared::cta.b64 _, [tile+{16 + 8 * stage}];\n"
        )
    body += "cvt.u64.u32 d7, r2; add.s64 d7, d7, d0; st.global.u32 [d7], r20;"
    made = np.zeros(32, np.uint32)
    Module(kernel(body, 2, shared=1024)).launch("k", (1,), (64,), [writes(made), reads(tiles)], seed=seed)
    assert np.array_equal(made, tiles.sum(0, dtype=np.uint32))


def test_bytes_may_come_before_they_are_expected() -> None:
    """The count of a phase may be negative for a while: the arrival that expects them comes last."""
    data = NUMBERS.integers(0, 2**32, 32, np.uint32)
    body = INIT.format(1) + "add.s32 r2, r1, 128;\n"
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    body += f"@p0 {copy} [r2], [d1], 128, [tile];\n" + EXPECT.format(128) + WAIT.format(0, 0)
    body += "shl.b32 r3, r0, 2; add.s32 r4, r2, r3; ld.shared.u32 r5, [r4]; cvt.u64.u32 d6, r3; add.s64 d6, d6, d0;\n"
    body += "st.global.u32 [d6], r5;"
    for seed in range(1, 9):
        made = np.zeros(32, np.uint32)
        Module(kernel(body, 2, shared=1024)).launch("k", (1,), (32,), [writes(made), reads(data)], seed=seed)
        assert np.array_equal(made, data)


@pytest.mark.parametrize("adds", [False, True])
def test_bulk_copies_out_of_shared_memory(adds: bool) -> None:
    data, before = (NUMBERS.standard_normal(64).astype(np.float32) for _ in range(2))
    opcode = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32" if adds else (
        "cp.async.bulk.global.shared::cta.bulk_group"
    )  # fmt: skip
    body = "shl.b32 r2, r0, 2; mov.u32 r1, tile; add.s32 r3, r1, r2; cvt.u64.u32 d6, r2; add.s64 d6, d6, d1;\n"
    body += "ld.global.u32 r4, [d6]; st.shared.u32 [r3], r4; fence.proxy.async.shared::cta; bar.sync 0;\n"
    body += f"setp.eq.u32 p0, r0, 0; @p0 {opcode} [d0], [tile], 256; @p0 cp.async.bulk.commit_group;\n"
    body += "@p0 cp.async.bulk.wait_group 0;"
    made = before.copy()
    Module(kernel(body, 2, shared=256)).launch("k", (1,), (64,), [updates(made), reads(data)])
    assert np.array_equal(made, before + data if adds else data)


@pytest.mark.parametrize(("bytes_", "cache"), [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")])
@pytest.mark.parametrize("read", [0, 1, 3])
def test_groups_of_cp_async(bytes_: int, cache: str, read: int) -> None:
    """Three groups, each waited for when its turn comes; of a copy `read` quarters are read, the rest is 0."""
    data = NUMBERS.integers(1, 256, (3, 32, bytes_), np.uint8)
    part = read * bytes_ // 4
    width = {4: "u32", 8: "u64", 16: "v2.u64"}[bytes_]
    item = {4: "r6", 8: "d12", 16: "{d12, d13}"}[bytes_]
    body = (
        f"mul.lo.u32 r2, r0, {bytes_}; mov.u32 r1, tile; add.s32 r3, r1, r2; cvt.u64.u32 d6, r2; mov.u32 r5, {part};\n"
    )
    body += "add.s64 d7, d1, d6; add.s64 d8, d0, d6;\n"
    step = 32 * bytes_
    for group in range(3):
        body += (
            f"cp.async.{cache}.shared.global [r3+{step * group}], [d7+{step * group}], {bytes_}, r5; "
            "cp.async.commit_group;\n"
        )
    for group in range(3):
        wait = "cp.async.wait_all" if group == 2 else f"cp.async.wait_group {2 - group}"
        body += (
            f"{wait}; ld.shared.{width} {item}, [r3+{step * group}]; st.global.{width} [d8+{step * group}], {item};\n"
        )
    made = np.zeros_like(data)
    expected = data.copy()
    expected[:, :, part:] = 0
    for seed in (1, 2, 3):
        arguments = [writes(made), reads(data)]
        Module(kernel(body, 2, shared=3 * step)).launch("k", (1,), (32,), arguments, seed=seed)
        assert np.array_equal(made, expected)


def test_named_barriers_pass_turns() -> None:
    """Two warps take turns at one word by bar.arrive and bar.sync of two barriers."""
    body = "mov.u32 r1, tile; setp.lt.u32 p0, r0, 32; setp.eq.u32 p1, r0, 0; setp.eq.u32 p2, r0, 32;\n"
    body += "@p1 st.shared.u32 [tile], 1; @p0 bra first;\n"
    for _ in range(4):
        body += "bar.sync 1, 64; ld.shared.u32 r4, [tile]; mul.lo.u32 r4, r4, 3; bar.warp.sync -1;\n"
        body += "@p2 st.shared.u32 [tile], r4; bar.arrive 2, 64;\n"
    body += "ret;\nfirst:"
    for _ in range(4):
        body += " bar.warp.sync -1; bar.arrive 1, 64; bar.sync 2, 64; ld.shared.u32 r4, [tile]; add.u32 r4, r4, 1; "
        body += "bar.warp.sync -1; @p1 st.shared.u32 [tile], r4;\n"
    body += "@p1 st.global.u32 [d0], r4;"
    expected = 1
    for _ in range(4):
        expected = 3 * expected + 1
    for seed in range(1, 9):
        made = np.zeros(1, np.uint32)
        Module(kernel(body, 1, shared=16)).launch("k", (1,), (64,), [writes(made)], seed=seed)
        assert made[0] == expected


def test_registers_change_hands() -> None:
    """Of 65,536 registers one warpgroup gives up what three others take."""
    body = "setp.lt.u32 p0, r0, 128; @p0 bra loader; setmaxnreg.inc.sync.aligned.u32 160; bra over;\n"
    body += "loader: setmaxnreg.dec.sync.aligned.u32 32; over:"
    Module(kernel(body, 0, threads=512)).launch("k", (1,), (512,), [])
