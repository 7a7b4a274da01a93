# SPDX-License-Identifier: MIT
"""Cases of tests/cuda/test_library.py, in a process with the stub of the driver: python host_side.py LIBRARY CASE."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core import frameworks
from tilekiln._core.dtypes import NUMPY, TABLE

from tests.python.capsules import Exported

stub = ctypes.CDLL("libcuda.so.1")


def number(name: str) -> Any:
    return ctypes.c_int.in_dll(stub, f"stub_{name}")


def numbers(name: str, kind: type, *shape: int) -> np.ndarray:
    array: Any = kind
    for length in reversed(shape):
        array = array * length
    return np.ctypeslib.as_array(array.in_dll(stub, f"stub_{name}")).copy()


def row() -> Any:
    from tools.gpu import driver, forward

    structure = driver.structure(forward.HEADER, "Params")
    assert ctypes.sizeof(structure) <= stub.stub_row_bytes() < ctypes.sizeof(structure) + 128
    return structure.in_dll(stub, "stub_row")


# The framework of Device works in the default stream and says so: nobody waits for the end of a call.
frameworks.current_stream = lambda array, device: 0


class Device:
    """An array that says it is on cuda:0."""

    def __init__(self, *shape: int, dtype: str = "bf16", fill: int | None = None) -> None:
        name, code, bits = TABLE[dtype]
        self.buffer = np.zeros(int(np.prod(shape)) * bits // 8 + 64, np.uint8)
        start = -self.buffer.ctypes.data % 64
        kind = {"bf16": "uint16", "fp8": "uint8"}.get(dtype, name)
        self.array = self.buffer[start : start + int(np.prod(shape)) * bits // 8].view(kind).reshape(shape)
        if fill is not None:
            self.array[...] = fill
        self.exported = Exported(self.array, device_type=2, code=code, bits=bits)
        for index, stride in enumerate(self.array.strides):
            self.exported.managed.tensor.strides[index] = stride // self.array.itemsize

    def twin(self) -> Device:
        return Device(*self.array.shape)

    def __dlpack__(self, **options: object) -> object:
        return self.exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def ints(*values: int) -> Device:
    made = Device(len(values), dtype="int32")
    made.array[...] = values
    return made


def refused(call: Callable[[], object], kind: type[Exception] = tk.ArgumentError) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it ran")


def lazily(library: tk.Library) -> None:
    """Nothing of the driver until an array is on a device; a kernel once; cubins of the dtype and head dim."""
    host = np.ones((1, 8, 2, 64), NUMPY["bf16"])
    assert np.all(library.fmha_fwd(host, host, host) == 1)
    assert number("inits").value == 0
    q, out = Device(2, 300, 4, 64), Device(2, 300, 4, 64)
    lse = Device(2, 4, 300, dtype="fp32")
    for _ in range(2):
        library.fmha_fwd(q, q, q, out=out, lse=lse, causal=True, softmax_scale=0.25)
    assert (number("inits").value, number("modules").value, number("launches").value) == (1, 1, 2)
    assert ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(stub, "stub_name"))).value == b"fmha_fwd_hopper"
    at = row()
    assert (at.batch, at.nhead_q, at.nhead_k, at.seqlen_q_most, at.seqlen_k_most, at.hdim_v) == (2, 4, 4, 300, 300, 64)
    assert (at.query_blocks, at.tiles, at.head_group) == (2, 16, 8)
    assert (at.left, at.right, at.features) == (1 << 29, 0, 1 | 64 | 128)
    assert abs(at.score_scale_log2 - 0.25 * 1.4426950408889634) < 1e-6
    assert (at.out, at.out_batch, at.out_head, at.out_row) == (out.array.ctypes.data, 300 * 256, 64, 256)
    assert (at.lse, at.lse_batch, at.lse_head) == (lse.array.ctypes.data, 1200, 300)
    assert numbers("lengths", ctypes.c_uint64, 3, 5).tolist() == [[64, 300, 1, 2, 4]] * 3
    assert numbers("strides", ctypes.c_uint64, 3, 4).tolist() == [[512, 512, 153600, 128]] * 3
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:, 1].tolist() == [64, 128, 128]
    assert (number("grid").value, number("threads").value) == (16, 512)
    assert 0 < number("shared_bytes").value <= 232448


def streams(library: tk.Library) -> None:
    """The default stream of a framework that does not say; a stream by its handle; no stream of the host."""
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    stream_of = ctypes.c_uint64.in_dll(stub, "stub_stream")
    library.fmha_fwd(q, q, q, out=out)
    waits = number("waits").value
    library.fmha_fwd(q, q, q, out=out)
    assert stream_of.value == 1  # CU_STREAM_LEGACY
    assert number("waits").value == waits  # calls are enqueued, not waited for
    stream = tk.Stream(device=(2, 0), native=0x77)
    library.fmha_fwd(q, q, q, out=out, stream=stream)
    assert stream_of.value == 0x77
    stream.synchronize()
    assert number("waits").value == waits + 1
    said = refused(lambda: library.fmha_fwd(q, q, q, out=out, stream=tk.Stream()))
    assert said.startswith("stream: was a queue of the host, must be a stream of cuda:0"), said
    number("capturing").value = 1
    given = row().next_tile
    library.fmha_fwd(q, q, q, out=out)
    first = row().next_tile
    library.fmha_fwd(q, q, q, out=out)
    assert len({given, first, row().next_tile}) == 3  # a captured launch keeps its counter


def capture_first(library: tk.Library) -> None:
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    number("capturing").value = 1
    said = refused(lambda: library.fmha_fwd(q, q, q, out=out), RuntimeError)
    assert "was being captured into a graph at the first call on cuda:0, must have run one call before" in said, said
    assert number("launches").value == 0


def sequences(library: tk.Library) -> None:
    """Starts and lengths reach the device, and memory goes back."""
    q, k, out = Device(60, 2, 64), Device(90, 2, 64), Device(60, 2, 64)
    starts_q, starts_k = ints(0, 20, 25, 60), ints(0, 30, 60, 90)
    library.fmha_fwd(q, k, k, out=out, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)
    assert numbers("sequences", ctypes.c_int, 4, 16)[:, :3].tolist() == [
        [0, 20, 25],
        [0, 30, 60],
        [20, 5, 35],
        [30, 30, 30],
    ]
    at = row()
    assert (at.seqlen_q_most, at.seqlen_k_most, at.batch, at.out_batch, at.features & 2) == (35, 30, 3, 0, 2)
    far = 1 << 30
    assert numbers("lengths", ctypes.c_uint64, 3, 5)[0].tolist() == [64, far, 2 * far, 2 * far, 2]
    assert numbers("strides", ctypes.c_uint64, 3, 4)[0].tolist() == [256, 256, (1 << 34) - 256, 128]
    kept = number("allocated").value
    q, k, out = Device(3, 20, 2, 64), Device(3, 30, 2, 64), Device(3, 20, 2, 64)
    library.fmha_fwd(q, k, k, out=out, seqlen_q=ints(7, 20, 0), seqlen_k=ints(30, 1, 4))
    assert numbers("sequences", ctypes.c_int, 4, 16)[2:, :3].tolist() == [[7, 20, 0], [30, 1, 4]]
    at = row()
    assert (at.seqstart_q, at.rows_q, at.rows_k, at.out_batch, at.lse_batch) == (0, 20, 30, 0, -20)
    assert number("allocated").value == kept


def unread(library: tk.Library) -> None:
    """With max_seqlen_q and max_seqlen_k the kernel reads the caller's arrays, also in a graph."""
    q, out, starts = Device(60, 2, 64), Device(60, 2, 64), ints(0, 20, 25, 60)

    def call(**more: int) -> object:
        return library.fmha_fwd(q, q, q, out=out, cu_seqlens_q=starts, cu_seqlens_k=starts, **more)

    call(max_seqlen_q=35, max_seqlen_k=40)
    kept, waits = number("allocated").value, number("waits").value
    number("capturing").value = 1
    call(max_seqlen_q=35, max_seqlen_k=40)
    at = row()
    place = starts.array.ctypes.data
    assert (at.seqstart_q, at.cu_seqlens_q, at.seqlen_q) == (place, place, 0)
    assert (at.seqstart_k, at.cu_seqlens_k, at.seqlen_k) == (place, place, 0)
    assert (at.seqlen_q_most, at.seqlen_k_most, at.query_blocks) == (35, 40, 1)
    assert (number("allocated").value, number("waits").value) == (kept, waits)
    said = refused(call)
    assert said == (
        "stream: was being captured into a graph, must not be while the host reads cu_seqlens_q: give max_seqlen_q and "
        "max_seqlen_k, and index arrays on cuda:0"
    )
    assert number("allocated").value == kept


