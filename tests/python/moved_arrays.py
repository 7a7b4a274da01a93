# SPDX-License-Identifier: MIT
"""Calls with NumPy arrays, made on a CUDA device: arrays move there and back around each call.

Gives the tests that use NumPy to a GPU, or to cudasim, which runs their kernels on the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import CODES, NUMPY

from tests.executor.ptx.device import CUDA, TARGET, ask, driver
from tests.python.capsules import Exported

COMPLEX = 5
ALIGNED = 256
"""Bytes at whose multiples an array lies as it does on the host: one that is badly aligned stays so."""


class Memory:
    """Bytes from `begin` to `end` of the host, with room before and after, and their copy on the device."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        pointer = ctypes.c_void_p()
        ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(end - begin + 2 * ALIGNED))
        weakref.finalize(self, driver().cuMemFree_v2, pointer)
        assert pointer.value is not None
        self.place = pointer.value + begin % ALIGNED

    def to_device(self) -> None:
        size = ctypes.c_size_t(self.end - self.begin)
        ask("cuMemcpyHtoD_v2", ctypes.c_void_p(self.place), ctypes.c_void_p(self.begin), size)

    def to_host(self) -> None:
        size = ctypes.c_size_t(self.end - self.begin)
        ask("cuMemcpyDtoH_v2", ctypes.c_void_p(self.begin), ctypes.c_void_p(self.place), size)


class Moved:
    """An array of the device with the shape and strides of one of the host, whose bytes `memory` has."""

    device = "that of the array"

    def __init__(self, array: np.ndarray, memory: Memory) -> None:
        self.array, self.memory = array, memory
        code, bits = (COMPLEX, array.itemsize * 8) if array.dtype.kind == "c" else CODES[array.dtype.name]
        place = memory.place + array.ctypes.data - memory.begin
        self.exported = Exported(array, device_type=CUDA, code=code, bits=bits, data=place)
        for index, stride in enumerate(array.strides):
            self.exported.managed.tensor.strides[index] = stride // array.itemsize

    def __dlpack__(self, **options: Any) -> Any:
        return self.exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __array_namespace__(self) -> Any:
        return Namespace

    def host(self) -> np.ndarray:
        """Its contents, in an array that it has made itself."""
        if self.array.size:
            self.memory.to_host()
        return self.array


class Namespace:
    bfloat16 = NUMPY["bf16"]

    @staticmethod
    def zeros(shape: tuple[int, ...], *, dtype: Any, device: Any) -> Moved:
        return moved([np.zeros(shape, dtype)])[0]

    @staticmethod
    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any) -> Moved:
        made = np.empty(shape, dtype)
        made.view(np.uint8).fill(0xC5) if made.ndim and made.size else None  # what nobody wrote shows
        return moved([made])[0]


def _bytes_of(array: np.ndarray) -> tuple[int, int]:
    begin, end = np.lib.array_utils.byte_bounds(array)
    return (begin, end) if array.size else (array.ctypes.data, array.ctypes.data)


def moved(arrays: list[np.ndarray]) -> list[Moved]:
    """On the device, where arrays share memory as they do on the host."""
    spans: list[list[int]] = []
    for begin, end in sorted(map(_bytes_of, arrays)):
        if spans and begin <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([begin, end])
    memories = [Memory(begin, end) for begin, end in spans]
    for memory in memories:
        if memory.end > memory.begin:
            memory.to_device()

    def home(array: np.ndarray) -> Memory:
        begin, end = _bytes_of(array)
        return next(one for one in memories if one.begin <= begin and end <= one.end)

    return [Moved(array, home(array)) for array in arrays]


def on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its NumPy arrays on the device; results are NumPy arrays again."""

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        values = [*positional, *named.values()]
        arrays = [x for x in values if isinstance(x, np.ndarray) and (x.dtype.name in CODES or x.dtype.kind == "c")]
        if not arrays:
            return function(*positional, **named)
        there = moved(arrays)
        of: dict[int, Any] = {id(array): other for array, other in zip(arrays, there, strict=True)}
        streams = [x for x in values if isinstance(x, tk.Stream)]
        of |= {id(stream): tk.Stream(device=(CUDA, 0), native=1) for stream in streams}  # in place of a host's queue
        given = [of.get(id(x), x) for x in values]
        made = function(*given[: len(positional)], **dict(zip(named, given[len(positional) :], strict=True)))
        for stream in streams:
            of[id(stream)].synchronize()
        for memory, writable in _written(there).items():
            if writable and memory.end > memory.begin:
                memory.to_host()
        return tuple(map(_back, made)) if isinstance(made, tuple) else _back(made)

    return call


def _written(arrays: list[Moved]) -> dict[Memory, bool]:
    """Memory whose every array may be written to."""
    found: dict[Memory, bool] = {}
    for one in arrays:
        found[one.memory] = found.get(one.memory, True) and one.array.flags.writeable
    return found


def _back(value: Any) -> Any:
    if not isinstance(value, Moved):
        return value
    return value.host()


class Library(tk.Library):
    """A library that makes calls with NumPy arrays on the device and has no kernels of the CPU."""

    def __new__(cls, path: str | os.PathLike[str]) -> Library:
        self = super().__new__(cls, path)
        for name in self.operators:
            for function in [one for one in vars(self) if one == name or one.startswith(f"{name}_")]:
                setattr(self, function, on_device(vars(self)[function]))
        return self

    def instances(self, where: str = "") -> list[tk.Instance]:
        every = super().instances(where)
        return every if not where else [one for one in every if TARGET in one.name]

    def instance_usable(self, instance: int) -> bool:
        return TARGET in self.instance_name(instance) and super().instance_usable(instance)
