"""The generated C++ of operators, below include/tilekiln/generated/operators in a build."""

from __future__ import annotations

from typing import Any

from codegen.operators.binding import Table
from codegen.operators.check import Check
from codegen.operators.model import Operator


def table(operator: Operator) -> dict[str, Any]:
    """What kernels/library/operator_table.h.jinja needs."""
    return Table(operator).context()


def context(operator: Operator) -> dict[str, Any]:
    """What kernels/library/operator.h.jinja needs."""
    check = Check(operator)
    bound = [s.letter for bracket in operator.symbol_order for s in bracket if not s.file.host]
    return {
        "operator": operator,
        "main": operator.main,
        "letters": bound,
        "places": check.kept_places,
        "hosts": check.hosts,
        "tables": list(check.tables.values()),
        "lines": check.lines,
    }
