# SPDX-License-Identifier: MIT
"""Cases of tests/cuda/test_library.py, in a process with the stub of the driver: python host_side.py LIBRARY CASE."""

from __future__ import annotations

import ctypes
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
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


def counts(names: str) -> tuple[int, ...]:
    return tuple(number(name).value for name in names.split())


def last() -> str:
    """The kernel of the last launch."""
    return numbers("name", ctypes.c_char, 64).tobytes().partition(b"\0")[0].decode()


def rows_of(kernel: str, header: str) -> Callable[[], Any]:
    """Gives what such a kernel was launched with last; kernel: as the stub names its rows."""

    def found() -> Any:
        from tools.gpu import driver

        structure = driver.structure(f"kernels/attention/{header}/cuda/params.h", "Params")
        assert ctypes.sizeof(structure) <= getattr(stub, f"stub_{kernel}_bytes")() < ctypes.sizeof(structure) + 128
        return structure.in_dll(stub, f"stub_{kernel}")

    return found


row, backward_row = rows_of("row", "fmha_fwd"), rows_of("backward_row", "fmha_bwd/dq_dk_dv")


def of(structure: Any, names: str) -> tuple[Any, ...]:
    return tuple(getattr(structure, name) for name in names.split())


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

    def __dlpack__(self, **options: object) -> object:
        return self.exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def ints(*values: int) -> Device:
    made = Device(len(values), dtype="int32")
    made.array[...] = values
    return made


def refused(
    said: str, function: Callable[..., object], *given: Any, error: type[Exception] = tk.ArgumentError, **named: Any
) -> str:
    """The text of the error with which the call ends, which is what is said; "..." there stands for any text."""
    with pytest.raises(error, match=f"(?s)^{'.*'.join(map(re.escape, said.split('...')))}$") as raised:
        function(*given, **named)
    return str(raised.value)


