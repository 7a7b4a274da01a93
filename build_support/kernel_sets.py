# SPDX-License-Identifier: MIT
"""kernel_set=FILE: sets of kernels that a program declares, as YAML or in C++, built as receipts of their names.

C++ is compiled, and what declares its sets is run (include/tilekiln/dispatcher/kernel_set.hpp). What it says is YAML
below build/kernel_sets, which is then read like any other file.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from codegen.emit import files
from codegen.schema import kernel_sets
from codegen.schema.errors import CodegenError

from . import toolchain

FOLDER = "build/kernel_sets"
YAML = (".yaml", ".yml")


def take(given: Sequence[str], cxx: str) -> list[str]:
    """The YAML files of what kernel_set= names, C++ compiled and read. CodegenError for what is wrong in it."""
    taken = []
    for word in given:
        path = os.path.expanduser(word)
        if not os.path.isfile(path):
            raise CodegenError(f"kernel_set={word}: there is no such file; name a YAML or C++ file that declares a set")
        taken += [path] if path.endswith(YAML) else _declared(path, cxx)
    return taken


def _declared(path: str, cxx: str) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="tilekiln-") as scratch:
        library = os.path.join(scratch, "sets.so")
        compiler = toolchain.find(cxx, "release").cxx
        # Whatever else the program calls is not called here, so nothing is linked with it.
        command = [
            compiler,
            "-std=c++17",
            "-O0",
            "-fPIC",
            "-shared",
            "-Iinclude",
            path,
            "-ldl",
            "-o",
            library,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CodegenError(f"kernel_set={path}: cannot be compiled\n{shlex.join(command)}\n{done.stderr.rstrip()}")
        # Another process runs what is somebody's program.
        said = subprocess.run(
            [sys.executable, "-m", "build_support.kernel_sets", library], capture_output=True, text=True, check=False
        )
    if said.returncode == 2:
        raise CodegenError(said.stdout.rstrip())
    if said.returncode != 0:
        raise CodegenError(f"kernel_set={path}: its declarations cannot be run\n{said.stderr.rstrip()}")
    if not said.stdout:
        raise CodegenError(f"kernel_set={path}: declares no set; write TILEKILN_KERNEL_SET(name, .add(...))")
    made = []
    for text in said.stdout.removeprefix("---\n").split("\n---\n"):
        target = f"{FOLDER}/{kernel_sets.name_of(text, path)}.yaml"
        files.write(target, f"# Declared in {path}.\n{text.rstrip()}\n".encode())
        made.append(target)
    return made


def read(library: str) -> int:
    """Loads what was compiled, which runs its declarations, and prints them. 2: they are wrong, and it says what."""
    import ctypes  # it costs builds without C++ sets 7 ms

    sets = ctypes.CDLL(library, mode=ctypes.DEFAULT_MODE | os.RTLD_LAZY)
    try:
        ask = sets.tilekiln_kernel_sets
    except AttributeError:
        return 0
    ask.restype = ctypes.c_char_p
    wrong = ctypes.c_int()
    sys.stdout.write(ask(ctypes.byref(wrong)).decode())
    return 2 if wrong.value else 0


if __name__ == "__main__":
    sys.exit(read(sys.argv[1]))
