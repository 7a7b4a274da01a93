# SPDX-License-Identifier: MIT
"""Sentences of a compatibility module about names that upstream has and it has not."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Callable
from typing import Any


@functools.cache
def _reasons() -> dict[str, dict[str, list[str]]]:
    """Module -> reason -> names, as python/compat/upstream.yaml has them."""
    file = importlib.resources.files("tilekiln._generated").joinpath("absent.json")
    reasons: dict[str, dict[str, list[str]]] = json.loads(file.read_text())
    return reasons


def sentences(module: str, gathers: bool = False) -> Callable[[str], Any]:
    """The `__getattr__` of a compatibility module: AttributeError, which says why a name of upstream is absent.

    gathers: the module is a package that has the names of its modules, too.
    """
    name = module.removeprefix("tilekiln.compat.")

    def absent(attribute: str) -> Any:
        for where, reasons in _reasons().items():
            if where != name and not (gathers and where.startswith(f"{name}.")):
                continue
            for reason, names in reasons.items():
                if attribute in names:
                    raise AttributeError(f"{where}.{attribute} is not here: {reason}", name=attribute)
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}", name=attribute)

    return absent
