# SPDX-License-Identifier: MIT
"""This machine's AMD GPUs, as Linux lists them."""

from __future__ import annotations

import glob
import re
from functools import cache

# gfx90a: major 9, minor 0, stepping 10 (LLVM, "User Guide for AMDGPU Backend": the last two digits are hexadecimal).
ARCH = re.compile(r"gfx([1-9][0-9]?)([0-9])([0-9a-f])")
NODES = "/sys/class/kfd/kfd/topology/nodes/*/properties"


def has(arch: str) -> bool:
    """Whether a device of this machine is of `arch`, a text that ARCH matches. False without the kernel's driver."""
    return arch in architectures()


@cache
def architectures(nodes: str = NODES) -> tuple[str, ...]:
    """Of each GPU, in the order of the driver; none without one."""
    found = []
    for path in sorted(glob.glob(nodes)):
        try:
            with open(path, encoding="ascii") as file:
                version = re.search(r"^gfx_target_version (\d+)$", file.read(), re.MULTILINE)
        except OSError:
            continue
        number = int(version.group(1)) if version else 0  # 0: a CPU
        if number:
            found.append(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    return tuple(found)
