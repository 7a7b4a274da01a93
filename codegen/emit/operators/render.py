# SPDX-License-Identifier: MIT
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


DEVICES = {"cpu": "TILEKILN_CPU", "cuda": "2"}
"""DLPack's types of devices."""


def _instead(operator: Operator, operators: Mapping[str, Operator]) -> dict[str, Any] | None:
    """The rule of `instead`; `own`: fields of arguments that the other operator lacks, or means otherwise."""
    file = operator.file.instead
    if file is None:
        return None
    other = operators.get(file.by)
    if other is None:
        raise operator.document.error(("instead", "by"), no_such("operator", file.by, operators))
    if [a.name for a in operator.positional] != [a.name for a in other.positional]:
        raise operator.document.error(("instead", "by"), f"{file.by} takes other arrays")
    form = operator.forms[0]
    shapes = [operator.shape(form, operator.first.name, exchanged) or () for exchanged in (False, True)]
    assert operator.exchange
    word, value = operator.exchange
    theirs = {field for a in other.arguments.values() for field in a.fields}
    shared, own = list[str](), list[str]()
    for a in operator.arguments.values():
        for field in a.fields:
            (own if a.name in file.unless or field not in theirs else shared).append(field)
    return {
        "by": file.by,
        "family": other.file.stages[0],
        "stages": len(other.file.stages),
        "ndim": len(shapes[0]),
        "places": [[one.letter for one in shape].index(file.length) for shape in shapes],
        "most": [
            (
                DEVICES[device],
                most,
                *((of.most, of.times, of.fewest) if (of := file.grouped.get(device)) else (0, 0, 0)),
            )
            for device, most in file.most.items()
        ],
        "fewest": file.fewest,
        "dtypes": file.dtypes,
        "arrays": [a.name for a in operator.positional],
        "exchange": (word, operator.arguments[word].value.index(value)),
        "own": own,
        "shared": shared,
    }


def context(operator: Operator, operators: Mapping[str, Operator]) -> dict[str, Any]:
    """Context of kernels/runtime/operator.h.jinja and operator_entries.h.jinja."""
    check = Check(operator)
    bound = [s.letter for bracket in operator.symbol_order for s in bracket if not s.file.host]
    alike = operator.file.alike
    if alike is not None and alike not in operators:
        raise operator.document.error(("alike",), no_such("operator", alike, operators))
    others = {field for a in operators[alike].arguments.values() for field in a.fields} if alike else set[str]()
    return {
        "operator": operator,
        "alike": [field for a in operator.arguments.values() for field in a.fields if field in others],
        "instead": _instead(operator, operators),
        "main": operator.main,
        "letters": bound,
        "places": check.kept_places,
        "hosts": check.hosts,
        "shape_functions": check.shape_functions,
        "tables": list(check.tables.values()),
        "lines": check.lines,
    }
