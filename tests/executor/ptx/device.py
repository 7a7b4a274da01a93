# SPDX-License-Identifier: MIT
"""The CUDA driver by ctypes, and arrays in its memory that say by DLPack where they are."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
from tilekiln.reference import attention_problems
from tilekiln.reference.drawn import EDGES

from tests import cases
from tests.python.device_arrays import OnDevice, named_product

CUDA = 2  # DLPack's kDLCUDA
TARGET = "_cuda_sm80" if os.environ.get("TILEKILN_CUDASIM_ARCH") == "sm_80" else "_cuda_sm90a"
"""Ends the names of instances for the device that there is."""


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


class DeviceArray(OnDevice):
    kind = CUDA

    def taken(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def giving_back(self) -> Callable[[ctypes.c_void_p], Any]:
        return driver().cuMemFree_v2  # type: ignore[no-any-return]

    def to_device(self, source: ctypes.c_void_p) -> None:
        ask("cuMemcpyHtoD_v2", self.pointer, source, ctypes.c_size_t(self.bytes))

    def to_host(self, to: ctypes.c_void_p) -> None:
        ask("cuMemcpyDtoH_v2", to, self.pointer, ctypes.c_size_t(self.bytes))


class Executed(cases.Device):
    """Arrays of cudasim's device, or of a GPU."""

    edges, kernels = EDGES["executor"], TARGET
    of_attention: ClassVar = (attention_problems.EDGES["executor"], attention_problems.CUDA)

    def put(self, array: np.ndarray, written: bool) -> DeviceArray:
        return DeviceArray(array, shifted=True)

    def back(self, there: DeviceArray, like: np.ndarray) -> np.ndarray:
        return there.host()

    instance = named_product