def few_queries(library: tk.Library) -> None:
    """Up to 4 queries the decode kernel answers fmha_fwd, and over many keys up to twice the heads of a key head, at
    most 16; more, and an instance by its number, the forward's.
    """
    k = Device(2, 16, 2, 64)
    for queries, family in ((1, "fmha_fwd_splitkv_"), (4, "fmha_fwd_splitkv_"), (5, "fmha_fwd_bf16_")):
        q, out = Device(2, queries, 4, 64), Device(2, queries, 4, 64)
        assert library.instance_name(library.fmha_fwd_find(q, k, k)).startswith(family)
        library.fmha_fwd(q, k, k, out=out)
        decodes = numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_decode")
        assert decodes == (queries < 5)
    for queries, heads, keys, few_enough in (
        (5, 2, 1024, False), (5, 6, 1024, True), (7, 6, 1024, False), (8, 8, 1024, True), (8, 8, 1023, False),
        (9, 8, 1024, False), (16, 16, 1024, True), (16, 64, 4096, True), (17, 64, 4096, False),
    ):  # fmt: skip
        name = library.instance_name(
            library.fmha_fwd_find(Device(1, queries, heads, 64), *[Device(1, keys, 2, 64)] * 2)
        )
        assert name.startswith("fmha_fwd_splitkv_") == few_enough, (queries, heads, keys)
    forward = library.fmha_fwd_find(q, k, k)
    few = Device(2, 4, 4, 64)
    library.fmha_fwd(few, k, k, out=Device(2, 4, 4, 64), instance=forward)
    assert not numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_decode")


