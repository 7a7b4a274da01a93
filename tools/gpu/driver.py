# SPDX-License-Identifier: MIT
"""Cubins, tensor maps and launches through the driver API, beside PyTorch in its context.

Needs a GPU and libcuda.so.1, but to read the structs of a header.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tools.gpu.builds import GpuError

ROOT = Path(__file__).resolve().parents[2]
SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SWIZZLE_128, PROMOTE_128 = 3, 2
MAP_TYPES = {torch.float16: 6, torch.bfloat16: 9, torch.float8_e4m3fn: 0}  # CUtensorMapDataType
FAR = 1 << 30  # kFar of row.h: where the rows of a packed sequence begin


@cache
def cuda() -> ctypes.CDLL:
    torch.zeros(1, device="cuda")  # the context
    return ctypes.CDLL("libcuda.so.1")


def must(code: int, what: str) -> None:
    if code:
        said = ctypes.c_char_p()
        cuda().cuGetErrorString(code, ctypes.byref(said))
        raise GpuError(f"{what}: CUDA says {(said.value or b'?').decode()} ({code})")


class Map(ctypes.Structure):
    """A TensorMap of tensor_map.h."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


C_TYPES = {
    "TensorMap": Map,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
}


@cache
def structure(header: str, name: str) -> type[ctypes.Structure]:
    """The struct `name` of a row.h as ctypes, read from its text: one declaration a line, no expressions."""
    text = re.sub(r"//[^\n]*", "", (ROOT / header).read_text(encoding="utf-8"))
    body = re.search(rf"struct (?:alignas\(\d+\) )?{name} \{{(.*?)\n\}};", text, re.S)
    if body is None:
        raise GpuError(f"{header}: there is no struct {name}")
    fields = []
    for declaration in filter(None, (" ".join(line.split()) for line in body[1].split(";"))):
        match = re.fullmatch(r"(?:const )?(\w+)(\*?)\s+([\w, ]+)", declaration)
        if match is None or (not match[2] and match[1] not in C_TYPES):
            raise GpuError(f"{header}: {declaration!r} is no declaration that is understood")
        kind = ctypes.c_uint64 if match[2] else C_TYPES[match[1]]
        fields += [(field.strip(), kind) for field in match[3].split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields)})


def aligned(kind: type[ctypes.Structure], alignment: int = 128) -> Any:
    """A zeroed structure at an aligned address: a tensor map lies on 64 bytes at least."""
    buffer = ctypes.create_string_buffer(ctypes.sizeof(kind) + alignment)
    made = kind.from_buffer(buffer, -ctypes.addressof(buffer) % alignment)
    made.buffer = buffer
    return made


class Module:
    """A loaded cubin."""

    def __init__(self, cubin: Path) -> None:
        self.handle = ctypes.c_void_p()
        self.name = cubin.name
        must(cuda().cuModuleLoadData(ctypes.byref(self.handle), cubin.read_bytes()), cubin.name)

    def kernel(self, name: str, shared_bytes: int = 0) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        must(cuda().cuModuleGetFunction(ctypes.byref(function), self.handle, name.encode()), f"{self.name}: {name}")
        if shared_bytes > 48 << 10:
            must(cuda().cuFuncSetAttribute(function, SHARED_BYTES, shared_bytes), f"{self.name}: shared memory")
        return function

    def constant(self, name: str, kind: type[ctypes.Structure]) -> Any:
        """Value of a constant that the cubin exports."""
        address, size, value = ctypes.c_uint64(), ctypes.c_size_t(), kind()
        found = cuda().cuModuleGetGlobal_v2(ctypes.byref(address), ctypes.byref(size), self.handle, name.encode())
        must(found, f"{self.name}: {name}")
        if size.value != ctypes.sizeof(kind):
            raise GpuError(f"{self.name}: {name} has {size.value} bytes, the header says {ctypes.sizeof(kind)}")
        must(cuda().cuMemcpyDtoH_v2(ctypes.byref(value), address, size), f"{self.name}: {name}")
        return value


def launch(function: ctypes.c_void_p, grid: tuple[int, int, int], threads: int, shared_bytes: int, row: Any) -> None:
    argument = (ctypes.c_void_p * 1)(ctypes.addressof(row))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    must(cuda().cuLaunchKernel(function, *grid, threads, 1, 1, shared_bytes, stream, argument, None), "launch")


def map_rows(to: Map, tensor: torch.Tensor, rows: int) -> None:
    """The tensor map of (batch, nhead, seqlen, hdim), or packed (nhead, total, hdim); boxes of `rows` x 128 bytes."""
    size = tensor.element_size()
    if tensor.dim() == 4:
        batch, heads, seqlen, hdim = tensor.shape
        b, h, s = (stride * size for stride in tensor.stride()[:3])
        dims, strides = (hdim, seqlen, 1, batch, heads), (s, s, b, h)
    else:
        heads, _, hdim = tensor.shape
        h, s = (stride * size for stride in tensor.stride()[:2])
        dims, strides = (hdim, FAR, 2 * FAR, 2 * FAR, heads), (s, s, (1 << 34) - s, h)
    code = cuda().cuTensorMapEncodeTiled(
        ctypes.byref(to),
        MAP_TYPES[tensor.dtype],
        5,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * 5)(*dims),
        (ctypes.c_uint64 * 4)(*strides),
        (ctypes.c_uint32 * 5)(128 // size, rows, 1, 1, 1),
        (ctypes.c_uint32 * 5)(1, 1, 1, 1, 1),
        0,
        SWIZZLE_128,
        PROMOTE_128,
        0,
    )
    must(code, f"tensor map of {tuple(tensor.shape)}, strides {tuple(tensor.stride())}")


@cache
def multiprocessors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
