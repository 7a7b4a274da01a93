# SPDX-License-Identifier: MIT
"""Cases of tests/cuda/test_products.py beside the stub of the driver: python host_products.py LIBRARY CASE."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
import tilekiln as tk

from tests.cuda.few_rows import few_rows, few_words
from tests.cuda.host_side import Device, counts, ints, last, number, numbers, refused, stub

OUT_FP32, WIDE_OUT, WIDE_EXTRAS, GATHER_A, GATHER_B, ALIGNED, OUT_SUMS, BARE = 1, 2, 4, 16, 32, 64, 128, 2048
"""Features, as kernels/gemm/gemm/cuda/params.h has them."""
NO_BYTES = "...its tensor cores turn no bytes..."
NAMES = "m n k tiles_m tiles_n tiles a_batches b_batches activation features steps whole shared".split()


def row() -> dict[str, int]:
    values = (ctypes.c_int * len(NAMES))()
    stub.stub_product_sizes(values)
    return dict(zip(NAMES, values, strict=True))


def matrix(*shape: int, strides: Sequence[int] = ()) -> Device:
    made = Device(*shape)
    for index, stride in enumerate(strides):
        made.exported.managed.tensor.strides[index] = stride
    return made


def shared(library: tk.Library, function: str, *sizes: int) -> tuple[int, ...]:
    """A product's tiles, those that a block has alone, stages along k of the others, and blocks; twice the same."""
    m, n, k = sizes
    said = set()
    for _ in range(2):
        allocated = number("allocated").value
        library.gemm(matrix(m, k), matrix(k, n, strides=(1, k)), out=matrix(m, n))
        of = row()
        assert last() == function, last()
        assert of["shared"] == (of["tiles"] - of["whole"]) * of["steps"]
        said.add((of["tiles"], of["whole"], of["shared"], number("grid").value))
    assert number("allocated").value == allocated, "memory of a launch was not given back"
    return said.pop() if len(said) == 1 else ()


