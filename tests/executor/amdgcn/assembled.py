# SPDX-License-Identifier: MIT
"""Kernels assembled from text: inputs in registers, some instructions, results to memory.

A body may use v0 (4 x the lane), v1 to v8 (the inputs, one 32-bit word a lane each), s8 and up. Results lie in v20 and
up.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tools.executor.amdgcn.code_object import CodeObject, llvm_tool, reads, wave_size, writes

INPUTS = 8
GFX9 = ("gfx90a", "gfx942", "gfx950")
RDNA = ("gfx1100", "gfx1201")
ALL = (*GFX9, *RDNA)

LOADS = {"gfx1201": "s_wait_loadcnt 0x0\ns_wait_dscnt 0x0\ns_wait_kmcnt 0x0", "": "s_waitcnt vmcnt(0) lgkmcnt(0)"}


def wait(architecture: str) -> str:
    """Everything outstanding has returned."""
    return LOADS.get(architecture, LOADS[""])


@dataclasses.dataclass(frozen=True)
class Snippet:
    """Instructions, and how many registers from v20 on hold what they made."""

    body: str
    results: int = 1


def _prologue(architecture: str) -> str:
    modern = architecture in RDNA
    load = "global_load_b32" if modern else "global_load_dword"
    lines = [
        "s_load_b128 s[4:7], s[0:1], 0x0" if modern else "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "v_and_b32 v0, 0x3ff, v0",
        "v_lshlrev_b32 v0, 2, v0",
        wait(architecture),
        *(f"{load} v{i + 1}, v0, s[4:5] offset:{256 * i}" for i in range(INPUTS)),
        wait(architecture),
    ]
    return "\n".join(lines)


def _stores(architecture: str, snippet: Snippet) -> str:
    """Results to memory; the output pointer in s[6:7] moves on."""
    store = "global_store_b32" if architecture in RDNA else "global_store_dword"
    lines = [f"{store} v0, v{20 + i}, s[6:7] offset:{256 * i}" for i in range(snippet.results)]
    lines += [f"s_add_u32 s6, s6, {256 * snippet.results}", "s_addc_u32 s7, s7, 0"]
    return "\n".join(lines)


def source(architecture: str, snippets: Sequence[Snippet], lds_bytes: int = 0, scratch_bytes: int = 0) -> str:
    """A whole assembly file with one kernel, `k`."""
    waves = "\n  .amdhsa_wavefront_size32 1" if architecture in RDNA else "\n  .amdhsa_accum_offset 256"
    body = "\n".join(f"{one.body}\n{wait(architecture)}\n{_stores(architecture, one)}" for one in snippets)
    return f"""
.amdgcn_target "amdgcn-amd-amdhsa--{architecture}"
.text
.globl k
.p2align 8
.type k,@function
k:
{_prologue(architecture)}
{body}
s_endpgm
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {scratch_bytes}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 256
  .amdhsa_next_free_sgpr 96{waves}
.end_amdhsa_kernel
"""


def assemble(architecture: str, text: str, place: Path) -> CodeObject:
    """The code object of an assembly file. Fails with the assembler's own message."""
    written, made, linked = place / "k.s", place / "k.o", place / "k.hsaco"
    written.write_text(text)
    assembler = [llvm_tool("llvm-mc"), "-triple=amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-filetype=obj"]
    for command in (
        [*assembler, str(written), "-o", str(made)],
        [llvm_tool("ld.lld"), "-shared", str(made), "-o", str(linked)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return CodeObject(linked, architecture)


def run(code: CodeObject, inputs: np.ndarray, results: int, waves: int = 1, **options: object) -> np.ndarray:
    """Launches one workgroup. inputs: uint32 (INPUTS, 64). Returns uint32 (results, lanes)."""
    lanes = wave_size(code.architecture)
    out = np.zeros((results, 64), np.uint32)
    code.launch("k", (1,), (waves * lanes,), [reads(inputs), writes(out)], **options)  # type: ignore[arg-type]
    return out[:, :lanes]
