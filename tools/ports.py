# SPDX-License-Identifier: MIT
"""The ports that multiply, and how busy AArch64's main loops keep them by llvm-mca's models of Neoverse cores.

    tools/dev python tools/ports.py build/neon+neonbf16-aarch64-release   after a build for both targets

Loops are cut out of the objects that libraries are linked of, by their functions' symbols. A main loop is an innermost
one whose products, of a register by one lane of another or of squares, fill whole register blocks. Its share is the
cycles of its products where each port multiplies in every cycle, over those that the model takes. A model is no
machine: caches always hit, and nothing here was timed on one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

OBJDUMP, MCA = "llvm-objdump-22", "llvm-mca-22"
BLOCK = 24  # products of a register block of kernels/backends/cpu/neon/vector.h: 6 rows of 4 vectors
ROUNDS = 200


class Core(NamedTuple):
    ports: int  # that multiply vectors of 16 bytes
    width: int  # operations that enter the queues in a cycle, by Arm's guides; LLVM 22 has 6, 8 and 3


CORES = {"neoverse-v2": Core(4, 8), "neoverse-v1": Core(4, 8), "neoverse-n1": Core(2, 4)}
OBJECTS = {
    "gemm-panels.o": (products := ("run_unit<", "square_block<", "fresh_product<")),
    "gemm-gemm_cpu_panels.o": products,  # where conv's engine lies beside it, which multiplies by this one
    "attention-cpu_qlanes_stages.o": ("full_block<",),
    "fmha_bwd_dq_dk_dv-qlanes.o": ("product<",),
}
"""Objects below obj/engine/<target>, and how the names of the functions with the main loops begin."""

_LANE = r"(?:fmla|bfdot|sdot|usdot)\s+v\d+\.\w+, v\d+\.\w+, v\d+\.\w+\[\d\]"
_PRODUCT = re.compile(rf"{_LANE}|(?:bfmmla|usmmla)\s")
_BRANCH = re.compile(r"(?:b\.\w+|b|cbn?z|tbn?z)\s.*<(L\d+)>")


class Loop(NamedTuple):
    target: str
    function: str  # full_block<ComputeBf16>
    lines: tuple[str, ...]  # instructions, the branch back last
    products: int

    def multiplies_by(self, instruction: str) -> bool:
        return any(line.startswith(instruction) for line in self.lines)

    @property
    def spills(self) -> int:
        """Reads and writes of the stack."""
        return sum("[sp" in line for line in self.lines)

    def share(self, core: str, width: int = 0) -> float:
        """Of the cycles of `core`, those that its products need at least. `width` 0 is that of LLVM's model."""
        return self.products / CORES[core].ports / cycles(self.lines, core, width)


def cycles(lines: Sequence[str], core: str, width: int = 0) -> float:
    """Cycles a round of a loop, whose last line branches back, by llvm-mca's model of a core."""
    text = re.sub(r"<L\d+>", "again", "\n".join(["again:", *lines]))
    command = [MCA, "-mtriple=aarch64", f"-mcpu={core}", "-mattr=+bf16,+i8mm,+dotprod", f"-iterations={ROUNDS}"]
    done = subprocess.run([*command, f"-dispatch={width}"], input=text, capture_output=True, text=True, check=True)
    return int(re.findall(r"^Total Cycles: +(\d+)", done.stdout, re.MULTILINE)[0]) / ROUNDS


def functions(file: Path) -> dict[str, list[str]]:
    """The code of each function: instructions, and `L1:` where a branch of it goes."""
    command = [OBJDUMP, "-d", "-C", "--no-show-raw-insn", "--no-leading-addr", "--symbolize-operands", str(file)]
    found: dict[str, list[str]] = {}
    code: list[str] = []
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if name := re.fullmatch(r"<([^L].*|L\D.*)>:", line):
            code = found.setdefault(name[1], [])
        elif line.strip():
            code.append(re.sub(r"^<(L\d+)>:$", r"\1:", line.strip()))
    return found


def main_loops(file: Path, target: str, named: tuple[str, ...], rests: bool = False) -> list[Loop]:
    """The main loops of an object, in its order; of functions whose names begin with `named`. `rests`: those of smaller
    register blocks, for rows and columns that are left."""
    found = []
    for name, code in functions(file).items():
        short = re.sub(r"tilekiln::cpu::\w+::", "", name.partition("(")[0]).removeprefix("void ").rstrip(", ")
        if not short.startswith(named):
            continue
        labels = {line[:-1]: at for at, line in enumerate(code) if line.endswith(":")}
        jumps = [(labels.get(to[1], at), at) for at, line in enumerate(code) if (to := _BRANCH.match(line))]
        back = [(first, last) for first, last in jumps if first < last]
        for first, last in back:
            if any(first <= a and b <= last for a, b in back if (a, b) != (first, last)):
                continue
            lines = tuple(line for line in code[first : last + 1] if not line.endswith(":"))
            products = sum(_PRODUCT.match(line) is not None for line in lines)
            if products and (products % BLOCK != 0) == rests:
                found.append(Loop(target, short, lines, products))
    return found


def of_build(folder: Path, rests: bool = False) -> list[Loop]:
    """All main loops of a build's engines, or those of rests; of the targets and objects that it has."""
    found = []
    for target in ("cpu-neon", "cpu-neonbf16"):
        for name, named in OBJECTS.items():
            file = folder / "obj" / "engine" / target / name
            found += main_loops(file, target, named, rests) if file.is_file() else []
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    loops = of_build(Path(arguments[0]))
    if not loops:
        print(f"{arguments[0]}: no engines of AArch64 there; docs/how-to/aarch64.md says how to build them")
        return 1
    print("of the ports' cycles, by Arm's widths (by LLVM's)")
    print(f"{'target':14}{'function':38}{'instructions':>13}{'products':>9}" + "".join(f"{core:>18}" for core in CORES))
    for loop in loops:
        shares = [f"{loop.share(core, of.width):11.0%} ({loop.share(core):4.0%})" for core, of in CORES.items()]
        print(f"{loop.target:14}{loop.function:38}{len(loop.lines):13}{loop.products:9}{''.join(shares)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
