"""A C++ compiler for another system, by zig of PyPI: a script that `scons cxx=` takes.

    tools/dev --with zig python tools/zig_cxx.py x86_64-linux-musl      # writes build/zig/x86_64-linux-musl
    tools/dev --with zig python tools/zig_cxx.py aarch64-linux-gnu.2.28 # with the symbols of glibc 2.28

zig brings clang, the C library and libc++ of each target, which is linked statically. It has names of its own for
processors, so the script turns -march= into them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "zig"
TARGET = re.compile(r"(x86_64|aarch64)-linux-(musl|gnu(\.2\.\d+)?)")

SCRIPT = """\
#!/bin/sh
# Made by tools/zig_cxx.py.
for word do
  shift
  case $word in
    -march=armv8.2-a*) word="-mcpu=generic+v8_2a$(printf %s "${{word#-march=armv8.2-a}}" | sed 's/+fp16/+fullfp16/')" ;;
    -march=x86-64*) word="-mcpu=$(printf %s "${{word#-march=}}" | tr - _)" ;;
  esac
  set -- "$@" "$word"
done
exec {zig} c++ -target {target} "$@"
"""


def write(target: str) -> Path:
    """The script of a target, anew where it is another one."""
    import ziglang

    text = SCRIPT.format(zig=Path(str(ziglang.__file__)).with_name("zig"), target=target)
    path = PLACE / target
    PLACE.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return path


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    if not TARGET.fullmatch(arguments[0]):
        print(
            f"{arguments[0]}: must be MACHINE-linux-musl, MACHINE-linux-gnu or MACHINE-linux-gnu.2.N, where MACHINE is "
            "x86_64 or aarch64, as aarch64-linux-gnu.2.28",
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
