# SPDX-License-Identifier: MIT
"""Bounds of a kernel's speed without hardware, from the exact instruction mix of its main loop.

The executor counts what a wave executes for each key tile; published issue costs turn that into cycles. `overlapped`
is the share of the matrix peak with everything else hidden under matrix products as far as it fits, `serial` the
share when nothing overlaps. Both are upper bounds in practice: stalls, caches, clocks and conflicts are not in them.
Everything here is emulated (functional), never run on AMD silicon.

Sources of costs: AMD's matrix instruction calculator and llvm-mca 22 for MFMA, peak FLOP per clock and CU for WMMA;
VALU 4 cycles for a wave of 64 (CDNA), 1 for one of 32 (RDNA); transcendentals four times that; LDS 128 bytes a clock.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from tools.executor.amdgcn.code_object import llvm_tool, wave_size

LABEL = "emulated (functional), never run on AMD silicon"
LEAST_OVERLAPPED = 0.75  # of the matrix peak, from head dim 128 on
WORSE = 0.02  # how much worse than recorded a figure may be

# Cycles on one SIMD of one matrix instruction, by architecture and the shape in its name; of 8 bits where they differ.
MATRIX_CYCLES = {
    "gfx90a": {"32x32x8": 64, "16x16x16": 32},
    "gfx942": {"32x32x8": 32, "16x16x16": 16, "32x32x16": 32},
    "gfx950": {"32x32x16": 32, "16x16x32": 16},
    "gfx1100": {"16x16x16": 32},
    "gfx1201": {"16x16x16": 16, "16x16x16_fp8_fp8": 8},
}
VALU_CYCLES = {64: 4, 32: 1}  # by wave size
LDS_BYTES_PER_CLOCK = 128
LDS_OF_CU = {"gfx950": 163840, "": 65536}
LDS_OF_WGP = 131072
SIMDS = {64: 4, 32: 2}  # that share an LDS's 128 bytes
SIZES = {"b128": 16, "b96": 12, "b64": 8, "b32": 4, "b16": 2, "u16": 2, "b8": 1, "u8": 1}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Cycles are those of one wave and one key tile."""

    matrix: float
    valu: float
    transcendental: float
    lds: float
    serial: float  # shares of the matrix peak, 0 to 1
    overlapped: float
    vgprs: int
    spills: int
    lds_bytes: int
    waves_per_simd: int

    def rounded(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in dataclasses.asdict(self).items()}

    def sentence(self) -> str:
        return (
            f"matrix {self.matrix:.0f}, VALU {self.valu:.0f}, transcendental {self.transcendental:.0f}, "
            f"LDS {self.lds:.0f} cycles; serial {self.serial:.0%}, overlapped <= {self.overlapped:.0%} of the matrix "
            f"peak; {self.vgprs} VGPRs, {self.spills} spilled, {self.lds_bytes} bytes of LDS, "
            f"{self.waves_per_simd} waves a SIMD; {LABEL}"
        )