def for_gradients(q: tuple[int, ...], k: tuple[int, ...], **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays that a backward of q, and of k and v, of these shapes reads, and those that it makes."""
    queries, keys = Device(*q), Device(*k)
    lse = Device(*q[:-3], q[-2], q[-3], dtype="fp32")
    read = {"dout": queries, "q": queries, "k": keys, "v": keys, "out": queries, "lse": lse, **more}
    return read, {"dq": Device(*q), "dk": Device(*k), "dv": Device(*k)}


def lazily(library: tk.Library) -> None:
    """Nothing of the driver until an array is on a device; a kernel once; cubins of the dtype and head dim."""
    host = np.ones((1, 8, 2, 64), NUMPY["bf16"])
    assert np.all(library.fmha_fwd(host, host, host) == 1)
    assert number("inits").value == 0
    q, out = Device(2, 300, 4, 64), Device(2, 300, 4, 64)
    lse = Device(2, 4, 300, dtype="fp32")
    for _ in range(2):
        library.fmha_fwd(q, q, q, out=out, lse=lse, causal=True, softmax_scale=0.25)
    assert (*counts("inits modules launches"), last()) == (1, 1, 2, "fmha_fwd_hopper")
    at = row()
    assert of(at, "batch nhead_q nhead_k seqlen_q_most seqlen_k_most hdim_v") == (2, 4, 4, 300, 300, 64)
    assert of(at, "query_blocks tiles head_group left right features") == (2, 16, 8, 1 << 29, 0, 1 | 64 | 128)
    assert abs(at.score_scale_log2 - 0.25 * 1.4426950408889634) < 1e-6
    assert (at.out, at.out_batch, at.out_head, at.out_row) == (out.array.ctypes.data, 300 * 256, 64, 256)
    assert (at.lse, at.lse_batch, at.lse_head) == (lse.array.ctypes.data, 1200, 300)
    assert numbers("lengths", ctypes.c_uint64, 3, 5).tolist() == [[64, 300, 1, 2, 4]] * 3
    assert numbers("strides", ctypes.c_uint64, 3, 4).tolist() == [[512, 512, 153600, 128]] * 3
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:, 1].tolist() == [64, 128, 128]
    assert counts("grid threads") == (16, 512)
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
    host = "stream: was a queue of the host, must be a stream of cuda:0..."
    refused(host, library.fmha_fwd, q, q, q, out=out, stream=tk.Stream())
    number("capturing").value = 1
    given = row().next_tile
    library.fmha_fwd(q, q, q, out=out)
    first = row().next_tile
    library.fmha_fwd(q, q, q, out=out)
    assert len({given, first, row().next_tile}) == 3  # a captured launch keeps its counter


def capture_first(library: tk.Library) -> None:
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    number("capturing").value = 1
    said = "...was being captured into a graph at the first call on cuda:0, must have run one call before..."
    refused(said, library.fmha_fwd, q, q, q, out=out, error=RuntimeError)
    assert number("launches").value == 0


def sequences(library: tk.Library) -> None:
    """Starts and lengths reach the device, and memory goes back."""
    q, k, out = Device(60, 2, 64), Device(90, 2, 64), Device(60, 2, 64)
    starts_q, starts_k = ints(0, 20, 25, 60), ints(0, 30, 60, 90)
    library.fmha_fwd(q, k, k, out=out, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)
    starts = [[0, 20, 25], [0, 30, 60], [20, 5, 35], [30, 30, 30]]
    assert numbers("sequences", ctypes.c_int, 4, 16)[:, :3].tolist() == starts
    assert of(row(), "seqlen_q_most seqlen_k_most batch out_batch") == (35, 30, 3, 0)
    assert row().features & 2
    far = 1 << 30
    assert numbers("lengths", ctypes.c_uint64, 3, 5)[0].tolist() == [64, far, 2 * far, 2 * far, 2]
    assert numbers("strides", ctypes.c_uint64, 3, 4)[0].tolist() == [256, 256, (1 << 34) - 256, 128]
    kept = number("allocated").value
    q, k, out = Device(3, 20, 2, 64), Device(3, 30, 2, 64), Device(3, 20, 2, 64)
    library.fmha_fwd(q, k, k, out=out, seqlen_q=ints(7, 20, 0), seqlen_k=ints(30, 1, 4))
    assert numbers("sequences", ctypes.c_int, 4, 16)[2:, :3].tolist() == [[7, 20, 0], [30, 1, 4]]
    assert of(row(), "seqstart_q rows_q rows_k out_batch lse_batch") == (0, 20, 30, 0, -20)
    assert number("allocated").value == kept


def unread(library: tk.Library) -> None:
    """With max_seqlen_q and max_seqlen_k the kernel reads the caller's arrays, also in a graph."""
    q, out, starts = Device(60, 2, 64), Device(60, 2, 64), ints(0, 20, 25, 60)

    def call(**more: int) -> object:
        return library.fmha_fwd(q, q, q, out=out, cu_seqlens_q=starts, cu_seqlens_k=starts, **more)

    call(max_seqlen_q=35, max_seqlen_k=40)
    kept = counts("allocated waits")
    number("capturing").value = 1
    call(max_seqlen_q=35, max_seqlen_k=40)
    place = starts.array.ctypes.data
    for side in "qk":
        assert of(row(), f"seqstart_{side} cu_seqlens_{side} seqlen_{side}") == (place, place, 0)
    assert of(row(), "seqlen_q_most seqlen_k_most query_blocks") == (35, 40, 1)
    assert counts("allocated waits") == kept
    said = "stream: was being captured into a graph, must not be while the host reads cu_seqlens_q: give max_seqlen_q "
    refused(f"{said}and max_seqlen_k, and index arrays on cuda:0", call)
    assert counts("allocated waits") == kept


def few_queries(library: tk.Library) -> None:
    """Up to 4 queries the decode kernel answers fmha_fwd, and over many keys up to twice the heads of a key head, at
    most 16; more, and an instance by its number, the forward's.
    """
    k = Device(2, 16, 2, 64)
    for queries, family in ((1, "fmha_fwd_splitkv_"), (4, "fmha_fwd_splitkv_"), (5, "fmha_fwd_bf16_")):
        q, out = Device(2, queries, 4, 64), Device(2, queries, 4, 64)
        assert library.instance_name(library.fmha_fwd_find(q, k, k)).startswith(family)
        library.fmha_fwd(q, k, k, out=out)
        assert last().startswith("fmha_decode") == (queries < 5)
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
    assert not last().startswith("fmha_decode")


def cache(library: tk.Library) -> None:
    """Calls over a KV cache: their launches; captured where no array is read; errors."""
    q, k, v, out = Device(2, 1, 4, 64), Device(9, 16, 2, 64), Device(9, 16, 2, 64), Device(2, 1, 4, 64)
    table, lengths = Device(2, 4, dtype="int32", fill=1), ints(5, 20)
    arguments: dict[str, Any] = {"block_table": table, "seqlen_k": lengths, "out": out}
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, **arguments)
    assert (last(), *counts("launches grid allocated")) == ("fmha_decode_linear", 1, 4, 0)
    longest = {"max_seqlen_q": 1, "max_seqlen_k": 64}
    waits = number("waits").value
    number("capturing").value = 1
    library.fmha_fwd_splitkv(q, k, v, num_splits=3, **arguments, **longest)
    assert (last(), *counts("launches allocated grid early")) == ("fmha_decode_combine", 3, 0, 8, 3)
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, causal=True, window=(3, 0), **arguments, **longest)
    assert last() == "fmha_decode_linear_general"
    wide = Device(2, 9, dtype="int32", fill=1)
    wide.exported.managed.tensor.shape[1] = 4
    library.fmha_fwd_splitkv(q, k, v, num_splits=1, **arguments | {"block_table": wide}, **longest)
    from tools.gpu import driver

    decode = driver.structure("kernels/attention/fmha_fwd_splitkv/cuda/params.h", "Params")
    assert decode.in_dll(stub, "stub_decode_row").table_row == 9
    knew = Device(2, 1, 2, 64)
    library.fmha_fwd_appendkv(None, k, v, knew, knew, block_table=table, seqlen_k=lengths, max_seqlen_k=64)
    assert (last(), number("waits").value) == ("fmha_append", waits)
    refused("...stream: was being captured into a graph...", library.fmha_fwd_splitkv, q, k, v, **arguments)
    number("capturing").value = 0
    odd = [Device(2, 1, 4, 60), Device(9, 16, 2, 60), Device(9, 16, 2, 60)]
    said = "q: had a head dim of 60, must have a multiple of 8 on cuda: pad it with zeros"
    refused(said, library.fmha_fwd_splitkv, *odd, **arguments | {"out": Device(2, 1, 4, 60)})
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
        *[[256, 256, 51200, 128]] * 2,
    ]
    assert numbers("boxes", ctypes.c_uint32, 3, 5)[:, :2].tolist() == [[128, 64], [128, 128], [128, 128]]
    blocks = {"q_descale": Device(2, 4, 3, dtype="fp32")}
    blocks |= {f"{name}_descale": Device(2, 2, 2, dtype="fp32") for name in "kv"}
    library.fmha_fwd(q, k, k, out=out, **blocks)
    assert row().features & 512
    assert of(row(), "q_scales k_scales q_scale_batch k_scale_batch v_scale_batch") == (3, 2, 12, 4, 4)
    assert of(row(), "q_scale_head k_scale_head v_scale_head scale_start_q") == (3, 2, 2, 0)
    room = {name: Device(2, one.array.shape[1], 5, dtype="fp32") for name, one in blocks.items()}  # for 5 blocks
    for name, one in room.items():
        one.exported.managed.tensor.shape[2] = blocks[name].array.shape[2]
    library.fmha_fwd(q, k, k, out=out, **room)
    assert of(row(), "q_scales k_scales q_scale_head k_scale_head v_scale_head") == (3, 2, 5, 5, 5)
    assert of(row(), "q_scale_batch k_scale_batch v_scale_batch") == (20, 10, 10)
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
    assert of(row(), "scale_start_q scale_start_k") == tuple(one.array.ctypes.data for one in scales.values())
    q, k = (Device(1, rows, 1, 128, dtype="fp8") for rows in (100, 200))
    blocks = {f"{name}_descale": Device(1, 1, count, dtype="fp32") for name, count in {"q": 1, "k": 2, "v": 2}.items()}
    for array in blocks.values():  # as PyTorch exports dimensions of one entry
        array.exported.managed.tensor.strides[0] = array.exported.managed.tensor.strides[1] = 1
    library.fmha_fwd(q, k, k, out=Device(1, 100, 1, 128), **blocks)
    assert (row().q_scales, row().k_scales) == (1, 2)
    odd = Device(2, 300, 4, 120, dtype="fp8")
    said = "q: had a head dim of 120, must have a multiple of 16 on cuda: pad it with zeros"
    refused(said, library.fmha_fwd, odd, odd, odd, out=Device(2, 300, 4, 120))


