# SPDX-License-Identifier: MIT
"""Operators from outside the tree: manifests of their libraries bring what frameworks must know of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._generated.tables import OPERATORS
from .shapes import operator_of

if TYPE_CHECKING:
    from ..api.library import Library

followers: list[Callable[[str], None]] = []
"""Called with the name of each, in this order: PyTorch's operators and their rules, once that is imported."""
_brought: dict[str, tuple[Any, str]] = {}


def bring(library: Library) -> None:
    """Make the operators of a library known that are not yet."""
    if all(name in OPERATORS and name not in _brought for name in library.operators):
        return
    for name, said in library.manifest.get("operators", {}).items():
        if name not in OPERATORS:
            OPERATORS[name] = operator_of(said)
            _brought[name] = said, library.path
            for follow in followers:
                follow(name)
        elif name in _brought and _brought[name][0] != said:
            warnings.warn(
                f"{library.path} declares {name} otherwise than {_brought[name][1]}, which frameworks know it by: "
                f"torch.ops.tilekiln.{name} stays as that one says",
                RuntimeWarning,
                stacklevel=4,
            )
