"""The generated C++ of operators, below kernels/generated/operators in a build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen.emit.operators.binding import Table
from codegen.emit.operators.check import Check, listed
from codegen.emit.operators.check import code as dtype_code
from codegen.schema.errors import no_such
from codegen.schema.operators import Operator

__all__ = ["context", "dtype_code", "listed", "table"]


def table(operator: Operator) -> dict[str, Any]:
    """Context of kernels/runtime/operator_table.h.jinja."""
    return Table(operator).context()


def context(operator: Operator, operators: Mapping[str, Operator]) -> dict[str, Any]:
    """Context of kernels/runtime/operator.h.jinja."""
    check = Check(operator)
    bound = [s.letter for bracket in operator.symbol_order for s in bracket if not s.file.host]
    alike = operator.file.alike
    if alike is not None and alike not in operators:
        raise operator.document.error(("alike",), no_such("operator", alike, operators))
    others = {field for a in operators[alike].arguments.values() for field in a.fields} if alike else set[str]()
    return {
        "operator": operator,
        "alike": [field for a in operator.arguments.values() for field in a.fields if field in others],
        "main": operator.main,
        "letters": bound,
        "places": check.kept_places,
        "hosts": check.hosts,
        "shape_functions": check.shape_functions,
        "tables": list(check.tables.values()),
        "lines": check.lines,
    }