def errors(library: tk.Library) -> None:
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)

    def call(**more: float) -> object:
        return library.fmha_fwd(q, q, q, out=out, **more)

    call()
    number("launch_error").value = 719
    said = "...cuda:0: fmha_fwd_d64-bf16: as the stub was told (CUDA_ERROR_LAUNCH_FAILED, 719)..."
    refused(said, call, error=RuntimeError)
    number("launch_error").value = 2
    refused("...CUDA_ERROR_OUT_OF_MEMORY...", call, error=MemoryError)
    number("launch_error").value = 0
    number("encode_error").value = 1
    refused("...cuda:0: q: as the stub was told...", call, error=RuntimeError)
    number("encode_error").value = 0
    launches = number("launches").value
    refused("softmax_scale: was -1, must be above 0 on cuda", call, softmax_scale=-1.0)
    wide = Device(1, 8, 1, 68)
    wide.exported.managed.tensor.shape[3] = 64
    floats = Device(1, 8, 1, 64, dtype="fp32")
    scons = "scons receipt=flash target=cuda-sm90a where='dtype=bf16 hdim_q=128 "
    # A target of the CPU, too, would not help fp32.
    fp32 = "...rule cuda_needs_16_bits of target cuda-sm" * 2 + "...its tensor cores multiply no fp32"
    for one, hdim, said in (
        (Device(1, 8, 1, 60), 60, "q: had a head dim of 60, must have a multiple of 8 on cuda: pad it with zeros"),
        (wide, 64, "q: a stride was 68 elements, must be a multiple of 8, 0 or more, on cuda: pass a copy"),
        (floats, 64, fp32),
        (Device(1, 8, 1, 128), 128, f"...this builds it: {scons}..."),
    ):
        made = Device(1, 8, 1, hdim, dtype="fp32" if one is floats else "bf16")
        kind = tk.NoKernelError if said.startswith("...") else tk.ArgumentError
        refused(said, library.fmha_fwd, one, one, one, out=made, error=kind)
    assert number("launches").value == launches


