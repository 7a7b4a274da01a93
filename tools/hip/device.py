"""The HIP runtime by ctypes, and arrays in a GPU's memory that say by DLPack where they are. Nothing else is needed."""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from typing import Any

import numpy as np

TO_DEVICE, TO_HOST = 1, 2  # hipMemcpyKind
ROCM = 10  # DLPack's kDLROCM
CODES = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "uint8": (1, 8),
    "int8": (0, 8),
    "uint16": (1, 16),
    "uint64": (1, 64),
    "float8_e4m3fn": (10, 8),
}


class HipError(Exception):
    """What the runtime answered, as a sentence."""


@cache
def runtime() -> ctypes.CDLL:
    """The one that a library of Tilekiln finds, too (docs/how-to/hip.md). HipError where there is none."""
    named = os.environ.get("TILEKILN_HIP_LIBRARY")
    tried = []
    for name in [named] if named else [*(f"libamdhip64.so.{number}" for number in (7, 6, 5)), "libamdhip64.so"]:
        try:
            found = ctypes.CDLL(name)
        except OSError as error:
            tried.append(str(error))
            continue
        found.hipGetErrorString.restype = ctypes.c_char_p
        return found
    raise HipError(f"there is no HIP runtime: {'; '.join(tried)}")


def ask(name: str, *arguments: Any) -> None:
    """Calls a function of the runtime. HipError for what it answers but 0."""
    result = getattr(runtime(), name)(*arguments)
    if result != 0:
        raise HipError(f"{name}: {runtime().hipGetErrorString(result).decode()} ({result})")


def emulated() -> bool:
    """Whether the runtime is the one over the executor (tools/executor/hipsim)."""
    return hasattr(runtime(), "tilekiln_hipsim_architecture")


def device_name() -> str:
    """What the runtime calls device 0."""
    text = ctypes.create_string_buffer(256)
    ask("hipDeviceGetName", text, ctypes.c_int(len(text)), ctypes.c_int(0))
    return text.value.decode()


def version() -> str:
    """Of the runtime, "7.1.25424"."""
    number = ctypes.c_int()
    ask("hipRuntimeGetVersion", ctypes.byref(number))
    return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}.{number.value % 100_000}"


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class DeviceArray:
    """A copy of an array on device 0, with its strides, gaps included; they must not be negative. Freed with it."""

    def __init__(self, array: np.ndarray) -> None:
        self.like = array
        steps = [stride // array.itemsize for stride in array.strides]
        span = sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) + 1 if array.size else 0
        self.bytes = span * array.itemsize
        self.pointer = ctypes.c_void_p()
        ask("hipMalloc", ctypes.byref(self.pointer), ctypes.c_size_t(max(16, self.bytes)))
        self.free = weakref.finalize(self, runtime().hipFree, self.pointer)
        if span:
            flat = np.lib.stride_tricks.as_strided(_plain(array), (span,), (array.itemsize,)).copy()
            self._copy(self.pointer, ctypes.c_void_p(flat.ctypes.data), TO_DEVICE)
        code, bits = CODES[array.dtype.name]
        self.shape, self.strides = (ctypes.c_int64 * max(1, array.ndim))(), (ctypes.c_int64 * max(1, array.ndim))()
        self.shape[: array.ndim], self.strides[: array.ndim] = array.shape, steps
        self.managed = _Managed(
            _Tensor(self.pointer.value, ROCM, 0, array.ndim, code, bits, 1, self.shape, self.strides, 0)
        )

    def _copy(self, to: ctypes.c_void_p, source: ctypes.c_void_p, kind: int) -> None:
        ask("hipMemcpy", to, source, ctypes.c_size_t(self.bytes), ctypes.c_int(kind))

    def host(self) -> np.ndarray:
        """What it holds now, with the shape and strides of the array that it was made from."""
        like = self.like
        flat = np.empty(self.bytes // like.itemsize, _plain(like).dtype)
        if flat.size:
            self._copy(ctypes.c_void_p(flat.ctypes.data), self.pointer, TO_HOST)
        return np.lib.stride_tricks.as_strided(flat, like.shape, like.strides).view(like.dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return _capsule(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return ROCM, 0


def _plain(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")
