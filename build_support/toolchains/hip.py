# SPDX-License-Identifier: MIT
"""Kernels of HIP targets, compiled ahead by clang 22 without ROCm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..toolchain import ToolchainError
from . import code_object
from .launching import compile_engine, join_engines

__all__ = ["compile_engine", "compile_kernel", "join_engines"]  # of a KernelToolchain

if TYPE_CHECKING:
    from codegen.emit.generated import Engine

    from ..graph import Graph

LLVM = "22"  # whose code the executor has decoded and the gates have measured
DTYPES: Mapping[str, Sequence[str]] = {
    "bf16": (),
    "fp16": ("-DTILEKILN_FP16",),
    "fp32": ("-DTILEKILN_FP16", "-DTILEKILN_FP32"),
    "any": ("-DTILEKILN_FP16",),
    "fp8bf16": ("-DTILEKILN_FP16", "-DFP8=1"),
    "fp8fp32": ("-DTILEKILN_FP16", "-DFP8=2"),
    "fp8fnuzbf16": ("-DTILEKILN_FP16", "-DFP8=1", "-DFNUZ=1"),
    "bf8fnuzbf16": ("-DTILEKILN_FP16", "-DFP8=1", "-DFNUZ=2"),
}
HERE = "build_support/toolchains"
NEED = 250 << 20  # bytes of memory that one compiler takes


class Clang(NamedTuple):
    path: str
    version: str  # the first line of --version: what it makes differs between versions of one number
    lld: str  # empty: it has none beside it


def find_clang() -> str:
    """The path of the compiler. ToolchainError."""
    return find().path


@cache
def find() -> Clang:
    """$HIP_CLANG, clang-22, or ROCm's clang of that version. ToolchainError."""
    named = os.environ.get("HIP_CLANG")
    for place in [named] if named else [f"clang-{LLVM}", "/opt/rocm/llvm/bin/clang"]:
        clang = shutil.which(place)
        if clang is None:
            continue
        said = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"clang version (\d+)", said)
        if version is not None and version.group(1) == LLVM:
            beside = re.search(r"^InstalledDir: (.*)$", said, re.MULTILINE)
            lld = os.path.join(beside.group(1), "lld") if beside else ""
            return Clang(clang, said.partition("\n")[0], lld if os.access(lld, os.X_OK) else "")
        if named:
            have = version.group(1) if version else "unknown"
            raise ToolchainError(f"HIP_CLANG: {clang} is of version {have}, must be of {LLVM}")
    if named:
        raise ToolchainError(f"HIP_CLANG: was {named}, must be a compiler: clang {LLVM}")
    raise ToolchainError(
        f"clang {LLVM} is not installed: apt install clang-{LLVM} lld-{LLVM} llvm-{LLVM}, or name it in HIP_CLANG"
    )


def flags(
    source: str, target_flags: Sequence[str], dtype: str, defines: Mapping[str, int], include: Sequence[str]
) -> list[str]:
    """Words of clang's command, up to -o. No path of the machine is among them, so none gets into the code object."""
    words = ["-x", "hip", "--cuda-device-only", *target_flags, "-std=c++20", "-nogpulib", "-nogpuinc", "-O3"]
    words += ["-ffast-math", "-fno-finite-math-only", "-fuse-ld=lld", "--no-gpu-bundle-output", "-fuse-cuid=none"]
    words += ["-Wall", "-Wextra", "-Werror", *(f"-I{path}" for path in include)]
    return [*words, *(f"-D{name}={value}" for name, value in defines.items()), *DTYPES[dtype], "-c", source]


def compile_kernel(
    graph: Graph, engine: Engine, place: str, instances: Sequence[str], held: Sequence[Engine] = ()
) -> Any:
    """The object of a code object."""
    from codegen.emit import kernels
    from codegen.schema.tree import tree

    from ..jobs import OUT, Job

    target = tree().target(engine.target)
    kernel = kernels.named(tree(), engine.target, engine.kernel)
    fixed = engine.codes >= 0
    name = f"{kernel.name}-{engine.codes:x}" if fixed else kernel.name
    include = list(graph.include) if fixed else [graph.at(".")]  # the generated header of a family unpacks a signature
    defines = {**kernel.file.define, **({"TILEKILN_CODES": engine.codes} if fixed else {})}
    compiler = flags(graph.at(engine.source), target.flags, kernel.dtype, defines, include)
    lds = str(target.limits["lds_bytes"])
    limits = " ".join(f"{name}={most}" for name, most in target.limits.items())
    launcher, clang = graph.request.launcher, find()
    job = Job(
        "compile",
        f"{name} for {engine.target}",
        [[graph.at(f"{HERE}/code_object.py"), OUT, name, engine.symbol, engine.target, lds, "--", *compiler]],
        identity=f"{clang.version} {limits}",
        instances=instances,
        launcher=(sys.executable,),  # neither its place nor clang's is in a signature
        unsigned=[*(["--lld", clang.lld] if clang.lld and not launcher else []), "--run", *launcher, clang.path],
        inside=code_object.make,
        need=NEED,
    )
    node = graph.step(f"{place}/{engine.target}/{name}.o", job, (engine.source,), scan=True)
    for script in ("code_object.py", "cubin.py"):
        graph.env.Depends(node, graph.env.File(graph.node_path(f"{HERE}/{script}")))
    return node
