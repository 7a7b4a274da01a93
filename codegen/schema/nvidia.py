# SPDX-License-Identifier: MIT
"""This machine's NVIDIA GPUs, as their driver lists them."""

from __future__ import annotations

import re
from functools import cache

# sm_80: any device from 8.0 on, as its kernels hold PTX too. sm_90a: 9.0 alone
# (CUDA C++ Programming Guide, "Feature availability").
ARCH = re.compile(r"sm_([1-9][0-9]?)([0-9])(a?)")


def has(arch: str) -> bool:
    """Whether a device of this machine runs code of `arch`, a text that ARCH matches. False without a driver."""
    match = ARCH.fullmatch(arch)
    if match is None:
        return False
    major, minor, only = int(match[1]), int(match[2]), bool(match[3])
    return any(found == (major, minor) if only else found >= (major, minor) for found in capabilities())


@cache
def capabilities() -> tuple[tuple[int, int], ...]:
    """The compute capability of each device, (major, minor); none without a driver."""
    import ctypes  # of machines that are asked alone

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count, found = ctypes.c_int(), []
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    for index in range(count.value):
        numbers = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            number = ctypes.c_int()
            if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, index) != 0:
                return ()
            numbers.append(number.value)
        found.append((numbers[0], numbers[1]))
    return tuple(found)