def cache(library: tk.Library) -> None:
    """Calls over a KV cache: their launches; captured where no array is read; errors."""
    q, k, v, out = Device(2, 1, 4, 64), Device(9, 16, 2, 64), Device(9, 16, 2, 64), Device(2, 1, 4, 64)
    table, lengths = Device(2, 4, dtype="int32", fill=1), ints(5, 20)
    arguments: dict[str, Any] = {"block_table": table, "seqlen_k": lengths, "out": out}
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, **arguments)
    assert numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_decode_linear\0")
    assert (number("launches").value, number("grid").value, number("allocated").value) == (1, 4, 0)
    longest = {"max_seqlen_q": 1, "max_seqlen_k": 64}
    waits = number("waits").value
    number("capturing").value = 1
    library.fmha_fwd_splitkv(q, k, v, num_splits=3, **arguments, **longest)
    assert number("launches").value == 3
    assert numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_decode_combine\0")
    assert (number("allocated").value, number("grid").value, number("early").value) == (0, 8, 3)
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, causal=True, window=(3, 0), **arguments, **longest)
    assert numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_decode_linear_general\0")
    wide = Device(2, 9, dtype="int32", fill=1)
    wide.exported.managed.tensor.shape[1] = 4
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, **arguments | {"block_table": wide}, **longest)
    from tools.gpu import driver

    decode = driver.structure("kernels/attention/fmha_fwd_splitkv/cuda/params.h", "Params")
    assert decode.in_dll(stub, "stub_decode_row").table_row == 9
    knew = Device(2, 1, 2, 64)
    library.fmha_fwd_appendkv(None, k, v, knew, knew, block_table=table, seqlen_k=lengths, max_seqlen_k=64)
    assert numbers("name", ctypes.c_char, 64).tobytes().startswith(b"fmha_append\0")
    assert number("waits").value == waits
    said = refused(lambda: library.fmha_fwd_splitkv(q, k, v, **arguments))
    assert "stream: was being captured into a graph" in said, said
    number("capturing").value = 0
    odd = [Device(2, 1, 4, 60), Device(9, 16, 2, 60), Device(9, 16, 2, 60)]
    said = refused(lambda: library.fmha_fwd_splitkv(*odd, block_table=table, seqlen_k=lengths, out=Device(2, 1, 4, 60)))
    assert said == "q: had a head dim of 60, must have a multiple of 8 on cuda: pad it with zeros", said
    assert number("modules").value == 2  # decode's, and the append's


