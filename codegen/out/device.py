# SPDX-License-Identifier: MIT
"""Engines of a device in a source tree: its kernels as data, compiled already, and the host code that launches them.

A kernel's object (build_support/toolchains) holds one struct of three pointers into one section of constants, and of
CUDA one to another kernel, or null. Here that section becomes a file of bytes, beside a C++ source that takes it in by
the assembler, on any 64-bit machine.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from codegen.emit import flags, kernels
from codegen.schema.errors import CodegenError
from codegen.tell import elf

if TYPE_CHECKING:
    from codegen.emit.generated import Engine
    from codegen.schema.targets import Target
    from codegen.schema.tree import Tree

Objects = Callable[[str, Sequence[str]], Mapping[str, str]]
"""objects(target, names of kernels) -> the path of each kernel's object, compiled."""
ASSEMBLER = "-Wa,-I."
"""Bytes are found from the root of the tree, where commands run. CMake's do not: it puts the root in place of `.`."""


def sources(root: Tree, target: Target, engines: Sequence[Engine], folder: str, objects: Objects) -> dict[str, bytes]:
    """Every file to compile for a device, and the bytes they take in, by path below `folder`."""
    if any(engine.made for engine in engines):
        raise CodegenError(
            f"target {target.name}: kernels of fixed features are in no source tree: take a receipt without them"
        )
    found: dict[str, bytes] = {}
    launched = {engine.symbol: engine for engine in engines if engine.kernel}
    named = {one.name: one for one in kernels.of_target(root, target.name) if one.symbol in launched}
    for name, path in objects(target.name, list(named)).items():
        data, pointers = _constants(path, named[name].symbol)
        place = f"{folder}/{target.name}/{name}"
        found[f"{place}.bin"] = data
        found[f"{place}.cpp"] = _kernel(name, target.name, named[name].symbol, f"{place}.bin", data, pointers).encode()
    for engine in engines:
        if not engine.kernel:
            found[f"{folder}/{target.name}/{_stem(engine, target)}.cpp"] = _host(root, engine, target).encode()
    return found


def _stem(engine: Engine, target: Target) -> str:
    return engine.symbol.removeprefix(f"tilekiln_{target.word}_")


def _host(root: Tree, engine: Engine, target: Target) -> str:
    """The host code of a family, which is compiled with the list of its kernels."""
    pipeline = os.path.basename(engine.source).removesuffix(".cpp")
    family = _stem(engine, target).removesuffix(f"_{pipeline}")
    listed = " ".join(f"K({one.symbol})" for one in kernels.of_engine(root, target.name, family))
    return f'#define TILEKILN_KERNELS {listed}\n#include "{engine.source}"\n'


def _constants(path: str, symbol: str) -> tuple[bytes, list[str]]:
    """The section of constants of a kernel's object, and the pointers of its struct, as the assembler has them."""
    sections = {section.name: section for section in elf.sections(path)}
    moved = sections[f".rela.data.rel.ro.{symbol}"].data
    entries = sorted(struct.iter_unpack("<QQq", moved))
    if [offset for offset, _, _ in entries] not in ([0, 8, 16], [0, 8, 16, 24]):
        raise CodegenError(f"{path}: was no kernel of three pointers, must be what this tree compiles: build it again")
    pointers = [f".L{symbol}+{addend}" for _, _, addend in entries[:3]]
    if len(entries) == 4:
        (at,) = struct.unpack_from("<I", sections[".symtab"].data, 24 * (entries[3][1] >> 32))
        names = sections[".strtab"].data
        pointers.append(names[at : names.index(b"\0", at)].decode())
    elif len(sections[f".data.rel.ro.{symbol}"].data) == 32:
        pointers.append("0")
    return sections[f".rodata.{symbol}"].data, pointers


def _kernel(name: str, target: str, symbol: str, place: str, data: bytes, pointers: Sequence[str]) -> str:
    # The hash stands in the assembler's text: compiler caches that know no .incbin key by what the preprocessor leaves.
    return f"""\
// {name} for {target}
asm(R"(
    /* {len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()} */
    .pushsection .rodata.{symbol}, "a"
    .balign 64
.L{symbol}:
    .incbin "{place}"
    .popsection
    .pushsection .data.rel.ro.{symbol}, "aw"
    .balign 8
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, %object
    .size {symbol}, {8 * len(pointers)}
{symbol}:
    .8byte {", ".join(pointers)}
    .popsection
)");
"""


def options(target: Target) -> list[str]:
    return [f"-D{flags.define(target.name)}", ASSEMBLER]
