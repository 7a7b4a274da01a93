# SPDX-License-Identifier: MIT
"""Kernels of CUDA, compiled ahead by nvcc of four wheels or the system's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codegen.emit.flags import HEADERS

from ..toolchain import ToolchainError
from .launching import compile_engine, join_engines

__all__ = ["compile_engine", "compile_kernel", "join_engines"]  # of a KernelToolchain

if TYPE_CHECKING:
    from codegen.emit.generated import Engine

    from ..graph import Graph

TOOLKIT = "13.0"  # the oldest driver that loads its cubins is the one of CUDA 13.0
DTYPES: Mapping[str, Sequence[str]] = {
    "bf16": (),
    "fp16": ("-DTILEKILN_FP16",),
    "fp32": ("-DTILEKILN_FP32",),
    "fp8": ("-DTILEKILN_FP8",),
    "bf8": ("-DTILEKILN_BF8",),
    "int8": ("-DTILEKILN_INT8",),
    "fp8bf16": ("-DTILEKILN_FP8",),
    "fp8fp32": ("-DTILEKILN_FP8", "-DTILEKILN_FP32"),
    "any": (),
}
PRODUCTS: Mapping[int, Mapping[str, Sequence[int]]] = {
    16: {"shared": (), "registers": (1, 2, 4)},
    32: {"shared": (), "registers": (8,)},
    64: {"shared": (4, 8), "registers": (1, 2, 4, 8)},
    80: {"shared": (4,), "registers": ()},
    96: {"shared": (), "registers": (8,)},
    112: {"shared": (4,), "registers": ()},
    128: {"shared": (2, 4, 6, 8), "registers": (1, 2, 4, 8)},
    192: {"shared": (4,), "registers": (7,)},
    256: {"shared": (4,), "registers": (4, 5)},
}
"""Columns of a product -> how many of them a statement has, the first operand in shared memory or in registers."""
WGMMA = "kernels/backends/cuda/wgmma.h.jinja"
NEED = 400 << 20  # bytes of memory that one compiler takes


def find_tool(name: str) -> Path:
    """nvcc or cuobjdump: $NVCC or $CUOBJDUMP, the wheels of `tools/dev --with cuda`, else PATH. ToolchainError."""
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin"
    named = {"nvcc": os.environ.get("NVCC"), "cuobjdump": os.environ.get("CUOBJDUMP")}
    for place in (named[name], wheels / name, shutil.which(name)):
        if place and Path(place).is_file():
            return Path(place)
    raise ToolchainError(f"{name} is not installed: use tools/dev --with cuda, or name it in {name.upper()}")


def find_nvcc() -> Path:
    nvcc = find_tool("nvcc")
    version_of(nvcc)
    return nvcc


@cache
def version_of(nvcc: Path) -> str:
    """All that it says of its version: what it makes differs between builds of one release. ToolchainError."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"release (\d+\.\d+)", said)
    if version is None or version.group(1) != TOOLKIT:
        have = version.group(1) if version else "unknown"
        raise ToolchainError(f"nvcc: {nvcc} is of CUDA {have}, must be of {TOOLKIT}: use tools/dev --with cuda")
    return said