def other_chip(library: tk.Library) -> None:
    """sm_80 answers by its own rows, without tensor maps."""
    number("major").value = 8
    q, k, out = Device(2, 300, 4, 64), Device(2, 500, 2, 64), Device(2, 300, 4, 64)
    library.fmha_fwd(q, k, k, out=out, causal=True)
    assert (last(), *counts("launches maps grid threads")) == ("fmha_fwd_ampere", 1, 0, 24, 128)
    assert of(row(), "query_blocks tiles seqlen_q_most seqlen_k_most features") == (3, 24, 300, 500, 1 | 64 | 128)
    steps = (ctypes.c_int64 * 7)()
    stub.stub_ampere_steps(steps)
    assert list(steps) == [300 * 256, 64, 256, 500 * 128, 64, 128, 64]
    read, made = for_gradients((2, 300, 4, 64), (2, 500, 2, 64))
    library.fmha_bwd(**read, **made, causal=True)
    assert counts("stages together maps") == (3, 1, 0)
    assert of(backward_row(), "query_tiles key_tiles head_tiles shift features") == (3, 4, 3, 200, 1 | 2 | 128)
    stub.stub_backward_steps(steps)
    assert list(steps) == [300 * 256, 64, 256, 500 * 128, 64, 128, 500 * 128]
    library.fmha_bwd(**read, **made, seqlen_q=ints(7, 300), seqlen_k=ints(1, 0))
    assert of(backward_row(), "rows_q rows_k head_tiles dq_batch") == (300, 1, 6, 0)
    assert backward_row().features & 8
    stub.stub_backward_steps(steps)
    assert list(steps) == [0, 64, 256, 499 * 128, 64, 128, 499 * 128]


