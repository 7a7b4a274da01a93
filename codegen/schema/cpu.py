# SPDX-License-Identifier: MIT
"""Features of this machine's CPU: of x86-64 in the words of __builtin_cpu_supports, of AArch64 in those of Linux.

A library asks for each by kernels/backends/cpu/x86_64.h and aarch64.h.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache

# The levels of the x86-64 psABI and their features.
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64-v2": ("popcnt", "sse4.2", "ssse3"),
    "x86-64-v3": ("popcnt", "sse4.2", "ssse3", "avx", "avx2", "bmi", "bmi2", "fma"),
    "x86-64-v4": (
        *("popcnt", "sse4.2", "ssse3", "avx", "avx2", "bmi", "bmi2", "fma"),
        *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    ),
}
# Features that /proc/cpuinfo spells differently, then those of the levels that it names and cpuid's words do not.
_CPUINFO = {
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vnni": "avx512_vnni",
}
_CPUINFO_ONLY = {"x86-64-v3": ("abm", "f16c", "movbe", "xsave"), "x86-64-v4": ("abm", "f16c", "movbe", "xsave")}
# Features that both spell alike and no level has.
_ALONE = ("avx512vbmi",)
# Tiles, of which kernels/backends/cpu/tile_permission.h asks the processor and the system together.
TILES = ("amx_tile", "amx_bf16", "amx_int8", "amx_fp16")
KNOWN = {*LEVELS, *LEVELS["x86-64-v4"], *_CPUINFO, *_ALONE, *TILES}
# Features of AArch64, in the words of /proc/cpuinfo.
KNOWN_OF_AARCH64 = {"asimddp", "asimdhp", "bf16", "i8mm"}


def known(arch: str) -> set[str]:
    """The features that a target of a machine may ask for."""
    return KNOWN_OF_AARCH64 if arch == "aarch64" else KNOWN


def features(cpuid: Iterable[str]) -> list[str]:
    """`cpuid` with every level written out, each feature once."""
    return list(dict.fromkeys(single for feature in cpuid for single in LEVELS.get(feature, (feature,))))


def has(arch: str, cpuid: Iterable[str]) -> bool:
    """Whether this machine is an `arch` ("any" is every one) whose CPU has all of `cpuid`."""
    if arch not in ("any", platform.machine()):
        return False
    wanted = list(cpuid)
    return not wanted or set(cpuinfo(wanted)) <= _flags()


def cpuinfo(cpuid: Iterable[str]) -> list[str]:
    """The flags of /proc/cpuinfo of a CPU that has all of `cpuid`, in order of their names."""
    wanted = list(cpuid)
    only = {name for feature in wanted for name in _CPUINFO_ONLY.get(feature, ())}
    return sorted({_CPUINFO.get(name, name) for name in features(wanted)} | only)


@cache
def _flags() -> frozenset[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except FileNotFoundError:  # not Linux: only targets that need no feature are known to run
        pass
    return frozenset()
