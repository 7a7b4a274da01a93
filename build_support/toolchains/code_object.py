"""python code_object.py OBJECT NAME SYMBOL TARGET [LDS_BYTES] -- FLAG... --run LAUNCHER... CLANG: code as an object.

The object defines SYMBOL, a tilekiln::hip::Kernel (kernels/backends/hip/kernel.h): the name, the code object, and the
constant by which that says what the host must know of it (`..._build`). A kernel that needs memory for registers, or
more LDS than its TARGET has, is refused: it would be slow, or an error of the first launch. With LDS_BYTES, which the
target gives, its file is read only to refuse: that costs as much as half a compilation.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from build_support.toolchains import cubin
else:  # as a script; the package reads every toolchain, which takes as long as a twentieth of a compilation
    import cubin

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def check(target: str, name: str, code: bytes, most: int = 0) -> None:
    """CubinError for what the kernel descriptor asks for (LLVM, "User Guide for AMDGPU Backend", Kernel Descriptor)."""
    for kernel in cubin.constants(code, ".kd"):
        lds, scratch = struct.unpack_from("<II", kernel)
        if scratch:
            raise cubin.CubinError(f"registers in memory were {scratch:,} bytes of a lane, must be 0: it spills")
        if lds > most:
            cubin.check_needs(target, name, {"lds_bytes": lds})


def main(argv: Sequence[str]) -> int:
    path, name, symbol, target = argv[:4]
    begin, run = argv.index("--"), argv.index("--run")
    most = int(argv[4]) if begin > 4 else 0
    scratch = Path(f"{path}.scratch")
    try:
        cubin.compile_cubin([*argv[run + 1 :], *argv[begin + 1 : run]], scratch)
        code = scratch.read_bytes()
        check(target, name, code, most)
        text = cubin.assembly(name, symbol, scratch, cubin.constant(code, "_build"))
        done = subprocess.run(["as", "-o", path, "-"], input=text, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise cubin.CubinError(f"as failed\n{done.stderr}")
    except cubin.CubinError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    finally:
        with contextlib.suppress(OSError):
            os.remove(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
