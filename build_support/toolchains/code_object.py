# SPDX-License-Identifier: MIT
"""python code_object.py OBJECT NAME SYMBOL TARGET [LDS_BYTES] -- FLAG... [--lld LLD] --run LAUNCHER... CLANG

Makes an object of a kernel's code.

The object defines SYMBOL, a tilekiln::hip::Kernel (kernels/backends/hip/kernel.h): the name, the code object, and the
constant by which that says what the host must know of it (`..._build`). A kernel that needs memory for registers, or
more LDS than its TARGET has, is refused: it would be slow, or an error of the first launch. With LDS_BYTES, which the
target gives, its file is read only to refuse: that costs as much as half a compilation.

With LLD clang compiles in the process that it is started as, and LLD is run here: the same bytes, and clang is loaded
once, not twice, which is a tenth of a compilation. A launcher is given clang's whole command, so a hit links nothing.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from build_support.toolchains import cubin
else:  # as a script; the package reads every toolchain, which takes as long as a twentieth of a compilation
    import cubin

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

Run = Callable[[Sequence[str], bytes], tuple[int, bytes]]
"""Runs a program with an input; its exit code (negative: the signal), and all that it said."""


def check(target: str, name: str, code: bytes, most: int = 0) -> None:
    """CubinError for what the kernel descriptor asks for (LLVM, "User Guide for AMDGPU Backend", Kernel Descriptor)."""
    for kernel in cubin.constants(code, ".kd"):
        lds, scratch = struct.unpack_from("<II", kernel)
        if scratch:
            raise cubin.CubinError(f"registers in memory were {scratch:,} bytes of a lane, must be 0: it spills")
        if lds > most:
            cubin.check_needs(target, name, {"lds_bytes": lds})


def commands(words: Sequence[str], made: str) -> list[list[str]]:
    """Those that make the code object `made`; `words` are those after `--`."""
    run = words.index("--run")
    flags, compiler = words[:run], words[run + 1 :]
    if "--lld" not in flags:
        return [[*compiler, *flags, "-o", made]]
    *flags, _, lld = flags
    # clang's driver has two jobs for a code object, and starts a process for each; for assembly it has one.
    one = [word for word in flags if word not in ("-c", "-fuse-ld=lld")]
    return [
        [*compiler, "-S", "-Xclang", "-emit-obj", *one, "-o", f"{made}.o"],
        [lld, "-flavor", "gnu", "-m", "elf64_amdgpu", "--no-undefined", "-shared", "-o", made, f"{made}.o"],
    ]


def make(argv: Sequence[str], run: Run) -> tuple[int, bytes]:
    """Makes the object that the words ask for. As Run of a program that did it."""
    begin = argv.index("--")
    path, name, symbol, target = argv[:4]
    most, scratch = int(argv[4]) if begin > 4 else 0, Path(f"{path}.scratch")
    try:
        for command in commands(argv[begin + 1 :], str(scratch)):
            code, said = run(command, b"")
            if code:
                return min(code, 1), f"{name}: the compiler failed\n".encode() + said
        image = scratch.read_bytes()
        check(target, name, image, most)
        text = cubin.assembly(name, symbol, scratch, cubin.constant(image, "_build"))
        code, said = run(["as", "-o", path, "-"], text.encode())
        return min(code, 1), f"{name}: as failed\n".encode() + said if code else b""
    except cubin.CubinError as error:
        return 1, f"{name}: {error}\n".encode()
    finally:
        for left in (scratch, f"{scratch}.o"):
            with contextlib.suppress(OSError):
                os.remove(left)


def _run(command: Sequence[str], given: bytes) -> tuple[int, bytes]:
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


if __name__ == "__main__":
    ended, words = make(sys.argv[1:], _run)
    sys.stderr.buffer.write(words)
    sys.exit(ended if ended >= 0 else 128 - ended)
