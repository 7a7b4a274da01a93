"""The committed files that are made from operator.yaml: a review sees what a change does to them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from codegen.emit import files
from codegen.emit.operators import header, python_table, stubs
from codegen.schema.errors import CodegenError
from codegen.schema.operators import Operator


def contents(operators: Mapping[str, Operator]) -> dict[str, str]:
    """Text by path from the root of the tree."""
    headers = {f"include/{header.path(one)}": header.text(one) for one in operators.values()}
    made = {
        "include/tilekiln/operators.h": header.all_of(operators),
        "python/tilekiln/_declared.py": stubs.text(operators),
        "python/tilekiln/torch/_declared.py": stubs.torch_text(operators),
        "python/tilekiln/_functions.pyi": stubs.functions_text(operators),
        "python/tilekiln/_tables.py": python_table.text(operators),
    }
    return made | headers


def write(root: str, operators: Mapping[str, Operator]) -> str:
    made = {path: text.encode() for path, text in contents(operators).items()}
    for path in made:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    written = files.write_changed(root, made)
    return "\n".join(f"{path}: {'written' if path in written else 'up to date'}" for path in sorted(made))


def check(root: str, operators: Mapping[str, Operator]) -> None:
    """CodegenError when a file in the tree is not what would be written now."""
    made = contents(operators)
    stale = [path for path, text in made.items() if not files.unchanged(os.path.join(root, path), text.encode())]
    if stale:
        raise CodegenError(f"out of date: {', '.join(sorted(stale))}\nwrite them: python -m codegen operators --write")
