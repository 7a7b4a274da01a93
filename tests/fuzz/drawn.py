# SPDX-License-Identifier: MIT
"""Right calls of the operators whose reference draws them (tilekiln.reference.drawn), compared with float64."""

from __future__ import annotations

from typing import Any

import tilekiln as tk
from tilekiln.reference import drawn as drawer
from tilekiln.reference.drawn import EDGES, Random

from tests import cases
from tests.fuzz.calls import Call, MismatchError, instances
from tests.fuzz.draw import Draw
from tests.fuzz.memory import ENDS, Host


def drawn(library: tk.Library) -> list[str]:
    """The operators that a library has such calls of."""
    return [name for name in library.manifest["families"] if drawer.drawer(name) and _instances(library, name)]


def _instances(library: tk.Library, operator: str) -> list[tk.Instance]:
    """as_x: CK lists it; no call asks for it."""
    return [one for one in instances(library, operator) if one.signature.get("y_dtype") != "as_x"]


class DrawnCall(Call):
    """A call for an instance of the library, at the edges of the CPU."""

    def __init__(self, library: tk.Library, case: Any) -> None:
        self.case, self.library, self.draw = case, library, Draw(case.seed)
        kernels = _instances(library, case.operator)
        self.instance = self.draw.one(kernels)
        self.drawn = drawer.draw(case.operator, Random(case.seed, EDGES["cpu"]), self.instance.signature)
        number = self.draw.one(cases.serving(library, case.operator, self.drawn, kernels))
        self.options = {"instance": number, "num_threads": self.draw.often(1, 0, 2, 3)}

    def run(self) -> None:
        """Raises MismatchError, with what was wrong."""
        device = Host(self.draw.one(ENDS))
        try:
            error = cases.share(self.library, self.case.operator, self.drawn, device, **self.options)
        except AssertionError as wrong:
            raise MismatchError(str(wrong)) from None
        if not error <= 1:
            raise MismatchError(f"error {error:.3g} times its bound")

    def __str__(self) -> str:
        return f"{self.instance.name}\n  {self.case.operator}({self.drawn}, {self.options})"
