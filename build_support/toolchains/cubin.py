# SPDX-License-Identifier: MIT
"""python cubin.py OBJECT NAME SYMBOL TARGET PLACE LIMITS -- FLAG... [--fp16 PLACE OTHER BASE] --run LAUNCHER... NVCC

An object of a kernel.

The object defines SYMBOL, a tilekiln::cuda::Kernel (kernels/backends/cuda/kernel.h): the name, the image, and the
constant by which the cubin says what the host must know of it (`..._build`), which is read here and so needs no device.
The image is the compiler's fatbin, of machine code and PTX, or where newer chips cannot run a chip's code (sm_90a) the
cubin alone; the fatbin then stays beside the object (OBJECT.fatbin), for the executor of PTX.

What a kernel needs is held to LIMITS, "registers=255,..."; TARGET's file is read only to refuse: that costs a fifth of
a second. PLACE is where the constant has its shared_bytes, as a number among its integers; -1: it has none.

--fp16: FLAGs are of bf16, and so is the PTX that they make or that OTHER, the object of bf16, has beside it; the names
of its element type are exchanged (`exchanged`), and PLACE is where the constant says which it is. To compile C++ to PTX
is half of a kernel's time. BASE is the symbol of bf16's kernel, where every library with this one has it: the image is
then its changes to that one's, one in a hundred bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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


EXCHANGES = (
    (r"\.f32\.bf16\.bf16\b", r".f32.f16.f16"),
    (r"\bcvt\.rn\.bf16x2\.f32\b", r"cvt.rn.f16x2.f32"),
    (
        r"\{shl\.b32 (%\w+), (%\w+), 16; and\.b32 (%\w+), \2, 0xffff0000;\}",
        r"{.reg .b16 l, h; mov.b32 {l, h}, \2; cvt.f32.f16 \1, l; cvt.f32.f16 \3, h;}",
    ),
    (r"\{\.reg \.b32 w; cvt\.u32\.u16 w, (%\w+); shl\.b32 (%\w+), w, 16;\}", r"cvt.f32.f16 \2, \1;"),
)
"""Of bf16 in a kernel's PTX (ptx.h with TILEKILN_EXCHANGED, wgmma.h, mma.h), and the same of fp16."""


def exchanged(ptx: str, place: int) -> str:
    """The PTX of fp16 from that of bf16; `place` is that of `fp16` among the integers of the `..._build` constant."""
    for bf16, fp16 in EXCHANGES:
        ptx = re.sub(bf16, fp16, ptx)
    said = re.findall(r"\.b8 \w+_build\[(\d+)\] = \{([^}]*)\}", ptx)
    if len(said) != 1 or "bf16" in ptx:
        raise CubinError(
            f"PTX of bf16: {len(said)} constants end in _build, must be 1, or an unknown instruction names it"
        )
    size, values = int(said[0][0]), said[0][1]
    words = [word.strip() for word in values.split(",")]
    words += ["0"] * (size - len(words))  # zeros at the end are left out
    return ptx.replace(f"{{{values}}}", f"{{{', '.join([*words[: 4 * place], '1', *words[4 * place + 1 :]])}}}")


def ptx_text(fatbin: bytes) -> str:
    """The PTX of a fatbin, in which it is not compressed."""
    for kind, part in parts(fatbin):
        if kind == 1 and b".version" in part:
            return part.rstrip(b"\0").decode()
    raise CubinError("the compiler's fatbin holds no PTX as it is")


def compile_fp16(
    command: Sequence[str], place: int, other: str, cubin: Path, where: Path | None = None
) -> tuple[str, bytes]:
    """As compile_cubin, of a command of bf16, and its machine code.

    `other`: an object whose fatbin beside it may be of that command.
    """
    fatbin = b""
    with contextlib.suppress(OSError):
        fatbin = Path(f"{other}.fatbin").read_bytes()
        if machine_code(fatbin) not in Path(other).read_bytes():
            fatbin = b""  # an earlier build has left it
    if not fatbin:
        compile_cubin(command, cubin, where)
        fatbin = cubin.read_bytes()
    text = ptx_text(fatbin)
    source = Path(f"{cubin}.ptx")
    try:
        source.write_text(exchanged(text, place), encoding="utf-8")
        nvcc = next(at for at, word in enumerate(command) if word.startswith("-")) - 1  # no cache knows PTX
        kept = [
            word for word in command[nvcc + 1 :] if word.startswith(("-c", "-fatbin", "-gencode", "-Xptxas", "--no-"))
        ]
        return compile_cubin([command[nvcc], *kept, str(source)], cubin, where), machine_code(fatbin)
    finally:
        source.unlink(missing_ok=True)


