# SPDX-License-Identifier: MIT
"""A library whose calls take what was measured to be the fastest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .table import Table, beside, call_key, read, taken

if TYPE_CHECKING:
    from ..api.library import Library


class Tuned:
    """The operators of a library, each problem by its table's winner; what the table has not is the library's choice.

    table: of this very library, else ArgumentError; None is what `tilekiln tune --pin` has put beside it.
    """

    def __init__(self, library: Library, table: Table | None = None) -> None:
        table = read(beside(library), library) if table is None else table
        taken(library, table)
        self.library, self.table = library, table
        self._numbers = {row[0]: at for at, row in enumerate(library.manifest["instances"]["rows"])}

    def settings(self, operator: str, *arrays: Any, **arguments: Any) -> dict[str, int]:
        """Tuned arguments of a call: instance, and num_splits or num_threads; empty without a winner."""
        problem, shapes, _ = call_key(self.library, operator, arrays, arguments)
        winner = self.table.winners.get(f"{problem} {shapes}")
        if winner is None:
            return {}
        return {"instance": self._numbers[winner.instance], **winner.settings}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self.library.operators:
            raise AttributeError(f"library {self.library.receipt} has no {name}")
        return functools.partial(self._call, name)

    def _call(self, operator: str, *arrays: Any, **arguments: Any) -> Any:
        settings = self.settings(operator, *arrays, **arguments)
        return getattr(self.library, operator)(*arrays, **{**settings, **arguments})
