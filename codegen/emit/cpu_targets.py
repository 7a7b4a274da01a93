# SPDX-License-Identifier: MIT
"""Targets of CPUs as data for Python: python/tilekiln/_generated/cpu_targets.py, which `tilekiln info` reads."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from codegen.schema import cpu

if TYPE_CHECKING:
    from codegen.schema.tree import Tree

PATH = "python/tilekiln/_generated/cpu_targets.py"
TEXT = '''"""Targets of CPUs, the best first: made by `python -m codegen write` of kernels/targets/cpu-*.yaml."""

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
{}
""".strip().split("\\n\\n")
]
'''


def contents(tree: Tree) -> dict[str, str]:
    """Text by path from the root of the tree: every target of a CPU that is built for users, or will be."""
    listed = [one for one in tree.every_target.values() if one.backend == "cpu" and not one.for_tests]
    paragraphs = []
    for one in sorted(listed, key=lambda target: -target.order):
        flags = textwrap.wrap(" ".join(cpu.cpuinfo(one.cpuid)), 110)
        state = "planned" if one.planned else "built"
        paragraphs.append("\n  ".join([f"{one.name} {one.isa} {one.arch} {one.beside or '-'} {state}", *flags]))
    return {PATH: TEXT.format("\n\n".join(paragraphs))}
