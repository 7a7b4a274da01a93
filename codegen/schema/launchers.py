# SPDX-License-Identifier: MIT
"""The problem of a launcher, `launcher:` of an operator.yaml: what is known before there is any data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from codegen.schema.errors import no_such
from codegen.schema.yaml_io import Document
from codegen.schema.yaml_types import Text

Whole = int  # a field below is named `int`


class FieldFile(Struct, frozen=True, forbid_unknown_fields=True):
    """An axis of the main stage, an integer, or a device."""

    axis: Literal[True] | None = None  # the values of the axis of its name; dtype: their numbers in the C API
    int: Literal["int32", "int64"] | None = None
    device: Literal[True] | None = None  # type and id, as DLPack numbers them
    field: Text | None = None  # its name in C, unless that is its own
    least: Whole = 0
    most: Whole | None = None  # that of the type unless said
    about: str = ""


class LauncherFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Declaration of an operator's launchers: tilekiln_<operator>_launcher_create and the functions of a launcher."""

    about: Text
    problem: dict[Text, FieldFile]


class Field:
    """One field of a problem."""

    words: Sequence[str] = ()  # the values of an axis that is more than yes and no

    def __init__(self, name: str, file: FieldFile) -> None:
        self.name, self.file = name, file
        bare = file.field or name
        self.fields = [f"{bare}_type", f"{bare}_id"] if file.device else [bare]

    @property
    def c_type(self) -> str:
        return f"{self.file.int or 'int32'}_t"

    @property
    def kind(self) -> str:
        """Its tilekiln_kind, without the prefix."""
        if self.file.device:
            return "PAIR_INT"
        if self.file.int:
            return "INT" if self.file.int == "int32" else "LONG"
        return "DTYPE_WORD" if self.is_dtype else "WORD" if self.words else "FLAG"

    @property
    def is_dtype(self) -> bool:
        return bool(self.file.axis) and self.name == "dtype"

    @property
    def range(self) -> tuple[str, str] | None:
        """The least and the most that it may be, in C++; null where that is no question of a range."""
        if self.file.device or self.is_dtype:
            return None
        if self.file.axis:
            return "0", str(len(self.words) - 1 if self.words else 1)
        return str(self.file.least), str(self.file.most or f"{self.c_type.removesuffix('_t').upper()}_MAX")


def fields(document: Document, file: LauncherFile, axes: Mapping[str, Sequence[str]]) -> list[Field]:
    """The fields of a problem; axes: of the main stage, with their values. CodegenError for what is none."""
    made = []
    for name, one in file.problem.items():
        at = ("launcher", "problem", name)
        if sum(kind is not None for kind in (one.axis, one.int, one.device)) != 1:
            raise document.error(at, f"'{name}' must be one of axis, int, device")
        field = Field(name, one)
        if one.axis:
            if name not in axes:
                raise document.error(at, no_such("axis of the main stage", name, axes))
            field.words = () if list(axes[name]) == ["no", "yes"] else axes[name]
        made.append(field)
    return made
