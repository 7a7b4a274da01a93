# SPDX-License-Identifier: MIT
"""Every operator, for the facade's choice of a library, PyTorch's operators, and shapes of results.

`python -m codegen write` makes `operators.json` from kernels/*/*/operator.yaml.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .._core.shapes import Operator, operator_of


def _read() -> dict[str, dict[str, Any]]:
    with open(os.path.join(os.path.dirname(__file__), "operators.json"), encoding="utf-8") as file:
        found: dict[str, dict[str, Any]] = json.load(file)
    return found


DECLARED = _read()
"""By operator what is `known` of it, and how `tilekiln bench` makes a `call`."""
OPERATORS: dict[str, Operator] = {name: operator_of(one["known"]) for name, one in DECLARED.items()}
