# SPDX-License-Identifier: MIT
"""Exporters with __dlpack__ that give what a test wants, made by hand of ctypes."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from typing import Any

import numpy as np


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


# A function object of our own: ctypes.pythonapi.PyCapsule_New is one for the process, and JAX declares it differently.
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def capsule(address: int, name: bytes) -> Any:
    return _new(address, name, None)


class Exported:
    """A fp32 array as an exporter; what it exports of it can be changed. Nobody but it keeps the array alive."""

    def __init__(self, array: np.ndarray, byte_offset: int = 0, **fields: Any) -> None:
        self.array = array
        shape, strides = ((ctypes.c_int64 * max(1, array.ndim))() for _ in range(2))
        shape[: array.ndim] = array.shape
        strides[: array.ndim] = [stride // 4 for stride in array.strides]
        self.managed = _Managed(
            _Tensor(array.ctypes.data - byte_offset, 1, 0, array.ndim, 2, 32, 1, shape, strides, byte_offset)
        )
        for name, value in fields.items():
            setattr(self.managed.tensor, name, value)

    def __dlpack__(self, **options: Any) -> Any:
        return _new(ctypes.addressof(self.managed), b"dltensor", None)


class Copying:
    """An exporter whose capsules are fresh copies, in pages that nobody can touch once their capsule is gone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.alive = 0

    def __dlpack__(self, **options: Any) -> Any:
        pages = mmap.mmap(-1, self.array.nbytes)
        copy = np.frombuffer(pages, self.array.dtype).reshape(self.array.shape)
        copy[...] = self.array
        self.alive += 1
        weakref.finalize(copy, self._gone, pages, copy.ctypes.data)
        return copy.__dlpack__(**options)

    def _gone(self, pages: mmap.mmap, address: int) -> None:
        self.alive -= 1
        _kept.append(pages)
        assert _protect(address, len(pages), 0) == 0


_protect = ctypes.CDLL(None).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_kept: list[mmap.mmap] = []
"""Protected pages stay mapped, so that nothing else comes to lie there."""
