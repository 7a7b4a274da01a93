"""python cubin.py OBJECT NAME SYMBOL TARGET PLACE LIMITS -- FLAG... --run LAUNCHER... NVCC: an object of a kernel.

The object defines SYMBOL, a tilekiln::cuda::Kernel (kernels/backends/cuda/kernel.h): the name, the image, and the
constant by which the cubin says what the host must know of it (`..._build`), which is read here and so needs no device.
The image is the compiler's fatbin, of machine code and PTX, or where newer chips cannot run a chip's code (sm_90a) the
cubin alone; the fatbin then stays beside the object (OBJECT.fatbin), for the executor of PTX.

What a kernel needs is held to LIMITS, "registers=255,..."; TARGET's file is read only to refuse: that costs a fifth of
a second. PLACE is where the constant has its shared_bytes, as a number among its integers; -1: it has none.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SERIALISED = re.compile(r"C75\d\d[^\n]*")
"""ptxas's notes that wgmma is followed by a wait, each: right results at half the speed."""


class CubinError(Exception):
    """One sentence."""


def compile_cubin(command: Sequence[str], cubin: Path, where: Path | None = None) -> str:
    """Runs the compiler; what it says. CubinError also for a wgmma that waits, which then leaves no cubin."""
    done = subprocess.run([*command, "-o", str(cubin)], capture_output=True, text=True, check=False, cwd=where)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise CubinError(f"the compiler failed\n{said}")
    serialised = SERIALISED.search(said)
    if serialised:
        cubin.unlink()
        raise CubinError(serialised.group(0))
    return said


def of_one_chip(command: Sequence[str]) -> bool:
    """Whether the command compiles for features that no other chip has, sm_90a's: newer ones run no PTX of them."""
    return any(re.match(r"-gencode=.*,code=\[sm_\d+a,", word) for word in command)


def machine_code(image: bytes) -> bytes:
    """The ELF file of an image, which is one or a fatbin that holds one beside PTX."""
    magic, _, header, size = struct.unpack_from("<IHHQ", image)
    if magic != 0xBA55ED50:
        return image
    at = header
    while at < header + size:
        kind, _, own, length = struct.unpack_from("<HHIQ", image, at)
        if kind == 2:  # ELF; 1: PTX
            return image[at + own : at + own + length]
        at += own + length
    raise CubinError("the compiler's fatbin holds no machine code")


def constant(cubin: bytes, ending: str) -> bytes:
    """The bytes of the one symbol of an ELF file that ends so."""
    found = constants(cubin, ending)
    if len(found) != 1:
        raise CubinError(f"the cubin has {len(found)} symbols that end in {ending}, must have one")
    return found[0]


def constants(cubin: bytes, ending: str) -> list[bytes]:
    """The bytes of every symbol of an ELF file that ends so."""
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
                begin = sections[index][4] + value - sections[index][3]
                found.append(cubin[begin : begin + length])
    return found


RESERVED = 1024
"""Bytes of shared memory that the system keeps of each block: ptxas counts them, what a block may have does not."""


def needs(said: str, build: bytes, place: int) -> dict[str, int]:
    """A kernel's use of each limit, from ptxas's output (-v) and the shared memory that its launch asks for."""
    lines = re.findall(r"Used (\d+) registers[^\n]*", said)
    if not lines:
        raise CubinError("ptxas said no registers, must say them (-Xptxas=-v)")
    fixed = max((int(number) - RESERVED for number in re.findall(r"(\d+) bytes smem", said)), default=0)
    (asked,) = struct.unpack_from("<i", build, 4 * place) if place >= 0 else (0,)
    return {"registers": max(map(int, lines)), "shared_bytes": max(fixed, 0) + asked}


def numbers(limits: str) -> dict[str, int]:
    """Of "registers=255,shared_bytes=232448"."""
    return {name: int(most) for name, _, most in (limit.partition("=") for limit in limits.split(",") if limit)}


def check_needs(target: str, name: str, needed: dict[str, int], limits: Mapping[str, int] | None = None) -> None:
    """CubinError for a kernel that needs more than its target gives: than `limits`, where they are at hand."""
    if limits is not None and all(need <= limits[name] for name, need in needed.items()):
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from codegen.schema.errors import CodegenError
    from codegen.schema.targets import check_limits
    from codegen.schema.tree import tree

    try:
        check_limits(tree().target(target), name, needed)
    except CodegenError as error:
        raise CubinError(str(error).partition(": ")[2]) from error


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
    path, name, symbol, target, place, limits = argv[:6]
    run = argv.index("--run")
    flags, cubin = argv[7:run], Path(f"{path}.scratch")
    try:
        said = compile_cubin([*argv[run + 1 :], *flags], cubin)
        code = machine_code(cubin.read_bytes())
        build = constant(code, "_build")
        check_needs(target, name, needs(said, build, int(place)), numbers(limits))
        if of_one_chip(flags):
            cubin.replace(f"{path}.fatbin")
            cubin.write_bytes(code)
        text = assembly(name, symbol, cubin, build)
        done = subprocess.run(["as", "-o", path, "-"], input=text, text=True, capture_output=True, check=False)
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