def fp8(library: tk.Library) -> None:
    """Scales of one value and of blocks, in batch and in group mode; what TMA demands of bytes."""
    q, k, out = Device(2, 300, 4, 128, dtype="fp8"), Device(2, 200, 2, 128, dtype="fp8"), Device(2, 300, 4, 128)
    one = {f"{name}_descale": Device(1, dtype="fp32") for name in "qkv"}
    library.fmha_fwd(q, k, k, out=out, **one)
    at = row()
    assert (at.q_descale, at.v_descale) == (one["q_descale"].array.ctypes.data, one["v_descale"].array.ctypes.data)
    assert (at.features & 512, at.q_scales) == (0, 0)
    assert numbers("strides", ctypes.c_uint64, 3, 4).tolist() == [
        [512, 512, 153600, 128],
        [256, 256, 51200, 128],
        [256, 256, 51200, 128],
    ]
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:, :2].tolist() == [[128, 64], [128, 128], [128, 128]]
    blocks = {"q_descale": Device(2, 4, 3, dtype="fp32")}
    blocks |= {f"{name}_descale": Device(2, 2, 2, dtype="fp32") for name in "kv"}
    library.fmha_fwd(q, k, k, out=out, **blocks)
    at = row()
    assert (at.features & 512, at.q_scales, at.k_scales, at.q_scale_batch, at.k_scale_batch) == (512, 3, 2, 12, 4)
    assert (at.q_scale_head, at.k_scale_head, at.v_scale_batch, at.v_scale_head) == (3, 2, 4, 2)
    assert at.scale_start_q == 0
    room = {name: Device(2, one.array.shape[1], 5, dtype="fp32") for name, one in blocks.items()}  # for 5 blocks
    for name, one in room.items():
        one.exported.managed.tensor.shape[2] = blocks[name].array.shape[2]
    library.fmha_fwd(q, k, k, out=out, **room)
    at = row()
    assert (at.q_scales, at.k_scales) == (3, 2)
    assert (at.q_scale_head, at.k_scale_head, at.v_scale_head) == (5, 5, 5)
    assert (at.q_scale_batch, at.k_scale_batch, at.v_scale_batch) == (20, 10, 10)
    packed, made = Device(500, 4, 128, dtype="fp8"), Device(500, 4, 128)
    blocks = {f"{name}_descale": Device(4, 5, dtype="fp32") for name in "qkv"}
    starts = {name: ints(0, 200, 500) for name in ("seqstart_q", "seqstart_k")}
    scales = {f"block_scale_{name}": ints(0, 2, 5) for name in starts}
    library.fmha_fwd(packed, packed, packed, out=made, **starts, **scales, **blocks)
    at = row()
    assert (at.q_scales, at.q_scale_batch) == (5, 0)
    for start in (at.scale_start_q, at.scale_start_k):
        assert np.ctypeslib.as_array((ctypes.c_int * 2).from_address(start)).tolist() == [0, 2]
    library.fmha_fwd(packed, packed, packed, out=made, **starts, **scales, **blocks, max_seqlen_q=300, max_seqlen_k=300)
    at = row()
    assert (at.scale_start_q, at.scale_start_k) == tuple(one.array.ctypes.data for one in scales.values())
    q, k = (Device(1, rows, 1, 128, dtype="fp8") for rows in (100, 200))
    blocks = {
        f"{name}_descale": Device(1, 1, count, dtype="fp32") for name, count in zip("qkv", (1, 2, 2), strict=True)
    }
    for array in blocks.values():  # as PyTorch exports dimensions of one entry
        array.exported.managed.tensor.strides[0] = array.exported.managed.tensor.strides[1] = 1
    library.fmha_fwd(q, k, k, out=Device(1, 100, 1, 128), **blocks)
    assert (row().q_scales, row().k_scales) == (1, 2)
    odd = Device(2, 300, 4, 120, dtype="fp8")
    said = refused(lambda: library.fmha_fwd(odd, odd, odd, out=Device(2, 300, 4, 120)))
    assert said == "q: had a head dim of 120, must have a multiple of 16 on cuda: pad it with zeros", said


