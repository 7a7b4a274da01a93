# SPDX-License-Identifier: MIT
"""Facts about shared libraries, as binutils say them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def left_to_the_loader(library: Path) -> set[str]:
    """Exports of a library that its own code reaches by a relocation: the loader may bind them to another library's."""
    said = subprocess.run(["readelf", "-rW", str(library)], capture_output=True, text=True, check=True).stdout
    named = {re.split(r"[@ ]", line.split(maxsplit=4)[4])[0] for line in said.splitlines() if len(line.split()) >= 5}
    shown = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return named & {line.split()[-1].split("@")[0] for line in shown.stdout.splitlines()}