def of_one_chip(command: Sequence[str]) -> bool:
    """Whether the command compiles for features that no other chip has, sm_90a's: newer ones run no PTX of them."""
    return any(re.match(r"-gencode=.*,code=\[sm_\d+a,", word) for word in command)


def machine_code(image: bytes) -> bytes:
    """The ELF file of an image, which is one or a fatbin that holds one beside PTX."""
    if struct.unpack_from("<I", image)[0] != FATBIN:
        return image
    for kind, part in parts(image):
        if kind == 2:
            return part
    raise CubinError("the compiler's fatbin holds no machine code")


FATBIN = 0xBA55ED50


def parts(fatbin: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind (1: PTX, 2: an ELF file) and bytes of each part of a fatbin."""
    _, _, header, size = struct.unpack_from("<IHHQ", fatbin)
    at = header
    while at < header + size:
        kind, _, own, length = struct.unpack_from("<HHIQ", fatbin, at)
        yield kind, fatbin[at + own : at + own + length]
        at += own + length


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
    """CubinError for a kernel that needs more than its target gives: than `limits`, where they are available."""
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


def number(value: int) -> bytes:
    """7 bits a byte, low ones first; a byte of 128 and more has another one after it."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


SAME = 4
"""Bytes between two changes that are fewer than these belong to one."""


def changes(of: bytes, to: bytes) -> bytes:
    """The changes of `of` to `to`, as changed.h has them; b"" where lengths differ, or that would save little."""
    if len(of) != len(to):
        return b""
    runs: list[list[int]] = []
    for at in (at for at, (old, new) in enumerate(zip(of, to, strict=True)) if old != new):
        if runs and at - runs[-1][1] < SAME:
            runs[-1][1] = at + 1
        else:
            runs.append([at, at + 1])
    made, end = [number(len(to))], 0
    for begin, after in runs:
        made += [number(begin - end), number(after - begin), to[begin:after]]
        end = after
    text = b"".join([*made, number(0), number(0)])
    return text if 2 * len(text) < len(to) else b""


def changed(of: bytes, made: bytes) -> bytes:
    """The image that changed.h makes."""
    at = 0

    def read() -> int:
        nonlocal at
        begin = at
        while made[at] >= 128:
            at += 1
        at += 1
        return sum((byte & 127) << 7 * place for place, byte in enumerate(made[begin:at]))

    image, to = bytearray(of[: read()]), 0
    while True:
        to += read()
        count = read()
        if not count:
            return bytes(image)
        image[to : to + count] = made[at : at + count]
        to, at = to + count, at + count


def assembly(name: str, symbol: str, cubin: Path, build: bytes, further: Sequence[str] = ()) -> str:
    """The Kernel as assembler text, for any 64-bit machine of the lowest byte first; `further` pointers at its end."""
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
    .size {symbol}, {24 + 8 * len(further)}
{symbol}:
    .8byte {", ".join([".Lname", ".Limage", ".Lbuild", *further])}
    .section .note.GNU-stack, "", %progbits
"""


def main(argv: Sequence[str]) -> int:
    path, name, symbol, target, place, limits = argv[:6]
    run = argv.index("--run")
    flags, cubin = argv[7:run], Path(f"{path}.scratch")
    base, of = "", b""
    try:
        if "--fp16" in flags:
            flags, (said_at, other, base) = flags[:-4], flags[-3:]
            said, of = compile_fp16([*argv[run + 1 :], *flags], int(said_at), other, cubin)
        else:
            said = compile_cubin([*argv[run + 1 :], *flags], cubin)
        code = machine_code(cubin.read_bytes())
        build = constant(code, "_build")
        check_needs(target, name, needs(said, build, int(place)), numbers(limits))
        if of_one_chip(flags):
            cubin.replace(f"{path}.fatbin")
            own = changes(of, code) if base else b""
            base = base if own else ""
            if own and changed(of, own) != code:
                raise CubinError("its changes to bf16's image do not make it")
            cubin.write_bytes(own or code)
        text = assembly(name, symbol, cubin, build, [base or "0"])
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