def errors(library: tk.Library) -> None:
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)

    def call(**more: float) -> object:
        return library.fmha_fwd(q, q, q, out=out, **more)

    call()
    number("launch_error").value = 719
    said = refused(call, RuntimeError)
    assert "cuda:0: fmha_fwd_d64-bf16: as the stub was told (CUDA_ERROR_LAUNCH_FAILED, 719)" in said, said
    number("launch_error").value = 2
    assert "CUDA_ERROR_OUT_OF_MEMORY" in refused(call, MemoryError)
    number("launch_error").value = 0
    number("encode_error").value = 1
    assert "cuda:0: q: as the stub was told" in refused(call, RuntimeError)
    number("encode_error").value = 0
    launches = number("launches").value
    assert refused(lambda: call(softmax_scale=-1.0)) == "softmax_scale: was -1, must be above 0 on cuda"
    odd, made = Device(1, 8, 1, 60), Device(1, 8, 1, 60)
    said = refused(lambda: library.fmha_fwd(odd, odd, odd, out=made))
    assert said == "q: had a head dim of 60, must have a multiple of 8 on cuda: pad it with zeros"
    wide = Device(1, 8, 1, 68)
    wide.exported.managed.tensor.shape[3] = 64
    said = refused(lambda: library.fmha_fwd(wide, wide, wide, out=Device(1, 8, 1, 64)))
    assert said == "q: a stride was 68 elements, must be a multiple of 8, 0 or more, on cuda: pass a copy"
    floats = Device(1, 8, 1, 64, dtype="fp32")
    made = Device(1, 8, 1, 64, dtype="fp32")
    said = refused(lambda: library.fmha_fwd(floats, floats, floats, out=made), tk.NoKernelError)
    assert said.endswith("its tensor cores multiply no fp32"), said  # a target of the CPU, too, would not help
    assert said.count("rule cuda_needs_16_bits of target cuda-sm") == 2, said
    large, made = Device(1, 8, 1, 128), Device(1, 8, 1, 128)
    said = refused(lambda: library.fmha_fwd(large, large, large, out=made), tk.NoKernelError)
    assert "this builds it: scons receipt=flash target=cuda-sm90a where='dtype=bf16 hdim_q=128 " in said, said
    assert number("launches").value == launches


