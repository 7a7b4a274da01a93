# SPDX-License-Identifier: MIT
"""The HIP runtime by ctypes, and arrays in a GPU's memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from tests.python.device_arrays import OnDevice

TO_DEVICE, TO_HOST = 1, 2  # hipMemcpyKind
ROCM = 10  # DLPack's kDLROCM


class HipError(Exception):
    """An error of the runtime, as a sentence."""


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
    """The runtime's name of device 0."""
    text = ctypes.create_string_buffer(256)
    ask("hipDeviceGetName", text, ctypes.c_int(len(text)), ctypes.c_int(0))
    return text.value.decode()


def version() -> str:
    """Of the runtime, "7.1.25424"."""
    number = ctypes.c_int()
    ask("hipRuntimeGetVersion", ctypes.byref(number))
    return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}.{number.value % 100_000}"


class DeviceArray(OnDevice):
    kind = ROCM

    def taken(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        ask("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def giving_back(self) -> Callable[[ctypes.c_void_p], Any]:
        return runtime().hipFree  # type: ignore[no-any-return]

    def to_device(self, source: ctypes.c_void_p) -> None:
        ask("hipMemcpy", self.pointer, source, ctypes.c_size_t(self.bytes), ctypes.c_int(TO_DEVICE))

    def to_host(self, to: ctypes.c_void_p) -> None:
        ask("hipMemcpy", to, self.pointer, ctypes.c_size_t(self.bytes), ctypes.c_int(TO_HOST))
