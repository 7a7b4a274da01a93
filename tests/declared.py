# SPDX-License-Identifier: MIT
"""Functions declared by the public headers for the libraries of a receipt."""

from __future__ import annotations

import re
from pathlib import Path

from codegen.out.sources import public_headers
from codegen.plan import held
from codegen.plan.plan import resolve


def functions(root: Path, receipt: str, where: str = "") -> set[str]:
    """The C functions that its libraries of a selection export: none of operators that they do not hold."""
    operators = {operator.name for operator in held.operators(resolve(receipt, ["cpu-generic"], where))}
    headers = [Path(header) for header in public_headers(str(root))]
    kept = [h for h in headers if h.parent.name != "operators" or h.stem in operators]
    text = "".join((root / "include" / header).read_text() for header in kept)
    every = set(re.findall(r"TILEKILN_API [\w* ]*?\*?\s*(tilekiln_\w+)\(", text))
    # The launcher of the backward is declared beside what every library has.
    return {name for name in every if "fmha_bwd" in operators or not re.match("tilekiln_(fmha_)?bwd_", name)}