def other_chip(library: tk.Library) -> None:
    """sm_80 answers by its own rows, without tensor maps."""
    number("major").value = 8
    q, k, out = Device(2, 300, 4, 64), Device(2, 500, 2, 64), Device(2, 300, 4, 64)
    library.fmha_fwd(q, k, k, out=out, causal=True)
    name = ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(stub, "stub_name"))).value
    assert (name, number("launches").value, number("maps").value) == (b"fmha_fwd_ampere", 1, 0)
    assert (number("grid").value, number("threads").value) == (24, 128)
    at = row()
    assert (at.query_blocks, at.tiles, at.seqlen_q_most, at.seqlen_k_most, at.features) == (
        3,
        24,
        300,
        500,
        1 | 64 | 128,
    )
    steps = (ctypes.c_int64 * 7)()
    stub.stub_ampere_steps(steps)
    assert list(steps) == [300 * 256, 64, 256, 500 * 128, 64, 128, 64]
    lse = Device(2, 4, 300, dtype="fp32")
    made = {"dq": Device(2, 300, 4, 64), "dk": Device(2, 500, 2, 64), "dv": Device(2, 500, 2, 64)}
    library.fmha_bwd(q, q, k, k, out, lse, **made, causal=True)
    assert (number("stages").value, number("together").value, number("maps").value) == (3, 1, 0)
    at = backward_row()
    assert (at.query_tiles, at.key_tiles, at.head_tiles, at.shift, at.features) == (3, 4, 3, 200, 1 | 2 | 128)
    stub.stub_backward_steps(steps)
    assert list(steps) == [300 * 256, 64, 256, 500 * 128, 64, 128, 500 * 128]
    lengths = {"seqlen_q": ints(7, 300), "seqlen_k": ints(1, 0)}
    library.fmha_bwd(q, q, k, k, out, lse, **made, **lengths)
    at = backward_row()
    assert (at.rows_q, at.rows_k, at.head_tiles, at.dq_batch, at.features & 8) == (300, 1, 6, 0, 8)
    stub.stub_backward_steps(steps)
    assert list(steps) == [0, 64, 256, 499 * 128, 64, 128, 499 * 128]


def later_chip(library: tk.Library) -> None:
    """A chip that no target names runs the PTX that sm_80's kernels hold."""
    number("major").value = 12
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    library.fmha_fwd(q, q, q, out=out)
    assert ctypes.c_char_p(ctypes.addressof(ctypes.c_char.in_dll(stub, "stub_name"))).value == b"fmha_fwd_ampere"


def early_chip(library: tk.Library) -> None:
    number("major").value = 7
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    said = refused(lambda: library.fmha_fwd(q, q, q, out=out), tk.NoKernelError)
    assert "which this machine has not (cuda:0 has compute capability 7.0, must have 8.0 or more)" in said, said
    assert "this builds it" not in said


def backward_row() -> Any:
    from tools.gpu import driver

    structure = driver.structure("kernels/attention/fmha_bwd/dq_dk_dv/cuda/params.h", "Params")
    assert ctypes.sizeof(structure) <= stub.stub_backward_row_bytes() < ctypes.sizeof(structure) + 128
    return structure.in_dll(stub, "stub_backward_row")