def kind(mnemonic: str) -> str:
    """matrix, transcendental, valu, lds or other."""
    if "mfma" in mnemonic or "wmma" in mnemonic:
        return "matrix"
    if re.match(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_", mnemonic):
        return "transcendental"
    return "valu" if mnemonic.startswith("v_") else "lds" if mnemonic.startswith("ds_") else "other"


def lds_bytes(mnemonic: str, lanes: int) -> int:
    """Bytes that an LDS instruction of a whole wave moves."""
    size = next((size for name, size in SIZES.items() if name in mnemonic), 4)
    return size * lanes * (2 if re.search(r"(read|write)2|2addr", mnemonic) else 1)


def matrix_cycles(architecture: str, mnemonic: str) -> int:
    """Raises KeyError for a product whose cycles nobody looked up."""
    shape = re.search(r"\d+x\d+x\d+", mnemonic)
    known = MATRIX_CYCLES[architecture]
    of_kind = next((cycles for name, cycles in known.items() if shape and mnemonic.endswith(name)), None)
    return of_kind or known[shape.group() if shape else mnemonic]


def notes(path: str | os.PathLike[str]) -> dict[str, int]:
    """The metadata of a code object of one kernel: vgpr_count, vgpr_spill_count, group_segment_fixed_size, ..."""
    command = [llvm_tool("llvm-readelf"), "--notes", os.fspath(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)$", text, re.M)}


def waves_per_simd(architecture: str, vgprs: int, lds: int, waves: int) -> int:
    """Number of waves that fit a SIMD by registers and LDS, for a kernel of `waves` a workgroup."""
    if wave_size(architecture) == 64:
        by_registers = 512 // max(8, -(-vgprs // 8) * 8)
        by_lds = LDS_OF_CU.get(architecture, LDS_OF_CU[""]) // max(1, lds) * waves // 4
        return max(1, min(8, by_registers, by_lds))
    by_registers = 1536 // max(24, -(-vgprs // 24) * 24)
    return max(1, min(16, by_registers, LDS_OF_WGP // max(1, lds) * waves // 4))


def figures(architecture: str, mix: Mapping[str, float], metadata: Mapping[str, int], waves: int) -> Figures:
    """mix: executions of each mnemonic for one wave and one key tile; metadata: of `notes`.

    A VOPD pair counts as two instructions, which is too much at worst.
    """
    lanes = wave_size(architecture)
    cycle = VALU_CYCLES[lanes]
    matrix = sum(n * matrix_cycles(architecture, name) for name, n in mix.items() if kind(name) == "matrix")
    products = sum(n for name, n in mix.items() if kind(name) == "matrix")
    valu = cycle * sum(n for name, n in mix.items() if kind(name) == "valu")
    transcendental = 4 * cycle * sum(n for name, n in mix.items() if kind(name) == "transcendental")
    moved = sum(n * lds_bytes(name, lanes) for name, n in mix.items() if kind(name) == "lds")
    lds = moved * SIMDS[lanes] / LDS_BYTES_PER_CLOCK
    vgprs, spilled, held = (metadata[k] for k in ("vgpr_count", "vgpr_spill_count", "group_segment_fixed_size"))
    return Figures(
        matrix,
        valu,
        transcendental,
        lds,
        serial=matrix / (matrix + valu + transcendental),
        overlapped=matrix / max(matrix, valu + transcendental + cycle * products, lds),
        vgprs=vgprs,
        spills=spilled,
        lds_bytes=held,
        waves_per_simd=waves_per_simd(architecture, vgprs, held, waves),
    )


def mix(
    before: Mapping[str, tuple[int, int]],
    short: Mapping[str, tuple[int, int]],
    long: Mapping[str, tuple[int, int]],
    parts: int,
) -> dict[str, float]:
    """Executions for one of `parts` equal parts by which the second of two runs is longer than the first.

    before, short, long: CodeObject.coverage() before the first, between them and after the second.
    """
    found = {}
    for name, (count, _) in long.items():
        middle = short.get(name, (0, 0))[0]
        more = (count - middle) - (middle - before.get(name, (0, 0))[0])
        if more:
            found[name] = more / parts
    return found


def failures(now: Figures, recorded: Mapping[str, Any] | None, hdim: int) -> list[str]:
    """Reasons why a kernel may not pass; `exception` of its record allows the fields that it names, with a reason."""
    allowed = (recorded or {}).get("exception", {})
    found = []
    if now.spills and "spills" not in allowed:
        found.append(f"spills: was {now.spills}, must be 0")
    if hdim >= 128 and now.overlapped < LEAST_OVERLAPPED and "overlapped" not in allowed:
        found.append(f"overlapped: was {now.overlapped:.3f}, must be at least {LEAST_OVERLAPPED}")
    if recorded is None:
        return [*found, "no figures are recorded: was none, must be recorded once"]
    for name, value in now.rounded().items():
        was = recorded[name]
        better_if_more = name in ("serial", "overlapped", "waves_per_simd")
        worse = value < was * (1 - WORSE) if better_if_more else value > was * (1 + WORSE)
        if worse and name != "matrix":
            found.append(f"{name}: was {value}, must be {'at least' if better_if_more else 'at most'} {was} within 2 %")
        if name == "matrix" and value != was:
            found.append(f"matrix: was {value}, must be {was}: the same products for the same tile")
    return found
