# SPDX-License-Identifier: MIT
"""msgspec's typed readers, which Ctrl-C does not interrupt."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from codegen.schema.uninterrupted import uninterrupted

T = TypeVar("T")


def convert(value: Any, kind: type[T]) -> T:
    """The lists, mappings and numbers of a document as `kind`. msgspec.ValidationError where they do not fit."""
    with uninterrupted():
        return msgspec.convert(value, kind)


def decode(text: str | bytes | msgspec.Raw, kind: type[T]) -> T:
    """JSON as `kind`. msgspec.MsgspecError where it is none, or does not fit."""
    with uninterrupted():
        return msgspec.json.decode(text, type=kind)
