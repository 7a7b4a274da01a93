# SPDX-License-Identifier: MIT
"""Compiles the kernels of kernels/backends/cuda/builds.yaml and holds the cubins against their gates. Needs no GPU."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tools.gpu import sass

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / "kernels" / "backends" / "cuda"
FIRST = "cuda-sm90a"


class GpuError(Exception):
    """Something that the user must hear, as one sentence or a list of failures."""


@dataclass(frozen=True)
class Build:
    """One cubin: an entry of builds.yaml and a dtype."""

    name: str
    source: str
    define: dict[str, int]
    dtype: str
    kilobytes: int  # ceilings, as builds.yaml says
    local: int = 0
    uncovered: int = 0
    arch: str = ""  # of the target. sm_80: a fatbin with its PTX, which newer GPUs compile on loading
    wgmma: bool = True  # false: mma.sync, of whose main loops nothing but local memory is held to account
    target: str = ""  # whose libraries hold it, for instances of `family` with `when`
    family: str = ""
    when: str = ""
    also: dict[str, str] = field(default_factory=dict)  # further families
    pipeline: str = ""  # whose instances alone launch it
    dtypes: tuple[str, ...] = ()
    exchanged: bool = False  # as builds.yaml says, and the target allows: bf16's PTX, of which fp16's is made

    def command(self, nvcc: Path, out: Path) -> list[str]:
        """The compiler's command line, of bf16's PTX if exchanged; no path but nvcc's own is of the machine."""
        from build_support.toolchains import nvcc as toolchain

        include = [".", "include", str(out / "include")]
        flags = toolchain.flags(self.source, self.arch, self.dtype, self.define, include, self.exchanged)
        return [str(nvcc), *flags, "-o", str(self.cubin(out))]

    @property
    def fp16_place(self) -> int:
        """Of an exchanged build of fp16: where the kernel's constant says so; else -1."""
        from build_support.toolchains import nvcc as toolchain

        made = self.exchanged and self.dtype == "fp16"
        return toolchain.build_fields(self.source, str(ROOT)).index("fp16") if made else -1

    def cubin(self, out: Path) -> Path:
        return out / f"{self.name}.{'cubin' if self.arch == 'sm_90a' else 'fatbin'}"


