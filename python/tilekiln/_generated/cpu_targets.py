# SPDX-License-Identifier: MIT
"""Targets of CPUs, the best first: made by `python -m codegen write` of kernels/targets/cpu-*.yaml."""

from __future__ import annotations

from typing import NamedTuple


class CpuTarget(NamedTuple):
    name: str
    isa: str  # what TILEKILN_ISA takes
    arch: str  # the machine: any, x86_64, aarch64
    beside: str  # the target that answers what it has no kernels for; "" where it has all
    planned: bool  # no library holds its kernels yet
    flags: list[str]  # of /proc/cpuinfo, all of which a CPU must have


def _target(lines: str) -> CpuTarget:
    name, isa, arch, beside, planned, *flags = lines.split()
    return CpuTarget(name, isa, arch, beside.strip("-"), planned == "planned", flags)


CPU_TARGETS = [
    _target(lines)
    for lines in """
cpu-neonbf16 neonbf16 aarch64 - built
  asimddp asimdhp bf16 i8mm

cpu-neon neon aarch64 - built
  asimddp asimdhp

cpu-amxfp16 amxfp16 x86_64 cpu-amx planned
  abm amx_bf16 amx_fp16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_vnni avx512bw avx512cd avx512dq avx512f
  avx512vbmi avx512vl bmi1 bmi2 f16c fma movbe popcnt sse4_2 ssse3 xsave

cpu-amx amx x86_64 cpu-avx512bf16 built
  abm amx_bf16 amx_int8 amx_tile avx avx2 avx512_bf16 avx512_vnni avx512bw avx512cd avx512dq avx512f avx512vbmi
  avx512vl bmi1 bmi2 f16c fma movbe popcnt sse4_2 ssse3 xsave

cpu-avx512bf16 avx512bf16 x86_64 - built
  abm avx avx2 avx512_bf16 avx512_vnni avx512bw avx512cd avx512dq avx512f avx512vl bmi1 bmi2 f16c fma movbe
  popcnt sse4_2 ssse3 xsave

cpu-avx512 avx512 x86_64 - built
  abm avx avx2 avx512bw avx512cd avx512dq avx512f avx512vl bmi1 bmi2 f16c fma movbe popcnt sse4_2 ssse3 xsave

cpu-avx2 avx2 x86_64 - built
  abm avx avx2 bmi1 bmi2 f16c fma movbe popcnt sse4_2 ssse3 xsave

cpu-generic generic any - built
""".strip().split("\n\n")
]
