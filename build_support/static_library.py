# SPDX-License-Identifier: MIT
"""A static library of objects: python static_library.py OUT LD OBJCOPY AR MEMBER OBJECTS OLD=NEW...

One object of all of them, in which the functions OLD are NEW and nothing else is visible: neither engines, which two
libraries of one program would share, nor templates, which the link would take from either.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

JOIN = ("-r", "--force-group-allocation")


def main(words: list[str]) -> int:
    out, linker, objcopy, archiver, member, objects, *renamed = words
    with tempfile.TemporaryDirectory(dir=os.path.dirname(out)) as folder:
        joined, names = os.path.join(folder, "joined.o"), os.path.join(folder, "names")
        with open(names, "w", encoding="utf-8") as file:
            file.writelines(f"{old} {new}\n" for old, _, new in (word.partition("=") for word in renamed))
        keep = [f"--keep-global-symbol={word.partition('=')[0]}" for word in renamed]
        made = os.path.join(folder, member)
        for command in (
            [linker, *JOIN, "-o", joined, objects],
            [objcopy, *keep, joined],
            [objcopy, f"--redefine-syms={names}", joined, made],
            [archiver, "rcsD", out, made],
        ):
            done = subprocess.run(command, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
