# SPDX-License-Identifier: MIT
"""Arrays in the memory of a device, by functions of its runtime, that say by DLPack where they are."""

from __future__ import annotations

import abc
import ctypes
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import CODES

from tests.python.capsules import Exported


class OnDevice(abc.ABC):
    """A copy of an array on device 0, with its strides, gaps included; they must not be negative. Freed with it.

    It begins at a multiple of 256; shifted: it lies modulo 16 as the array does on the host. A kind of device says its
    number in DLPack and how memory is taken, given back and copied.
    """

    kind: ClassVar[int]

    def __init__(self, array: np.ndarray, shifted: bool = False) -> None:
        self.like = array
        steps = [stride // array.itemsize for stride in array.strides]
        span = sum((size - 1) * step for size, step in zip(array.shape, steps, strict=True)) + 1 if array.size else 0
        self.bytes = span * array.itemsize
        shift = array.ctypes.data % 16 if shifted else 0
        memory = self.taken(max(16, shift + self.bytes))
        self.free = weakref.finalize(self, self.giving_back(), memory)
        self.pointer = ctypes.c_void_p((memory.value or 0) + shift)
        if span:
            flat = np.lib.stride_tricks.as_strided(_plain(array), (span,), (array.itemsize,)).copy()
            self.to_device(ctypes.c_void_p(flat.ctypes.data))
        code, bits = CODES[array.dtype.name]
        self.exported = Exported(array, device_type=self.kind, code=code, bits=bits, data=self.pointer.value)
        for index, step in enumerate(steps):
            self.exported.managed.tensor.strides[index] = step

    @abc.abstractmethod
    def taken(self, size: int) -> ctypes.c_void_p:
        """Memory of `size` bytes."""

    @abc.abstractmethod
    def giving_back(self) -> Callable[[ctypes.c_void_p], Any]:
        """Returns the function that frees memory, after the array is gone."""

    @abc.abstractmethod
    def to_device(self, source: ctypes.c_void_p) -> None:
        """Copies `bytes` bytes of the host to `pointer`."""

    @abc.abstractmethod
    def to_host(self, to: ctypes.c_void_p) -> None:
        """Copies them back, when what was enqueued has ended."""

    def host(self) -> np.ndarray:
        """Contents now, with the shape and strides of the array that it was made from."""
        like = self.like
        flat = np.empty(self.bytes // like.itemsize, _plain(like).dtype)
        if flat.size:
            self.to_host(ctypes.c_void_p(flat.ctypes.data))
        return np.lib.stride_tricks.as_strided(flat, like.shape, like.strides).view(like.dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


def _plain(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def named_product(self: object, library: tk.Library, operator: str, arguments: dict[str, Any]) -> dict[str, int]:
    """Every second product by a kernel that callers name, where there is one: accumulate=fast, a tile, stream-K.

    As `instance` of a device of tests/cases.py.
    """
    if operator != "gemm" or "a_scale" in arguments or sum(arguments["a"].like.shape) % 2:
        return {}
    every = {one.number: one for one in library.instances("family=gemm") if library.instance_usable(one.number)}
    signature = every[library.gemm_find(**arguments)].signature
    alike = [one for one in every.values() if one.signature == signature]
    named = [one.number for one in alike if {"fast", "tiles", "stream"} & {*one.algorithm.values()}]
    return {"instance": named[sum(arguments["a"].like.shape) // 2 % len(named)]} if named else {}