def products(library: tk.Library) -> None:
    """A linear layer: maps of both operands, tiles, and what is gathered where TMA cannot follow."""
    x, w, out = matrix(300, 520), matrix(520, 1000, strides=(1, 520)), matrix(300, 1000)
    library.gemm(x, w, out=out)
    assert (last(), *counts("launches maps")) == ("gemm_hopper_64", 1, 2)
    expected = (300, 1000, 520, 3, 16, 48, 0, 0, 0, WIDE_OUT | WIDE_EXTRAS | ALIGNED | BARE, 9, 48, 0)
    assert row() == dict(zip(NAMES, expected, strict=True))
    assert counts("grid threads") == (48, 384)
    assert 0 < number("shared_bytes").value <= 232448
    assert numbers("lengths", ctypes.c_uint64, 3, 5).tolist()[:2] == [[520, 300, 1, 1, 1], [520, 1000, 1, 1, 1]]
    assert numbers("strides", ctypes.c_uint64, 3, 4)[:2, 0].tolist() == [1040, 1040]
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:2, :2].tolist() == [[64, 64], [64, 64]]
    odd = matrix(300, 520, strides=(521, 1))
    odd.exported.managed.tensor.shape[0] = 200  # what 300 rows of 520 have room for
    library.gemm(odd, w, out=matrix(200, 1000))
    assert number("maps").value == 3
    assert row()["features"] & (GATHER_A | GATHER_B) == GATHER_A
    library.gemm(x, w, out=matrix(300, 1000), alpha=0.0)  # reads neither
    assert (row()["k"], number("maps").value) == (0, 3)
    launches = number("launches").value
    library.gemm(matrix(0, 520), w, out=matrix(0, 1000))
    assert number("launches").value == launches
    # Up to eight have a kernel of their own, if they lie in pieces of 16 bytes and have room beside its ring.
    for m, k, between, few in ((1, 2048, 2048, True), (8, 2048, 2056, True), (8, 2048, 2049, False),
                               (9, 2048, 2048, False), (1, 2052, 2052, False), (8, 16384, 16384, False)):  # fmt: skip
        a = matrix(m, between, strides=(between, 1))
        a.exported.managed.tensor.shape[1] = k
        library.gemm(a, matrix(k, 3072, strides=(1, k)), out=matrix(m, 3072))
        assert (last() == "gemm_few_rows") == few, (m, k, between)
        assert not few or counts("grid threads") == (132, 256)
    few_rows(library, matrix, row)
    # Few rows take narrow tiles, whose steps two or four blocks share, a cluster; ragged turns all, by way of memory.
    assert shared(library, "gemm_hopper_64", 16, 4096, 4096) == (64, 64, 0, 128)
    assert number("cluster").value == 2
    assert shared(library, "gemm_hopper_128", 16, 1024, 4096) == (8, 8, 0, 32)
    assert number("cluster").value == 4
    assert shared(library, "gemm_hopper", 4099, 4240, 4072) == (561, 528, 2112, 132)
    assert shared(library, "gemm_hopper_192", 512, 11008, 4096) == (232, 232, 0, 132)
    number("cluster").value = 0
    # Two blocks, which share what they read of b, have a tile of 256 rows together.
    assert shared(library, "gemm_hopper", 4096, 4096, 4096) == (256, 256, 0, 132)
    assert number("cluster").value == 2
    # Tiles that callers name have kernels of their own, but for operands that TMA cannot follow.
    for one in library.instances("family=gemm pipeline=tiles"):
        m, n, words = map(int, one.algorithm["tile"].split("x"))
        groups = m // 64 * (2 if one.algorithm["scheduler"] == "interwave" else 1)
        library.gemm(odd, w, out=matrix(200, 1000), instance=one.number)
        assert (last().startswith("gemm_hopper"), row()["features"] & GATHER_A) == (True, GATHER_A)
        library.gemm(x, w, out=matrix(300, 1000), instance=one.number)
        assert last().startswith(f"gemm_{m}x{n}") or ((m, words) == (128, 32) and last().startswith("gemm_hopper"))
        expected = (-(-300 // m), -(-1000 // n), -(-520 // (2 * words)), 128 + 128 * groups)
        assert (*(row()[name] for name in ("tiles_m", "tiles_n", "steps")), number("threads").value) == expected
    tile = {"out": matrix(300, 1000), "instance": one.number}
    refused("...b_up: was given for 300 x 520...", library.gemm, x, w, b_up=w, **tile, error=ValueError)
    number("encode_error").value = 1
    refused("...cuda:0: a: as the stub was told...", library.gemm, x, w, out=out, error=RuntimeError)


def column_major(k: int, n: int, dtype: str = "fp8") -> Device:
    made = Device(n, k, dtype=dtype)
    made.exported.managed.tensor.shape[0], made.exported.managed.tensor.shape[1] = k, n
    made.exported.managed.tensor.strides[0], made.exported.managed.tensor.strides[1] = 1, k
    return made


def of_bytes(library: tk.Library) -> None:
    """e4m3: stages of 128 along k, sums that are kept in fp32 unless an instance of accumulate=fast is named."""
    m, n, k = 4096, 4096, 4112
    x, w, out = Device(m, k, dtype="fp8"), column_major(k, n), matrix(m, n)
    turned, odd = Device(k, n, dtype="fp8"), Device(300, 100, dtype="fp8")
    own = library.instances()[library.gemm_find(x, w, out=out)]
    assert own.algorithm["accumulate"] is None
    (fast,) = (one.number for one in library.instances("accumulate=fast") if one.signature == own.signature)
    for instance, function in ((-1, "gemm_hopper"), (fast, "gemm_hopper_fast")):
        library.gemm(x, w, out=out, instance=instance)
        assert (last(), row()["steps"], row()["features"]) == (function, 33, WIDE_OUT | WIDE_EXTRAS | ALIGNED | BARE)
    assert numbers("lengths", ctypes.c_uint64, 2, 5).tolist() == [[k, m, 1, 1, 1], [k, n, 1, 1, 1]]
    assert numbers("strides", ctypes.c_uint64, 2, 4)[:, 0].tolist() == [k, k]
    assert numbers("boxes", ctypes.c_uint32, 2, 5)[:, :2].tolist() == [[128, 128], [128, 128]]
    library.gemm(odd, Device(100, 1, dtype="fp8"), out=matrix(300, 1))  # rows of 100 bytes; out is turned
    assert row()["features"] & (GATHER_A | GATHER_B) == GATHER_B
    blocks = {"a_scale": Device(m, 33, dtype="fp32"), "b_scale": Device(32, 33, dtype="fp32")}
    library.gemm(x, w, out=out, **blocks)
    assert (last(), row()["steps"]) == ("gemm_hopper", 33)
    twice = {**blocks, "b_scale": blocks["a_scale"]}
    refused("...b_scale: shape was (4096, 33), must be (32, 33)...", library.gemm, x, w, out=out, **twice)
    # Fullest turns of blocks for products that memory bounds: 112 of 132 by 64 columns; 128 by 192, not 384 by 64.
    for rows, columns, steps, *expected in ((128, 7168, 2048, "_64", 112), (16, 24576, 1536, "_192", 128)):
        library.gemm(Device(rows, steps, dtype="fp8"), column_major(steps, columns), out=matrix(rows, columns))
        assert [last().removeprefix("gemm_hopper"), number("grid").value] == expected
    refused(NO_BYTES, library.gemm, x, turned, out=out, error=tk.NoKernelError)


def sums(library: tk.Library) -> None:
    """int8: stages of 128 along k, int32 as it is; also of a batch, and of a column, which is of both layouts."""
    x, w = Device(4096, 4112, dtype="int8"), column_major(4112, 4096, "int8")
    library.gemm(x, w, out=Device(4096, 4096, dtype="int32"))
    expected = ("gemm_hopper", 33, OUT_FP32 | WIDE_OUT | WIDE_EXTRAS | ALIGNED | OUT_SUMS)
    assert (last(), row()["steps"], row()["features"]) == expected
    assert numbers("boxes", ctypes.c_uint32, 2, 5)[:, :2].tolist() == [[128, 128], [128, 128]]
    batch, one = Device(3, 300, 256, dtype="int8"), Device(3, 256, 1, dtype="int8")
    library.batched_gemm(batch, one, out=Device(3, 300, 1, dtype="int32"))
    assert row()["features"] & (OUT_SUMS | GATHER_A | GATHER_B) == OUT_SUMS
    turned = Device(4112, 4096, dtype="int8")
    refused(NO_BYTES, library.gemm, x, turned, out=Device(4096, 4096, dtype="int32"), error=tk.NoKernelError)
    three, made = Device(3, 16, 16, dtype="int8"), Device(3, 16, 16, dtype="int32")
    refused(NO_BYTES, library.batched_gemm, three, three, out=made, error=tk.NoKernelError)


def groups(library: tk.Library) -> None:
    """Rows in groups: one launch, whose starts nobody reads on the host, and none without rows, columns or groups."""
    a, w, starts, out = matrix(1000, 512), matrix(4, 512, 768), ints(0, 300, 300, 700, 1000), matrix(1000, 768)
    starts.exported.managed.tensor.data = 64  # no memory of the host
    w.exported.managed.tensor.strides[1], w.exported.managed.tensor.strides[2] = 1, 512
    number("cluster").value = 0
    library.grouped_gemm(a, w, starts, out=out)
    assert (last(), *counts("launches maps")) == ("gemm_groups", 1, 2)
    assert counts("grid threads cluster") == (72, 384, 2)
    assert numbers("boxes", ctypes.c_uint32, 2, 5)[:, :2].tolist() == [[64, 64], [64, 256]]
    odd, one = matrix(500, 512, strides=(1001, 1)), matrix(1000, 256)
    odd.exported.managed.tensor.shape[1] = 500
    library.grouped_gemm(odd, matrix(4, 500, 256), starts, out=matrix(500, 256))
    assert row()["features"] & (GATHER_A | GATHER_B) == GATHER_A
    library.grouped_gemm(a, matrix(4, 512, 256), starts, out=one)  # a column of tiles, no clusters
    assert number("grid").value == 12
    for none in ((matrix(0, 512), w, matrix(0, 768)), (a, matrix(4, 512, 0), matrix(1000, 0))):
        launches = number("launches").value
        library.grouped_gemm(*none[:2], starts, out=none[2])
        assert number("launches").value == launches
    refused("...starts: device was cpu...", library.grouped_gemm, a, w, np.zeros(5, np.int32), out=out)
    panels, made = Device(4, 12, 256, 64, 2), Device(1000, 12, 64)
    refused("...panels are the CPU's...", library.grouped_gemm, a, panels, starts, out=made, error=tk.NoKernelError)


def experts(library: tk.Library) -> None:
    """A mixture of experts: launches sized by what the host knows; one block gathers few rows with their lists."""
    gate_up, down, x, out = matrix(4, 512, 512), matrix(4, 512, 256), matrix(100, 512), matrix(100, 512)
    ids, weights = Device(100, 2, dtype="int32"), Device(100, 2, dtype="fp32")
    ids.exported.managed.tensor.data = 64  # no memory of the host
    library.fused_moe(x, ids, weights, gate_up, down, out=out)
    allocated = number("allocated").value
    assert (last(), *counts("launches maps")) == ("moe_sums", 5, 4)
    assert counts("grid threads") == (100, 128)
    assert number("early").value == 4  # all but the first, before which memory is taken
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:, :2].tolist() == [[64, 64], [64, 64], [64, 64]]
    few = (matrix(3, 512), Device(3, 2, dtype="int32"), Device(3, 2, dtype="fp32"))
    library.fused_moe(*few, gate_up, down, out=matrix(3, 512))
    assert counts("launches maps") == (9, 8)
    assert number("allocated").value == allocated
    for tokens, of in ((0, 4), (3, 0)):  # nothing; zeros, by two launches
        given = (matrix(tokens, 512), Device(tokens, 2, dtype="int32"), Device(tokens, 2, dtype="fp32"))
        library.fused_moe(*given, matrix(of, 512, 512), matrix(of, 512, 256), out=matrix(tokens, 512))
    assert number("launches").value == 11
    odd = matrix(100, 512, strides=(513, 1))  # rows may begin anywhere
    odd.exported.managed.tensor.shape[0] = 99
    rest = (Device(99, 2, dtype="int32"), Device(99, 2, dtype="fp32"))
    library.fused_moe(odd, *rest, gate_up, down, out=matrix(99, 512))
    narrow = (matrix(4, 24, 512), matrix(4, 512, 12))
    refused("down: rows began at ...24 bytes apart...", library.fused_moe, x, ids, weights, *narrow, out=out)
    panels = (Device(4, 8, 256, 64, 2), Device(4, 8, 128, 64, 2))
    given = (x, ids, weights, *panels)
    refused("...panels are the CPU's...", library.fused_moe, *given, out=out, error=tk.NoKernelError)


def words(library: tk.Library) -> None:
    """A weight of int4: blocks of 8 or 16 rows and 32 columns; what has no kernel is refused."""
    b, scale = Device(5, 16, 64, 4, dtype="uint8"), Device(5, 4, 64, dtype="fp32")
    for m, name, threads in ((1, "words_few_int4", 256), (8, "words_few_int4", 256), (9, "words_16_many", 512)):
        library.flatmm_quant(matrix(m, 128), b, scale, out=Device(m, 5, 64))
        assert (last(), *counts("grid threads")) == (name, 10, threads)
    few_words(library, matrix, b, scale)
    for m, name, grid in ((17, "panels_64", 3), (64, "panels_64", 3), (300, "panels_128", 9)):
        library.flatmm_quant(matrix(m, 128), b, scale, out=Device(m, 5, 64))
        assert (last(), *counts("grid threads")) == (name, grid, 384)
    launches = number("launches").value
    library.flatmm_quant(matrix(0, 128), b, scale, out=Device(0, 5, 64))
    assert number("launches").value == launches
    odd = matrix(3, 128, strides=(129, 1))
    odd.exported.managed.tensor.shape[0] = 2
    said = "...were 258 bytes apart, must be at multiples of 16 bytes on cuda..."
    refused(said, library.flatmm_quant, odd, b, scale, out=Device(2, 5, 64))
    library.flatmm_quant(matrix(3, 128), b, scale, out=Device(3, 5, 64), quantise_a=True)


def lists(library: tk.Library) -> None:
    """A launch a problem, none of one without rows; problems of the host, of arrays of the device."""
    a, b, out = Device(40000), Device(40000), Device(40000)
    rows = [
        [64, 100, 80, 0, 80, 0, 80, 0, 104, 0],
        [0, 8, 8, 0, 8, 0, 8, 0, 8, 0],
        [8, 8, 16, 64, 16, 0, 16, 8000, 8, 0],
    ]
    library.gemm_list(a, b, np.array(rows, np.int64), out=out)
    assert (last()[:11], number("launches").value) == ("gemm_hopper", 2)
    assert [row()[name] for name in ("m", "n", "k")] == [8, 8, 16]


def ampere(library: tk.Library) -> None:
    """The same without tensor maps, a block of threads a tile."""
    x, w, out = matrix(300, 520), matrix(520, 1000, strides=(1, 520)), matrix(300, 1000)
    library.gemm(x, w, out=out)
    assert (last(), *counts("launches maps")) == ("gemm_ampere", 1, 0)
    expected = (300, 1000, 520, 3, 8, 24, 0, 0, 0, WIDE_OUT | WIDE_EXTRAS | ALIGNED | BARE, 17, 0, 408)
    assert row() == dict(zip(NAMES, expected, strict=True))
    assert counts("grid threads") == (102, 128)  # four stages each
    assert shared(library, "gemm_ampere", 16, 4096, 4096) == (32, 0, 4096, 264)
    odd = matrix(300, 520, strides=(521, 1))
    odd.exported.managed.tensor.shape[0] = 200
    library.gemm(odd, w, out=matrix(200, 1000))
    assert row()["features"] & (GATHER_A | GATHER_B) == GATHER_A


def rows(library: tk.Library) -> None:
    """A warp a short row, a block a long one, a block a processor for the longest; nothing for no rows."""
    for count, columns, name, grid, threads in (
        (1000, 64, "rows_whole", 250, 128),
        (7, 4096, "rows_whole", 7, 128),
        (7, 4097, "rows", 7, 1024),
        (200, 40000, "rows_staged", 132, 512),
        (3, 40001, "rows", 3, 1024),
    ):
        library.softmax(Device(count, columns), y=Device(count, columns))
        assert (last(), *counts("grid threads")) == (name, grid, threads)
    launches = number("launches").value
    library.softmax(Device(0, 64), y=Device(0, 64))
    assert number("launches").value == launches
    # Gradients of gamma alone, of no rows: layernorm's kernels have no form whose blocks meet.
    x, none = Device(0, 4096), Device(0, dtype="fp32")
    none.exported.managed.tensor.data = None
    library.layernorm2d_bwd(x, x, Device(4096), none, none, dx=x, dgamma=Device(4096))
    assert last() == "rows_joined"


if __name__ == "__main__":
    globals()[sys.argv[2]](tk.load(sys.argv[1]))