def later_chip(library: tk.Library) -> None:
    """A chip that no target names runs the PTX that sm_80's kernels hold."""
    number("major").value = 12
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    library.fmha_fwd(q, q, q, out=out)
    assert last() == "fmha_fwd_ampere"


def early_chip(library: tk.Library) -> None:
    number("major").value = 7
    q, out = Device(1, 64, 1, 64), Device(1, 64, 1, 64)
    said = "...which this machine has not (cuda:0 has compute capability 7.0, must have 8.0 or more)..."
    text = refused(said, library.fmha_fwd, q, q, q, out=out, error=tk.NoKernelError)
    assert "this builds it" not in text


def backward(library: tk.Library) -> None:
    """Three stages of one module, the second of blocks that are resident together; memory goes back."""
    arrays, made = for_gradients((2, 300, 4, 64), (2, 200, 2, 64))
    for _ in range(2):
        library.fmha_bwd(**arrays, **made, causal=True, softmax_scale=0.25)
    assert counts("stages together modules allocated waits") == (6, 2, 1, 0, 0)
    at = backward_row()
    assert of(at, "batch nhead_q shares seqlen_q_most seqlen_k_most") == (2, 4, 2 * at.key_shares, 300, 200)
    assert of(at, "hdim_q hdim_v query_tiles key_tiles softmax_scale keep_scale") == (64, 64, 3, 2, 0.25, 1)
    assert of(at, "left right shift features key_shares") == (1 << 29, 0, -100, 1 | 2 | 128, 1)
    assert of(at, "dq dq_batch dq_head dq_row") == (made["dq"].array.ctypes.data, 300 * 256, 64, 256)
    assert of(at, "dk_batch dk_head dk_row") == (200 * 128, 64, 128)
    need = library.fmha_bwd_workspace_size(**arrays, **made, causal=True)
    assert need >= 2 * 4 * 3 * 8192 * 4  # the sums of dq, a slot a head
    most = "workers: was 133, must be at most 132 on cuda:0, its multiprocessors"
    refused(most, library.fmha_bwd, **arrays, **made, deterministic=True, workers=133)
    library.fmha_bwd(**arrays, **made, deterministic=True, workers=3)
    assert number("launches").value == 9
    refused("softmax_scale: was -1, must be above 0 on cuda", library.fmha_bwd, **arrays, **made, softmax_scale=-1.0)
    few, of_few = for_gradients((1, 2048, 16, 64), (1, 2048, 1, 64))  # too few key heads for 132 multiprocessors
    launches = number("launches").value
    library.fmha_bwd(**few, **of_few)
    assert of(backward_row(), "shares key_shares key_tiles") == (8, 8, 16)
    assert number("launches").value == launches + 4  # a kernel of its own sums the shares
    assert library.fmha_bwd_workspace_size(**few, **of_few) >= 2 * 8 * 2048 * 64 * 4  # their dk and dv in fp32
    sink, d_sink = Device(4, dtype="fp32", fill=1), Device(4, dtype="fp32", fill=7)
    none, of_none = for_gradients((2, 0, 4, 64), (2, 200, 2, 64), sink=sink)
    library.fmha_bwd(**none, **of_none, d_sink=d_sink)
    assert not d_sink.array.any()
    assert number("launches").value == 14  # dk and dv are 0, which the second stage writes