def wgmma_header(top: str = ".") -> str:
    """The text of wgmma.h: a template over the products of a statement."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    text = Path(top, WGMMA).read_text(encoding="utf-8")
    return environment.from_string(text).render(products=PRODUCTS)


def flags(
    source: str, arch: str, dtype: str, defines: Mapping[str, int], include: Sequence[str], exchanged: bool = False
) -> list[str]:
    """Words of nvcc's command, up to -o. No path of the machine is among them, so none gets into the cubin.

    `exchanged`: PTX for fp16 is made of what these words of bf16 make.
    """
    virtual, target = arch.replace("sm", "compute"), f"-DTILEKILN_TARGET=cuda_{arch.replace('_', '')}"
    # A fatbin of the cubin and its PTX. -c means nothing more, but compiler caches look for it.
    code = f"-gencode=arch={virtual},code=[{arch},{virtual}]"
    words = ["-std=c++20", "-O3", "-c", "-fatbin", code, "-Xptxas=-v", *(f"-I{path}" for path in include), target]
    element = ["--no-compress", "-DTILEKILN_EXCHANGED"] if exchanged else DTYPES[dtype]
    return [*words, *(f"-D{name}={value}" for name, value in defines.items()), *element, source]


def is_exchanged(arch: str) -> bool:
    """Whether a target's kernels of fp16 are made of bf16's PTX, where builds.yaml says that they may be."""
    return arch.endswith("a")  # images for further chips hold PTX, and compressed


def build_fields(source: str, top: str) -> list[str]:
    """The integers of struct Build, by name and in order, as a header of a kernel's source declares them.

    Of several the one that fewest includes lead to: the others are of kernels whose parts the source takes.
    """
    waiting, seen = [source], set[str]()
    while waiting:
        path = waiting.pop(0)
        seen.add(path)
        text = re.sub(r"//[^\n]*", "", Path(top, path).read_text(encoding="utf-8"))
        found = re.search(r"struct Build \{(.*?)\};", text, re.S)
        if found:
            lines = (line.strip().removeprefix("int ").split(",") for line in found.group(1).split(";"))
            return [name.strip() for line in lines for name in line if name.strip()]
        waiting += [one for one in re.findall(r'#include "(kernels/(?!generated/)[^"]+)"', text) if one not in seen]
    raise ToolchainError(f"{source}: includes no struct Build, which says what the host must know of a kernel")


def compile_kernel(
    graph: Graph, engine: Engine, place: str, instances: Sequence[str], held: Sequence[Engine] = ()
) -> Any:
    """The object of a cubin."""
    from codegen.emit import kernels
    from codegen.schema.tree import tree

    from ..jobs import OUT, Job

    kernel = kernels.named(tree(), engine.target, engine.kernel)
    fixed = engine.codes >= 0
    name = f"{kernel.name}-{engine.codes:x}" if fixed else kernel.name
    arch, nvcc = tree().target(engine.target).arch, find_nvcc()
    exchanged = kernel.file.exchanged and not fixed and is_exchanged(arch)
    folder = f"{place}/{engine.target}/include"
    header = graph.env.File(graph.node_path(f"{folder}/wgmma.h"))
    if not header.has_builder():
        header = graph.write(f"{folder}/wgmma.h", wgmma_header(graph.env.Dir(graph.node_path(".")).abspath))
    # The generated header of a family unpacks a signature.
    include = [graph.at(path) for path in (*(graph.include if fixed else HEADERS), folder)]
    defines = {**kernel.file.define, **({"TILEKILN_CODES": engine.codes} if fixed else {})}
    compiler = flags(graph.at(engine.source), arch, kernel.dtype, defines, include, exchanged)
    limits = ",".join(f"{name}={most}" for name, most in tree().target(engine.target).limits.items())
    source = graph.env.File(graph.node_path(engine.source)).abspath  # of an operator from outside, through its link
    fields = build_fields(source, graph.env.Dir(graph.node_path(".")).abspath)
    place_of = str(fields.index("shared_bytes") if "shared_bytes" in fields else -1)
    other = f"{place}/{engine.target}/{name.replace('-fp16', '-bf16')}.o"
    if exchanged and kernel.dtype == "fp16":
        of = [one for one in held if (one.target, one.kernel) == (engine.target, kernel.name.replace("-fp16", "-bf16"))]
        always = of and set(engine.receipts) <= set(of[0].receipts)
        compiler += ["--fp16", str(fields.index("fp16")), graph.at(other), of[0].symbol if always else ""]
    job = Job(
        "compile",
        f"{name} for {engine.target}",
        [
            [
                graph.at("build_support/toolchains/cubin.py"),
                OUT,
                name,
                engine.symbol,
                engine.target,
                place_of,
                limits,
                "--",
                *compiler,
            ]
        ],
        identity=version_of(nvcc),
        instances=instances,
        launcher=(sys.executable,),  # neither its place nor nvcc's is in a signature
        unsigned=["--run", *graph.request.launcher, str(nvcc)],
        need=NEED,
        beside=".fatbin",
    )
    node = graph.step(f"{place}/{engine.target}/{name}.o", job, (engine.source,), scan=True)
    graph.env.Clean(node, graph.node_path(f"{place}/{engine.target}/{name}.o{job.beside}"))
    graph.env.Depends(node, [graph.env.File(graph.node_path("build_support/toolchains/cubin.py")), header])
    if "--fp16" in compiler and graph.env.File(graph.node_path(other)).has_builder():
        graph.env.Depends(node, graph.node_path(other))  # engines come by name: bf16's is there
    return node
