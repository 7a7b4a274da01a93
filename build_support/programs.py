# SPDX-License-Identifier: MIT
"""tests/programs.yaml: the C and C++ test programs, one small table."""

from __future__ import annotations

import os
from typing import Literal

import msgspec
import yaml

from codegen.schema import typed


class Program(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sources: list[str]
    links: Literal["library", "inside", "engine", "nothing"] = "nothing"
    modes: list[Literal["release", "debug", "sanitize", "thread"]] = msgspec.field(default_factory=lambda: ["release"])
    each: Literal["once", "target"] = "once"
    flags: list[str] = []
    defines: list[str] = []

    @property
    def for_each(self) -> str:
        """The unit that a program is built for: "receipt" for one that links a library, "target", or "" for once."""
        return "receipt" if self.links in ("library", "inside") else "target" if self.each == "target" else ""


def read_programs(path: str) -> list[Program]:
    """The table. ValueError with the file's name when it does not fit."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        text = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        return typed.convert(text["programs"] or [], list[Program])
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
