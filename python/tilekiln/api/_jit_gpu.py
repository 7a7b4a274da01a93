# SPDX-License-Identifier: MIT
"""Compilers of GPUs' kernels that are built just in time, and the devices that Linux lists."""

from __future__ import annotations

import glob
import os
import pathlib
import re
import sysconfig
from collections.abc import Sequence

_COMPILERS = {  # as build_support/toolchains try them
    "cuda": ("{wheels}/nvidia/cu13/bin/nvcc", "nvcc"),
    "hip": ("clang-22", "/opt/rocm/llvm/bin/clang"),
}
_DEVICES = {
    "cuda": "/proc/driver/nvidia/gpus/*/information",
    "hip": "/sys/class/kfd/kfd/topology/nodes/*/properties",
}


def compilers(target: str) -> Sequence[str]:
    """The compilers that a target's kernels are tried to be built by, in order; none of a CPU's."""
    backend = target.partition("-")[0]
    if backend not in _COMPILERS:
        return ()
    named = os.environ.get("NVCC") if backend == "cuda" else os.environ.get("HIP_CLANG")
    wheels = sysconfig.get_paths()["purelib"]
    return [named] if named else [one.format(wheels=wheels) for one in _COMPILERS[backend]]


def devices(target: str) -> str:
    """Descriptions by Linux of the GPUs that a backend's name (cuda, hip) stands for; "" of a target's own name."""
    listed = sorted(glob.glob(_DEVICES[target])) if target in _DEVICES else []
    told = (pathlib.Path(one).read_text(errors="replace") for one in listed)
    return "".join(re.findall(r"^(?:Model:|gfx_target_version ).*$", "\n".join(told), re.MULTILINE))