def backward(library: tk.Library) -> None:
    """Three stages of one module, the second of blocks that are resident together; memory goes back."""
    q, k, lse = Device(2, 300, 4, 64), Device(2, 200, 2, 64), Device(2, 4, 300, dtype="fp32")
    arrays = {"dout": q, "q": q, "k": k, "v": k, "out": q, "lse": lse}
    made = {"dq": Device(2, 300, 4, 64), "dk": Device(2, 200, 2, 64), "dv": Device(2, 200, 2, 64)}
    for _ in range(2):
        library.fmha_bwd(**arrays, **made, causal=True, softmax_scale=0.25)
    assert (number("stages").value, number("together").value, number("modules").value) == (6, 2, 1)
    assert (number("allocated").value, number("waits").value) == (0, 0)
    at = backward_row()
    assert (at.batch, at.nhead_q, at.shares, at.seqlen_q_most, at.seqlen_k_most) == (2, 4, 2 * at.key_shares, 300, 200)
    assert (at.hdim_q, at.hdim_v, at.query_tiles, at.key_tiles) == (64, 64, 3, 2)
    assert (at.left, at.right, at.shift, at.features) == (1 << 29, 0, -100, 1 | 2 | 128)
    assert (at.softmax_scale, at.keep_scale) == (0.25, 1)
    assert (at.dq, at.dq_batch, at.dq_head, at.dq_row) == (made["dq"].array.ctypes.data, 300 * 256, 64, 256)
    assert (at.dk_batch, at.dk_head, at.dk_row) == (200 * 128, 64, 128)
    assert at.key_shares == 1
    need = library.fmha_bwd_workspace_size(**arrays, **made, causal=True)
    assert need >= 2 * 4 * 3 * 8192 * 4  # the sums of dq, a slot a head
    said = refused(lambda: library.fmha_bwd(**arrays, **made, deterministic=True, workers=133))
    assert said == "workers: was 133, must be at most 132 on cuda:0, its multiprocessors"
    library.fmha_bwd(**arrays, **made, deterministic=True, workers=3)
    assert number("launches").value == 9
    said = refused(lambda: library.fmha_bwd(**arrays, **made, softmax_scale=-1.0))
    assert said == "softmax_scale: was -1, must be above 0 on cuda"
    heads, keys = Device(1, 2048, 16, 64), Device(1, 2048, 1, 64)  # too few key heads for 132 multiprocessors
    few = {"dout": heads, "q": heads, "k": keys, "v": keys, "out": heads, "lse": Device(1, 16, 2048, dtype="fp32")}
    few |= {"dq": Device(1, 2048, 16, 64), "dk": Device(1, 2048, 1, 64), "dv": Device(1, 2048, 1, 64)}
    launches = number("launches").value
    library.fmha_bwd(**few)
    at = backward_row()
    assert (at.shares, at.key_shares, at.key_tiles) == (8, 8, 16)
    assert number("launches").value == launches + 4  # a kernel of its own sums the shares
    assert library.fmha_bwd_workspace_size(**few) >= 2 * 8 * 2048 * 64 * 4  # their dk and dv in fp32
    none = Device(2, 0, 4, 64)
    empty = {**arrays, "dout": none, "q": none, "out": none, "lse": Device(2, 4, 0, dtype="fp32")}
    sink, d_sink = Device(4, dtype="fp32", fill=1), Device(4, dtype="fp32", fill=7)
    library.fmha_bwd(**empty, dq=Device(2, 0, 4, 64), dk=made["dk"], dv=made["dv"], sink=sink, d_sink=d_sink)
    assert not d_sink.array.any()
    assert number("launches").value == 14  # dk and dv are 0, which the second stage writes


