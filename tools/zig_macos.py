# SPDX-License-Identifier: MIT
"""Links for macOS what zig compiles: by LLVM's ld64.lld, with the C++ library of zig.

zig's own linker shows the C++ library's operator new to every program that loads a library, and hides nothing of what
it links. The compiler's script, which zig_cxx.py makes, starts this with the words of a link in the manner of clang++.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OLDEST = "11.0"  # that of an Apple M1
LINKERS = ("ld64.lld-22", "ld64.lld-21", "ld64.lld-20", "ld64.lld")
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "x86_64"}
ARCHIVES = ("libc++.a", "libc++abi.a", "libcompiler_rt.a")
ENDIAN = "endian.h"  # NumPy's headers as Linux has them ask for it
TABLE = "libSystem.tbd"  # the functions of macOS's C library
FORMS = {"-shared": "-dylib", "-bundle": "-bundle"}
LEFT_OUT = re.compile(r"-(pthread|ldl|lm|g\d?|O\w)")
"""Words of a link that macOS's linkers do not know, and do without."""


def target(machine: str) -> str:
    return f"{machine}-macos.{OLDEST}"


def find_linker() -> str:
    return next((linker for linker in LINKERS if shutil.which(linker)), "")


def keep_libraries(zig: Path, machine: str, folder: Path) -> None:
    """Copies to `folder` what zig links into every library, which it builds when it is first asked."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "none.cpp"
        source.write_text("")
        command = [zig, "c++", "-target", target(machine), "-shared", source, "-o", f"{scratch}/none.dylib"]
        said = subprocess.run(
            command, env={"ZIG_VERBOSE_LINK": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    archives = [word for word in (said.stdout + said.stderr).split() if word.endswith(".a")]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARCHIVES:
        shutil.copyfile(next(path for path in archives if Path(path).name == name), folder / name)
    (folder / ENDIAN).write_text("#include <machine/endian.h>\n", encoding="utf-8")
    # LLVM's linkers stop at architectures that they do not know.
    table = (zig.parent / "lib/libc/darwin" / TABLE).read_text(encoding="utf-8")
    (folder / TABLE).write_text(re.sub(r"arm64e\.\w+-\w+,?", "", table), encoding="utf-8")


def words_of_link(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """(words for the linker, for the compiler, sources) of a command in the manner of clang++."""
    linker: list[str] = []
    compiler: list[str] = []
    sources: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "-o":
            linker += ["-o", next(rest)]
        elif word == "-x":
            compiler += [word, next(rest)]
        elif word in FORMS:
            linker.append(FORMS[word])
        elif word.startswith("-Wl,"):
            linker += word.split(",")[1:]
        elif word.startswith("@"):
            linker += Path(word[1:]).read_text(encoding="utf-8").split()
        elif word.startswith("-L") or (word.startswith("-l") and not LEFT_OUT.fullmatch(word)):
            linker.append(word)
        elif word.endswith((".c", ".cpp")):
            sources.append(word)
        elif word.startswith("-"):
            compiler.append(word)
        else:
            linker.append(word)
    return linker, compiler, sources


def main(arguments: Sequence[str]) -> int:
    """`arguments`: zig, the machine, the folder of `keep_libraries`, then the words of a link."""
    zig, machine, folder, *words = arguments
    linker, compiler, sources = words_of_link(words)
    program = find_linker()
    if not program:
        print(f"{LINKERS[0]} is not on PATH. Install LLVM's linker (Debian: apt install lld-22).", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        for index, source in enumerate(sources):
            made = f"{scratch}/{index}.o"
            what = ["-idirafter", folder, "-c", source, "-o", made]
            command = [zig, "c++", "-target", target(machine), *compiler, *what]
            if (code := subprocess.run(command, check=False).returncode) != 0:
                return code
            linker.append(made)
        kept = [word for name in ARCHIVES for word in ("-load_hidden", f"{folder}/{name}")]
        head = [program, "-arch", ARCHITECTURES[machine], "-platform_version", "macos", OLDEST, OLDEST, "-dead_strip"]
        return subprocess.run([*head, *linker, *kept, f"{folder}/{TABLE}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