@cache
def declared(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def arch_of(target: str) -> str:
    return str(declared(ROOT / "kernels" / "targets" / f"{target}.yaml")["arch"])


def name_of(key: str, target: str) -> str:
    """Of the first target that holds it that of builds.yaml; of others it says which."""
    return key if target == FIRST or "ampere" in key else f"{key}_{target.rpartition('-')[2]}"


def builds(names: list[str] | None = None) -> list[Build]:
    """Every build whose name begins with one of `names`; all without names."""
    table: dict[str, dict[str, Any]] = declared(CUDA / "builds.yaml")
    from build_support.toolchains.nvcc import is_exchanged

    every = [
        Build(
            name=f"{name_of(key, target)}-{dtype}",
            dtype=dtype,
            arch=arch_of(target),
            **{**entry, "target": target, "exchanged": entry.get("exchanged", False) and is_exchanged(arch_of(target))},
        )
        for key, entry in table.items()
        for target in ([entry["target"]] if isinstance(entry["target"], str) else entry["target"])
        for dtype in entry.get("dtypes", ("bf16", "fp16"))
    ]
    chosen = [build for build in every if not names or build.name.startswith(tuple(names))]
    if not chosen:
        raise GpuError(f"names: {', '.join(names or [])}: no kernel's name begins so; there are: {', '.join(table)}")
    return chosen


def tool(name: str) -> Path:
    """nvcc or cuobjdump, as libraries' builds find them."""
    from build_support.toolchain import ToolchainError
    from build_support.toolchains import nvcc

    try:
        return nvcc.find_nvcc() if name == "nvcc" else nvcc.find_tool(name)
    except ToolchainError as error:
        raise GpuError(str(error)) from None


def find_nvcc() -> Path:
    return tool("nvcc")


def render_wgmma(out: Path) -> None:
    """include/wgmma.h of the build folder."""
    from build_support.toolchains import nvcc

    text = nvcc.wgmma_header(str(ROOT))
    (out / "include").mkdir(parents=True, exist_ok=True)
    header = out / "include" / "wgmma.h"
    if not header.exists() or header.read_text(encoding="utf-8") != text:
        header.write_text(text, encoding="utf-8")


def compile_one(build: Build, nvcc: Path, out: Path) -> dict[str, Any]:
    """Compiles one; returns what ptxas says of it. Fails on any wgmma that waits."""
    from build_support.toolchains.cubin import CubinError, compile_cubin, compile_fp16, machine_code, of_one_chip

    command, made = build.command(nvcc, out)[:-2], build.cubin(out)
    try:
        place = build.fp16_place
        said = compile_fp16(command, place, "", made, ROOT)[0] if place >= 0 else compile_cubin(command, made, ROOT)
        if of_one_chip(command):
            made.write_bytes(machine_code(made.read_bytes()))
    except CubinError as error:
        raise GpuError(f"{build.name}: {error}") from None
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", said)]
    return {"bytes": build.cubin(out).stat().st_size, "registers": registers}


def build(out: Path, names: list[str], jobs: int) -> None:
    """Compiles into `out`; a failure does not stop the others. Prints one line a kernel."""
    chosen, nvcc = builds(names), find_nvcc()
    render_wgmma(out)
    failures = []
    report = {}
    with concurrent.futures.ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        waiting = {pool.submit(compile_one, each, nvcc, out): each for each in chosen}
        try:
            for done in concurrent.futures.as_completed(waiting):
                each = waiting[done]
                try:
                    report[each.name] = done.result()
                    print(f"built {each.name:24} {report[each.name]['bytes'] // 1000:4} kB", flush=True)
                except GpuError as error:
                    failures.append(str(error))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    (out / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if failures:
        raise GpuError("\n".join(failures))


def gates(out: Path, names: list[str]) -> None:
    """Sizes and main loops of the cubins in `out`; raises with every gate that does not hold."""
    from build_support.toolchains.cubin import machine_code

    cuobjdump, failures = tool("cuobjdump"), []
    for each in builds(names):
        cubin = each.cubin(out)
        if not cubin.exists():
            failures.append(f"{each.name}: {cubin} is missing: run python tools/gpu build")
            continue
        loops = sass.main_loops(cuobjdump, cubin, sass.PRODUCTS if each.wgmma else sass.PRODUCTS_OF_WARPS)
        size, local = len(machine_code(cubin.read_bytes())) / 1000, sum(loop.local for loop in loops)
        uncovered = [loop for loop in loops if loop.covered < sass.LEAST_COVERED]
        if size > each.kilobytes:
            failures.append(f"{each.name}: the cubin has {size:.0f} kB, its ceiling is {each.kilobytes} kB")
        if local > each.local:
            failures.append(f"{each.name}: main loops access local memory {local} times, the ceiling is {each.local}")
        if not each.wgmma:
            print(f"gates {each.name:24} {size:4.0f} kB, {len(loops)} main loops: {local} local accesses", flush=True)
            continue
        if len(uncovered) > each.uncovered:
            where = ", ".join(f"{loop.begin:x}..{loop.end:x} ({loop.covered})" for loop in uncovered)
            failures.append(
                f"{each.name}: {len(uncovered)} main loops wait for a product before their softmax: {where}"
            )
        if not loops:
            failures.append(f"{each.name}: no main loop with wgmma was found")
        failures += [f"{each.name}: {fault}" for loop in loops for fault in loop.faults()]
        print(
            f"gates {each.name:24} {size:4.0f} kB, {len(loops)} main loops: {local} local accesses, "
            f"{len(uncovered)} uncovered",
            flush=True,
        )
    if failures:
        raise GpuError("\n".join(failures))
