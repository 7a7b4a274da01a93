# SPDX-License-Identifier: MIT
"""Main loops in the machine code of a cubin, the innermost ones that hold wgmma, and their faults.

WARPSYNC and many R2UR mean that ptxas could not prove a value to be the same in all lanes (mend: `uniform`): 5 to
16 % on an H100. Local memory in a main loop means that registers ran out. A wait for the last product right behind its
issue means that ptxas moved the wait up, as it does at a branch, and that the softmax runs under nothing: 6 % of the
forward of head dim 128.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

MOST_R2UR = 36
LEAST_COVERED = 50
"""Instructions of a softmax that must run under the product issued last. A wait that moved up left 12 to 33 of them;
the soft cap's loop of head dim 64 has 62, and is slower with more."""
PRODUCTS = re.compile(r"(^|\s)(HGMMA|QGMMA|IGMMA)\b")
PRODUCTS_OF_WARPS = re.compile(r"(^|\s)HMMA\b")
"""Of mma.sync, whose loops are held to their accesses to local memory alone."""


@dataclass(frozen=True)
class Loop:
    function: str
    begin: int
    end: int
    instructions: int
    products: int
    local: int  # LDL and STL
    warpsync: int
    r2ur: int
    covered: int  # those of them between the last product's issue and the wait for it

    def faults(self) -> list[str]:
        where = f"{self.function}, loop {self.begin:x}..{self.end:x}"
        said = []
        if self.warpsync:
            said.append(f"{where}: {self.warpsync} WARPSYNC, must be none")
        if self.r2ur > MOST_R2UR:
            said.append(f"{where}: {self.r2ur} R2UR, at most {MOST_R2UR} may be")
        return said


def disassemble(cuobjdump: Path, cubin: Path) -> str:
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}{os.pathsep}{os.environ.get('PATH', '')}"}  # for nvdisasm
    result = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"{cuobjdump} -sass {cubin}: {result.stderr.strip()}")
    return result.stdout


def main_loops(cuobjdump: Path, cubin: Path, products: re.Pattern[str] = PRODUCTS) -> list[Loop]:
    """The main loops of every function of `cubin`, in order."""
    return find_loops(disassemble(cuobjdump, cubin), products)


def find_loops(text: str, of: re.Pattern[str] = PRODUCTS) -> list[Loop]:
    loops = []
    for part in re.split(r"\n\s*Function : ", text)[1:]:
        name = part.split(maxsplit=1)[0]
        lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", part, re.M)]
        exits = [address for address, line in lines if re.search(r"\bEXIT\b", line)]
        products = [address for address, line in lines if of.search(line)]
        last = max(exits, default=0)  # behind it lie cold stubs that jump back
        end = last if last > max(products, default=0) else lines[-1][0] + 1
        back = []
        for address, line in lines:
            jump = re.search(r"\bBRA\S*\s+(?:.*,\s*)?0x([0-9a-f]+)", line)
            if jump and int(jump[1], 16) < address < end:
                back.append((int(jump[1], 16), address))
        holding = [span for span in back if any(span[0] <= at <= span[1] for at in products)]
        # Loops lie in each other or apart; a stub behind them jumps into one.
        holding = [at for at in holding if not any(low < at[0] <= high < at[1] for low, high in holding)]
        for low, high in holding:
            if any(other != (low, high) and low <= other[0] and other[1] <= high for other in holding):
                continue
            body = [line for address, line in lines if low <= address <= high]

            def count(word: str, body: list[str] = body) -> int:
                return sum(re.search(rf"(^|\s){word}\b", line) is not None for line in body)

            products_here = sum(of.search(line) is not None for line in body)
            local = count("LDL") + count("STL")
            words = (len(body), products_here, local, count("WARPSYNC"), count("R2UR"))
            loops.append(Loop(name, low, high, *words, covered(body, of)))
    return loops


def covered(body: list[str], of: re.Pattern[str]) -> int:
    """Instructions between the last product's issue and the wait for all products, in the order of the loop's body."""
    last = max(index for index, line in enumerate(body) if of.search(line))
    waits = [i for i, line in enumerate(body) if i > last and re.search(r"WARPGROUP\.DEPBAR.*gsb0, 0x0", line)]
    return (waits[0] if waits else len(body)) - last