def backward_sequences(library: tk.Library) -> None:
    """Packed sequences that the host reads, and that it does not; those of batch mode, of one row too."""
    starts = {"cu_seqlens_q": ints(0, 20, 60), "cu_seqlens_k": ints(0, 50, 90)}
    arrays, made = for_gradients((60, 4, 64), (90, 2, 64), **starts)
    library.fmha_bwd(**arrays, **made)
    assert of(backward_row(), "seqlen_q_most seqlen_k_most head_tiles dq_batch lse_batch") == (40, 50, 2, 0, 0)
    assert backward_row().features & 8
    number("capturing").value = 1
    library.fmha_bwd(**arrays, **made, max_seqlen_q=45, max_seqlen_k=60)
    assert of(backward_row(), "seqstart_q seqlen_q") == (starts["cu_seqlens_q"].array.ctypes.data, 0)
    assert of(backward_row(), "seqlen_q_most seqlen_k_most") == (45, 60)
    assert counts("allocated host_steps") == (0, 0)
    said = "stream: was being captured into a graph, must not be while the host reads cu_seqlens..."
    refused(said, library.fmha_bwd, **arrays, **made)
    number("capturing").value = 0
    rows, starts = 8192 + 63, {name: ints(0, *range(8192, 8192 + 64)) for name in ("cu_seqlens_q", "cu_seqlens_k")}
    skewed, of_skewed = for_gradients((rows, 32, 64), (rows, 1, 64), **starts)
    # Sums of shares are by the longest sequence: of 64 of which one is long they would be 64 times what is read.
    assert library.fmha_bwd_workspace_size(**skewed, **of_skewed, causal=True) < 2**28 + 4 * rows * 32 * 64 * 4
    one, of_one = for_gradients((2, 20, 2, 64), (2, 1, 2, 64), seqlen_q=ints(7, 20), seqlen_k=ints(1, 0))
    library.fmha_bwd(**one, **of_one)
    assert of(backward_row(), "seqstart_q rows_q rows_k dq_batch lse_batch") == (0, 20, 1, 0, 2 * 20 - 20)


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
    arrays, gradients = for_gradients((60, 4, 64), (90, 2, 64), workspace=workspace)
    made.run(**arrays, **gradients, seqstart_q=starts_q, seqstart_k=starts_k, stream=stream)
    at = backward_row()
    assert at.seqstart_q == workspace.array.ctypes.data  # what was prepared counts
    assert at.dq_sums >= workspace.array.ctypes.data + 4096
    stream.synchronize()
    made.prepare(workspace, ints(0, 20, 10), starts_k, stream=stream)
    said = "seqstart_q: must not decrease, but entry 2 is 10 after 20"
    refused(said, stream.synchronize)
    assert not workspace.array[:24].any()
    stream.synchronize()  # told once
    refused(said, made.prepare, workspace, ints(0, 20, 10), starts_k)
    number("capturing").value = 1
    once = "...was being captured into a graph, must not be by steps over memory of the host that run once..."
    refused(once, made.prepare, workspace, starts_q, starts_k, stream=stream)
    number("capturing").value = 0
    host = tk.BackwardLauncher(**{**problem, "device": (1, 0)})
    refused("workspace: device was cuda:0, must be cpu", host.prepare, workspace, starts_q, starts_k)
    unknown = "device: was 'cuda', must be (type, id) as __dlpack_device__() gives it"
    refused(unknown, tk.BackwardLauncher, **{**problem, "device": "cuda"})
    refused("...", tk.BackwardLauncher, **{**problem, "device": (13, 0)}, error=tk.NoKernelError)
    made = None
    deadline = time.monotonic() + 30
    while number("pinned").value > 0:  # the releaser has a thread of its own
        assert time.monotonic() < deadline
        time.sleep(0.005)


if __name__ == "__main__":
    globals()[sys.argv[2]](tk.load(sys.argv[1]))
