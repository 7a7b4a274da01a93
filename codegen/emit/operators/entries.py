# SPDX-License-Identifier: MIT
"""Arguments of an operator as languages above C see them: its page and its table of a binding are made from these."""

from __future__ import annotations

from typing import NamedTuple

from codegen.schema.operators import Argument, Operator


class Entry(NamedTuple):
    """One argument as other languages see it: one of C, or what asks for a result, or what chooses its dtype."""

    name: str
    argument: Argument | None
    result: Argument | None = None

    @property
    def asks(self) -> bool:
        return self.result is not None and self.result.file.asked_by == self.name

    @property
    def words(self) -> list[str]:
        """The choices of a word or of a dtype."""
        if self.argument:
            return list(self.argument.value) if self.argument.kind == "word" else []
        assert self.result is not None
        return (
            []
            if self.asks
            else list(
                dict.fromkeys(str(dtype) for dtypes in (self.result.file.when or {}).values() for dtype in dtypes)
            )
        )


def entries(operator: Operator) -> list[Entry]:
    """Arrays, those by position first; then everything else in the order that Python shows."""
    arrays = sorted(operator.arrays, key=lambda a: not a.file.place)
    others = [Entry(a.name, a) for a in operator.scalars if a.kind != "executor"]
    others += [Entry(name, None, result) for name, result in operator.asks.items()]
    order = operator.python_order or [entry.name for entry in others]
    missing = [entry.name for entry in others if entry.name not in order]
    if missing:
        raise operator.document.error(("python_order",), f"'{missing[0]}' is missing here")
    return [Entry(a.name, a) for a in arrays] + sorted(others, key=lambda entry: order.index(entry.name))
