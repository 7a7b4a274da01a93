"""python cubin.py OBJECT NAME SYMBOL -- FLAG... --run LAUNCHER... NVCC: an object of a kernel's cubin.

The object defines SYMBOL, a tilekiln::cuda::Kernel (kernels/backends/cuda/kernel.h): the name, the cubin, and the
constant by which the cubin says what the host must know of it (`..._build`), which is read here and so needs no device.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SERIALISED = re.compile(r"C75\d\d[^\n]*")
"""ptxas's notes that wgmma is followed by a wait, each: right results at half the speed."""


class CubinError(Exception):
    """One sentence."""


def compile_cubin(command: Sequence[str], cubin: Path, where: Path | None = None) -> str:
    """Runs nvcc; what it says. CubinError also for a wgmma that waits, which then leaves no cubin."""
    done = subprocess.run([*command, "-o", str(cubin)], capture_output=True, text=True, check=False, cwd=where)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise CubinError(f"nvcc failed\n{said}")
    serialised = SERIALISED.search(said)
    if serialised:
        cubin.unlink()
        raise CubinError(serialised.group(0))
    return said


def constant(cubin: bytes, ending: str) -> bytes:
    """The bytes of the one symbol of an ELF file that ends so."""
    if cubin[:5] != b"\x7fELF\x02":
        raise CubinError("the compiler's output is no 64-bit ELF file")
    (sections_at,) = struct.unpack_from("<Q", cubin, 40)
    size, count, _ = struct.unpack_from("<HHH", cubin, 58)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections_at + size * i) for i in range(count)]
    found = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        names = sections[section[6]]
        for at in range(section[4], section[4] + section[5], 24):
            name_at, _, _, index, value, length = struct.unpack_from("<IBBHQQ", cubin, at)
            start = names[4] + name_at
            name = cubin[start : cubin.index(b"\0", start)].decode()
            if name.endswith(ending) and 0 < index < count:
                begin = sections[index][4] + value
                found.append(cubin[begin : begin + length])
    if len(found) != 1:
        raise CubinError(f"the cubin has {len(found)} symbols that end in {ending}, must have one")
    return found[0]


def assembly(name: str, symbol: str, cubin: Path, build: bytes) -> str:
    """The Kernel as assembler text, for any 64-bit machine of the lowest byte first."""
    words = ", ".join(str(word) for word in struct.unpack(f"<{len(build) // 4}i", build))
    return f"""\
    .section .rodata.{symbol}, "a"
    .balign 64
.Limage:
    .incbin "{cubin}"
    .balign 8
.Lbuild:
    .4byte {words}
.Lname:
    .asciz "{name}"
    .section .data.rel.ro.{symbol}, "aw"
    .balign 8
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, %object
    .size {symbol}, 24
{symbol}:
    .8byte .Lname, .Limage, .Lbuild
    .section .note.GNU-stack, "", %progbits
"""


def main(argv: Sequence[str]) -> int:
    target, name, symbol = argv[:3]
    run = argv.index("--run")
    cubin = Path(f"{target}.scratch")
    try:
        compile_cubin([*argv[run + 1 :], *argv[4:run]], cubin)
        text = assembly(name, symbol, cubin, constant(cubin.read_bytes(), "_build"))
        done = subprocess.run(["as", "-o", target, "-"], input=text, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise CubinError(f"as failed\n{done.stderr}")
    except CubinError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(OSError):
            os.remove(cubin)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
