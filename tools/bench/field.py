# SPDX-License-Identifier: MIT
"""field: the field table of the CPU: every row of tools/field.yaml by the call that users make, beside its best peer.

    tools/dev --with torch --with peers python tools/bench field [--only decode] [--threads 1,all] [--part 1/3]

tools/field holds the program, which tools/gpu field is on a GPU.
"""

from __future__ import annotations

from tools.field import program


def main(argv: list[str]) -> int:
    return program.main(argv, "cpu")
