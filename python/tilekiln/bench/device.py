# SPDX-License-Identifier: MIT
"""Calls of `tilekiln bench` on a GPU, without a framework: NumPy's arrays move to its memory and back.

By the driver's functions (libcuda, libamdhip64), so that whatever answers by their names is timed: a GPU, or an
executor of its kernels, whose name the report then has.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._core.dtypes import CODES, NUMPY
from .._core.native import ArgumentError


class Kind(NamedTuple):
    """Names of one driver. dlpack: DLPack's number of its memory."""

    dlpack: int
    libraries: tuple[str, ...]
    """Names of it, of which the first that is there is taken."""
    start: tuple[str, ...]
    """Functions that make its device 0 this thread's; the context that CUDA's first makes goes to the others."""
    take: str
    give_back: str
    to_device: tuple[str, tuple[int, ...]]
    to_host: tuple[str, tuple[int, ...]]
    """The function, and its arguments behind the places and the bytes."""
    wait: str
    name: str


KINDS = {
    "cuda": Kind(
        2, ("libcuda.so.1",), ("cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"), "cuMemAlloc_v2", "cuMemFree_v2",
        ("cuMemcpyHtoD_v2", ()), ("cuMemcpyDtoH_v2", ()), "cuCtxSynchronize", "cuDeviceGetName",
    ),
    "hip": Kind(
        10, tuple(f"libamdhip64.so{number}" for number in (".7", ".6", ".5", "")), (), "hipMalloc", "hipFree",
        ("hipMemcpy", (1,)), ("hipMemcpy", (2,)), "hipDeviceSynchronize", "hipDeviceGetName",
    ),
}  # fmt: skip


class _Capsule(ctypes.Structure):
    """The head of a DLTensor: what says where an array is, and of which dtype."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip


_inside = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Array:
    """A copy of a NumPy array on a device, with its strides, which DLPack hands out. Freed with it."""

    def __init__(self, device: Device, array: Any) -> None:
        self.device, self.array = device, array
        low, high = np.lib.array_utils.byte_bounds(array)
        self._low, self._bytes = low, high - low if array.size else 0
        self._memory = device.taken(self._bytes)
        if self._bytes:
            device.copy(device.kind.to_device, self._memory, ctypes.c_void_p(low), self._bytes)
        self._freed = weakref.finalize(self, device.driver[device.kind.give_back], self._memory)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of its dimensions."""
        return tuple(self.array.shape)

    def host(self) -> Any:
        """The NumPy array, with what is in it now."""
        if self._bytes:
            device, where = self.device, ctypes.c_void_p(self._low)
            device.copy(device.kind.to_host, where, self._memory, self._bytes)
        return self.array

    def __dlpack__(self, **_: Any) -> Any:
        made = self.array.view(f"u{self.array.itemsize}").__dlpack__()
        head = _Capsule.from_address(_inside(made, b"dltensor"))
        head.data = (self._memory.value or 0) + (self.array.ctypes.data - self._low if self._bytes else 0)
        head.device_type, (head.code, head.bits) = self.device.kind.dlpack, CODES[self.array.dtype.name]
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.kind.dlpack, 0

    def __array_namespace__(self) -> Device:
        return self.device


def _loaded(word: str, names: tuple[str, ...]) -> ctypes.CDLL:
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise ArgumentError(f"device: was {word!r}, must be cpu: there is no {' or '.join(names)} on this machine")


class Device:
    """Device 0 of a kind; the namespace by which calls make their results, too."""

    bfloat16 = NUMPY["bf16"]

    def __init__(self, word: str) -> None:
        self.kind = KINDS[word]
        named = os.environ.get("TILEKILN_HIP_LIBRARY") if word == "hip" else None
        self.driver = _loaded(word, (named,) if named else self.kind.libraries)
        start = "cuInit" if word == "cuda" else "hipInit"
        if self.driver[start](0) != 0:
            raise ArgumentError(f"device: was {word!r}, must be cpu: {start} finds no device")
        if word == "cuda":
            context = ctypes.c_void_p()
            retain, push = self.kind.start
            self.ask(retain, ctypes.byref(context), 0)
            self.ask(push, context)

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.ask(self.kind.name, text, ctypes.c_int(len(text)), ctypes.c_int(0))
        return text.value.decode()

    def ask(self, function: str, *arguments: Any) -> None:
        status = self.driver[function](*arguments)
        if status != 0:
            raise RuntimeError(f"{function}: the driver said {status}")

    def copy(self, by: tuple[str, tuple[int, ...]], to: Any, source: Any, size: int) -> None:
        self.ask(by[0], to, source, ctypes.c_size_t(size), *by[1])

    def taken(self, size: int) -> ctypes.c_void_p:
        memory = ctypes.c_void_p()
        self.ask(self.kind.take, ctypes.byref(memory), ctypes.c_size_t(max(size, 16)))
        return memory

    def empty(self, shape: tuple[int, ...], *, dtype: Any, device: Any = None) -> Array:
        return Array(self, np.zeros(shape, dtype))

    zeros = empty

    def moved(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments with their arrays on the device."""
        return {name: Array(self, one) if isinstance(one, np.ndarray) else one for name, one in given.items()}

    def called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its NumPy arrays, by name, on the device; what it writes and gives is on the host again."""

        @functools.wraps(function)
        def call(**given: Any) -> Any:
            there = self.moved(given)
            made = function(**there)
            self.wait()
            for one in there.values():
                if isinstance(one, Array) and one.array.flags.writeable:
                    one.host()
            back = [one.host() if isinstance(one, Array) else one for one in (made if type(made) is tuple else (made,))]
            return tuple(back) if type(made) is tuple else back[0]

        return call

    def wait(self) -> None:
        """Until all that was launched has ended."""
        self.ask(self.kind.wait)

    def sample(self, function: Callable[..., Any], timed: dict[str, Any]) -> float:
        """Seconds of a call, over as many as take 5 ms: wall time to the end of the last."""
        calls, spent = 1, 0.0
        while True:
            start = time.perf_counter()
            for _ in range(calls):
                function(**timed)
            self.wait()
            spent = time.perf_counter() - start
            if spent >= 0.005:
                return spent / calls
            calls *= 2
