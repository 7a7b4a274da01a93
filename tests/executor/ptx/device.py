"""The CUDA driver by ctypes, and arrays in its memory that say by DLPack where they are."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import numpy as np

from tests.python.capsules import Exported

CUDA = 2  # DLPack's kDLCUDA
CODES = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32), "uint8": (1, 8), "int8": (0, 8)}
CODES |= {
    "float8_e4m3fn": (10, 8),
    "int64": (0, 64),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "bool": (6, 8),
}


@cache
def driver() -> ctypes.CDLL:
    """cudasim's, or a GPU's; the primary context, which libraries of Tilekiln use, is this thread's from then on."""
    found = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert found.cuInit(0) == 0
    assert found.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert found.cuCtxPushCurrent_v2(context) == 0
    return found


def device_name() -> str:
    text = ctypes.create_string_buffer(256)
    ask("cuDeviceGetName", text, ctypes.c_int(len(text)), ctypes.c_int(0))
    return text.value.decode()


def ask(name: str, *arguments: Any) -> None:
    result = getattr(driver(), name)(*arguments)
    assert result == 0, f"{name}: {result}"


def plain(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


class DeviceArray:
    """A copy of an array on device 0, with its strides, gaps included; they must not be negative. Freed with it."""

    def __init__(self, array: np.ndarray) -> None:
        self.like = array
        steps = [stride // array.itemsize for stride in array.strides]
        span = sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) + 1 if array.size else 0
        self.bytes = span * array.itemsize
        self.pointer = ctypes.c_uint64()
        ask("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(max(16, self.bytes)))
        self.free = weakref.finalize(self, driver().cuMemFree_v2, self.pointer)
        if span:
            flat = np.lib.stride_tricks.as_strided(plain(array), (span,), (array.itemsize,)).copy()
            ask("cuMemcpyHtoD_v2", self.pointer, ctypes.c_void_p(flat.ctypes.data), ctypes.c_size_t(self.bytes))
        code, bits = CODES[array.dtype.name]
        self.exported = Exported(array, device_type=CUDA, code=code, bits=bits, data=self.pointer.value)
        for index, step in enumerate(steps):
            self.exported.managed.tensor.strides[index] = step

    def host(self) -> np.ndarray:
        """What it holds now, with the shape and strides of the array that it was made from."""
        like = self.like
        flat = np.empty(self.bytes // like.itemsize, plain(like).dtype)
        if flat.size:
            ask("cuMemcpyDtoH_v2", ctypes.c_void_p(flat.ctypes.data), self.pointer, ctypes.c_size_t(self.bytes))
        return np.lib.stride_tricks.as_strided(flat, like.shape, like.strides).view(like.dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0