def backward_sequences(library: tk.Library) -> None:
    """Packed sequences that the host reads, and that it does not; those of batch mode, of one row too."""
    q, k, lse = Device(60, 4, 64), Device(90, 2, 64), Device(4, 60, dtype="fp32")
    arrays = {"dout": q, "q": q, "k": k, "v": k, "out": q, "lse": lse}
    made = {"dq": Device(60, 4, 64), "dk": Device(90, 2, 64), "dv": Device(90, 2, 64)}
    starts = {"cu_seqlens_q": ints(0, 20, 60), "cu_seqlens_k": ints(0, 50, 90)}
    library.fmha_bwd(**arrays, **made, **starts)
    at = backward_row()
    assert (at.seqlen_q_most, at.seqlen_k_most, at.head_tiles, at.dq_batch, at.lse_batch) == (40, 50, 2, 0, 0)
    assert at.features & 8
    number("capturing").value = 1
    library.fmha_bwd(**arrays, **made, **starts, max_seqlen_q=45, max_seqlen_k=60)
    at = backward_row()
    assert (at.seqstart_q, at.seqlen_q) == (starts["cu_seqlens_q"].array.ctypes.data, 0)
    assert (at.seqlen_q_most, at.seqlen_k_most) == (45, 60)
    assert (number("allocated").value, number("host_steps").value) == (0, 0)
    said = refused(lambda: library.fmha_bwd(**arrays, **made, **starts))
    assert said.startswith("stream: was being captured into a graph, must not be while the host reads cu_seqlens"), said
    number("capturing").value = 0
    rows, starts = 8192 + 63, {name: ints(0, *range(8192, 8192 + 64)) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    heads, keys, lse = Device(rows, 32, 64), Device(rows, 1, 64), Device(32, rows, dtype="fp32")
    skewed = {"dout": heads, "q": heads, "k": keys, "v": keys, "out": heads, "lse": lse, **starts}
    skewed |= {"dq": Device(rows, 32, 64), "dk": Device(rows, 1, 64), "dv": Device(rows, 1, 64)}
    # Sums of shares are by the longest sequence: of 64 of which one is long they would be 64 times what is read.
    assert library.fmha_bwd_workspace_size(**skewed, causal=True) < 2**28 + 4 * rows * 32 * 64 * 4
    one = Device(2, 1, 2, 64)
    q, lse = Device(2, 20, 2, 64), Device(2, 2, 20, dtype="fp32")
    lengths = {"seqlen_q": ints(7, 20), "seqlen_k": ints(1, 0)}
    library.fmha_bwd(q, q, one, one, q, lse, dq=Device(2, 20, 2, 64), dk=one.twin(), dv=one.twin(), **lengths)
    at = backward_row()
    assert (at.seqstart_q, at.rows_q, at.rows_k, at.dq_batch, at.lse_batch) == (0, 20, 1, 0, 2 * 20 - 20)


def launcher(library: tk.Library) -> None:
    """A workspace prepared in stream order over pinned memory that outlives the launcher, and is given back."""
    shape = {"hdim_q": 64, "hdim_v": 64, "nhead_q": 4, "nhead_k": 2, "batch": 2, "seqlen_q": 60, "seqlen_k": 50}
    problem = {"library": library, "dtype": "bf16", "mode": "group", "device": (2, 0), **shape}
    made: Any = tk.BackwardLauncher(**problem, max_seqlen_q=40)
    workspace = Device(made.workspace_size, dtype="uint8")
    stream = tk.Stream(device=(2, 0), native=0x77)
    starts_q, starts_k = ints(0, 20, 60), ints(0, 50, 90)
    made.prepare(workspace, starts_q, starts_k, stream=stream)
    assert workspace.array[:24].view(np.int32).tolist() == [0, 20, 60, 0, 50, 90]
    assert number("host_steps").value == 2
    q, k, lse = Device(60, 4, 64), Device(90, 2, 64), Device(4, 60, dtype="fp32")
    arrays = {"dout": q, "q": q, "k": k, "v": k, "out": q, "lse": lse, "workspace": workspace}
    arrays |= {"dq": Device(60, 4, 64), "dk": Device(90, 2, 64), "dv": Device(90, 2, 64)}
    made.run(**arrays, seqstart_q=starts_q, seqstart_k=starts_k, stream=stream)
    at = backward_row()
    assert at.seqstart_q == workspace.array.ctypes.data  # what was prepared counts
    assert at.dq_sums >= workspace.array.ctypes.data + 4096
    stream.synchronize()
    made.prepare(workspace, ints(0, 20, 10), starts_k, stream=stream)
    said = refused(stream.synchronize)
    assert said == "seqstart_q: must not decrease, but entry 2 is 10 after 20"
    assert not workspace.array[:24].any()
    stream.synchronize()  # told once
    assert refused(lambda: made.prepare(workspace, ints(0, 20, 10), starts_k)) == said
    number("capturing").value = 1
    said = refused(lambda: made.prepare(workspace, starts_q, starts_k, stream=stream))
    assert "was being captured into a graph, must not be by steps over memory of the host that run once" in said, said
    number("capturing").value = 0
    host = tk.BackwardLauncher(**{**problem, "device": (1, 0)})
    said = refused(lambda: host.prepare(workspace, starts_q, starts_k))
    assert said == "workspace: device was cuda:0, must be cpu"
    said = refused(lambda: tk.BackwardLauncher(**{**problem, "device": "cuda"}))
    assert said == "device: was 'cuda', must be (type, id) as __dlpack_device__() gives it"
    refused(lambda: tk.BackwardLauncher(**{**problem, "device": (13, 0)}), tk.NoKernelError)
    made = None
    deadline = time.monotonic() + 30
    while number("pinned").value > 0:  # the releaser has a thread of its own
        assert time.monotonic() < deadline
        time.sleep(0.005)


if __name__ == "__main__":
    globals()[sys.argv[2]](tk.load(sys.argv[1]))
