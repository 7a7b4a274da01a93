# SPDX-License-Identifier: MIT
"""Attention over memory that a program takes from the runtime of a GPU itself, by ctypes: no PyTorch, no CuPy.

    python examples/devices/buffers.py hip LIBRARY     libamdhip64.so: hipMalloc, hipMemcpy, hipFree
    python examples/devices/buffers.py cuda LIBRARY    libcuda.so.1: cuMemAlloc, cuMemcpyHtoD, cuMemcpyDtoH, cuMemFree

LIBRARY holds bf16 kernels of head dim 64 for the device: tools/dev scons receipt=flash target=hip,native. Without a GPU
the executors' runtimes take the place of these two (docs/how-to/hip.md, docs/how-to/cuda.md); it ran by them alone.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import tilekiln as tk
from ml_dtypes import bfloat16


class Runtime:
    """Calls of a GPU's runtime, which raise what it answers but 0. `device`: DLPack's number of its kind."""

    def __init__(self, kind: str) -> None:
        self.hip = kind == "hip"
        self.device = 10 if self.hip else 2
        self.library = ctypes.CDLL("libamdhip64.so" if self.hip else "libcuda.so.1")
        if not self.hip:  # the driver's own calls need a context, the one that CUDA's runtime shares
            self.context = ctypes.c_void_p()
            self("cuInit", 0)
            self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
            self("cuCtxPushCurrent_v2", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: error {code}")

    def take(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()  # an int in its place would be cut to 32 bits
        self("hipMalloc" if self.hip else "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def give_back(self, pointer: ctypes.c_void_p) -> None:
        self("hipFree" if self.hip else "cuMemFree_v2", pointer)

    def copy(self, array: np.ndarray, pointer: ctypes.c_void_p, back: bool) -> None:
        """From the host to the device, or back; it waits for what was launched before."""
        host, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        to, of = (host, pointer) if back else (pointer, host)
        if self.hip:
            self("hipMemcpy", to, of, size, 2 if back else 1)
        else:
            self("cuMemcpyDtoH_v2" if back else "cuMemcpyHtoD_v2", to, of, size)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class Buffer:
    """A copy of a bf16 array on the device, which says by DLPack where it is. `with` gives its memory back."""

    def __init__(self, runtime: Runtime, array: np.ndarray) -> None:
        self.runtime, self.like, self.pointer = runtime, array, runtime.take(array.nbytes)
        runtime.copy(array, self.pointer, back=False)
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        where = self.pointer.value, runtime.device, 0
        self.tensor = DLTensor(*where, array.ndim, 4, 16, 1, self.shape)  # 4: bfloat

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.give_back(self.pointer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.runtime.device, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)

    def host(self) -> np.ndarray:
        array = np.empty_like(self.like)
        self.runtime.copy(array, self.pointer, back=True)
        return array


def main(kind: str, path: str) -> None:
    runtime, library = Runtime(kind), tk.load(path)
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, length, 2, 64)).astype(bfloat16) for length in (40, 50, 50))
    with (
        Buffer(runtime, q) as dq, Buffer(runtime, k) as dk, Buffer(runtime, v) as dv,
        Buffer(runtime, np.zeros_like(q)) as out,
    ):  # fmt: skip
        library.fmha_fwd(dq, dk, dv, out=out, causal=True)
        difference = np.abs(out.host().astype(np.float32) - tk.reference.fmha_fwd(q, k, v, causal=True)).max()
    print(f"{kind}: four buffers, causal attention of {q.shape} over 50 keys, {difference:.1e} from float64")
    assert difference < 2e-2


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("hip", "cuda"):
        sys.exit(f"usage: {sys.argv[0]} hip|cuda LIBRARY")
    main(*sys.argv[1:])
