# SPDX-License-Identifier: MIT
"""A C++ compiler for another system, by zig of PyPI: a script that `scons cxx=` takes.

    tools/dev --with zig python tools/zig_cxx.py x86_64-linux-musl      # writes build/zig/x86_64-linux-musl
    tools/dev --with zig python tools/zig_cxx.py aarch64-linux-gnu.2.28 # with the symbols of glibc 2.28
    tools/dev --with zig python tools/zig_cxx.py aarch64-macos          # for macOS 11 and newer

zig brings clang, the C library and libc++ of each target, which is linked statically. It has names of its own for
processors, so the script turns -march= into them. Libraries of macOS are linked by zig_macos.py.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import zig_macos  # noqa: E402

PLACE = ROOT / "build" / "zig"
TARGET = re.compile(r"(x86_64|aarch64)-(linux-(musl|gnu(\.2\.\d+)?)|macos)")

SCRIPT = """\
#!/bin/sh
# Made by tools/zig_cxx.py.
[ "$1" != --version ] || exec {zig} c++ --version  # for a target zig leaves a file, a.o
for word do
  shift
  case $word in
    -march=armv8.2-a*) word="-mcpu=generic+v8_2a$(printf %s "${{word#-march=armv8.2-a}}" | sed 's/+fp16/+fullfp16/')" ;;
    -march=x86-64*) word="-mcpu=$(printf %s "${{word#-march=}}" | tr - _)" ;;
  esac
  set -- "$@" "$word"
done
{link}exec {zig} c++ -target {target} "$@"
"""
LINK = """\
link=yes
for word do case $word in -c | -E | -S | --version | -dumpmachine) link= ;; esac; done
[ -z "$link" ] || exec {python} {program} {zig} {machine} {folder} "$@"
"""


def write(target: str) -> Path:
    """The script of a target, anew where it is another one."""
    import ziglang

    zig, link = Path(str(ziglang.__file__)).with_name("zig"), ""
    machine, _, system = target.partition("-")
    path, whole = PLACE / target, target
    PLACE.mkdir(parents=True, exist_ok=True)
    if system == "macos":
        whole, folder = zig_macos.target(machine), PLACE / f"{target}-libraries"
        words = {"python": sys.executable, "program": zig_macos.__file__, "zig": zig, "folder": folder}
        link = LINK.format(machine=machine, **{name: shlex.quote(str(word)) for name, word in words.items()})
    text = SCRIPT.format(zig=shlex.quote(str(zig)), target=whole, link=link)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        if link:
            zig_macos.keep_libraries(zig, machine, folder)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return path


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    if not TARGET.fullmatch(arguments[0]):
        print(
            f"{arguments[0]}: must be MACHINE-linux-musl, MACHINE-linux-gnu, MACHINE-linux-gnu.2.N or MACHINE-macos, "
            "where MACHINE is x86_64 or aarch64, as aarch64-linux-gnu.2.28",
            file=sys.stderr,
        )
        return 2
    try:
        print(write(arguments[0]).relative_to(ROOT))
    except ImportError:
        print("ziglang is not installed: tools/dev --with zig python tools/zig_cxx.py ...", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
