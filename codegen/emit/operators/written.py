# SPDX-License-Identifier: MIT
"""The committed files made from declarations of operators, dispatcher and targets: a review sees what changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from codegen.emit import cpu_targets, dispatcher, dispatcher_header, files, licence, upstream_names
from codegen.emit.operators import header, python_table, stubs
from codegen.schema.errors import CodegenError
from codegen.schema.operators import Operator

if TYPE_CHECKING:
    from codegen.schema.receipts import Receipt
    from codegen.schema.tree import Tree


def receipts(tree: Tree) -> dict[str, str]:
    """The receipt that people are told to build for each operator: flash, else a default of most families."""

    def order(receipt: Receipt) -> tuple[bool, bool, int]:
        return receipt.name != "flash", not receipt.name.endswith("_default"), -len(receipt.clauses)

    listed = sorted(tree.all_receipts(), key=order)
    return {
        name: next((one.name for one in listed if operator.file.stages[operator.main] in one.clauses), "")
        for name, operator in tree.own_operators.items()
    }


def contents(operators: Mapping[str, Operator], receipts: Mapping[str, str]) -> dict[str, str]:
    """Text by path from the root of the tree. receipts: what builds each operator."""
    headers = {f"include/{header.path(one)}": header.text(one) for one in operators.values()}
    made = {
        "include/tilekiln/operators.h": header.all_of(operators),
        "python/tilekiln/_generated/declared.pyi": stubs.text(operators),
        "python/tilekiln/torch/_declared.py": stubs.torch_text(operators),
        "python/tilekiln/_generated/operators.json": python_table.text(operators, receipts),
    }
    return made | headers


def of_tree(tree: Tree) -> dict[str, str]:
    """Text by path of all such files of a tree."""
    return _of_operators(tree) | _licensed(cpu_targets.contents(tree) | upstream_names.contents(tree.root))


def _of_operators(tree: Tree) -> dict[str, str]:
    made = contents(tree.own_operators, receipts(tree)) | dispatcher.contents(tree.places)
    return _licensed(made | dispatcher.limits(tree) | dispatcher_header.contents(tree.places))


def _licensed(made: dict[str, str]) -> dict[str, str]:
    return {path: licence.line(path) + text for path, text in made.items()}


def write(tree: Tree) -> str:
    root = tree.root
    made = {path: text.encode() for path, text in of_tree(tree).items()}
    for path in made:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    written = files.write_changed(root, made)
    return "\n".join(f"{path}: {'written' if path in written else 'up to date'}" for path in sorted(made))


def check(tree: Tree) -> None:
    """CodegenError when a file that kernels or callers read is not what would be written now."""
    made = _of_operators(tree)
    stale = [path for path, text in made.items() if not files.unchanged(os.path.join(tree.root, path), text.encode())]
    if stale:
        raise CodegenError(f"out of date: {', '.join(sorted(stale))}\nwrite them: python -m codegen write")
