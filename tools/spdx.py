# SPDX-License-Identifier: MIT
"""Licences of files, as https://reuse.software asks for them: an SPDX line in each source, REUSE.toml for the rest.

tools/dev python tools/spdx.py           names sources without the line; status 1 where there are some
tools/dev python tools/spdx.py --write   puts it there, behind a first line of `#!`
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from codegen.emit import licence  # noqa: E402


def without(root: Path = ROOT) -> list[str]:
    """Sources that git has or would take, and whose first three lines do not say their licence."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    sources = [path for path in sorted({*listed}) if licence.line(path) and (root / path).is_file()]
    return [path for path in sources if licence.LINE not in "".join((root / path).read_text().splitlines(True)[:3])]


def written(text: str, line: str) -> str:
    """The text with the line at its top, or below that of its interpreter."""
    first, newline, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    return f"{first}{newline}{line}{rest}"


def main(argv: list[str], root: Path = ROOT) -> int:
    if argv not in ([], ["--write"]):
        print(f"tools/spdx.py: was given {' '.join(argv)}, must be nothing or --write", file=sys.stderr)
        return 2
    found = without(root)
    for path in found:
        if argv:
            (root / path).write_text(written((root / path).read_text(), licence.line(path)))
        else:
            print(f"{path}: has no line '{licence.LINE}': tools/dev python tools/spdx.py --write")
    return int(bool(found) and not argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
