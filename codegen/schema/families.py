# SPDX-License-Identifier: MIT
"""The families of a tree, each loaded when it is first asked for: a command about one receipt reads what that has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from codegen.schema import rooms
from codegen.schema.axes import Family
from codegen.schema.errors import no_such
from codegen.schema.places import Places
from codegen.schema.yaml_io import Document


class Families(Mapping[str, Family]):
    """By name, sorted. CodegenError as a family is loaded whose file is wrong."""

    def __init__(self, places: Places) -> None:
        self._documents: dict[str, Document] = rooms.found(places, "family.yaml")
        self._loaded: dict[str, Family] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, name: object) -> bool:
        return name in self._documents

    def __getitem__(self, name: str) -> Family:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def main_of(self, name: str) -> str:
        """The family that this one is a companion of, else itself; nothing is loaded."""
        return self._documents[name].peek("companion_of") or name

    def _load(self, name: str) -> Family:
        """A companion is made from its main family, and whoever has the engines of another from that one."""
        document, main, engine = self._documents[name], self._said(name, "companion_of"), self._said(name, "engine")
        if main is not None and self._said(main, "companion_of", main) is not None:
            choices = [other for other in self if self._said(other, "companion_of") is None]
            raise document.error(("companion_of",), no_such("family with a plan of its own", main, choices))
        owner = main if engine == "main" else engine
        if engine not in (None, "main") and self._said(engine, "engine", engine) is not None:
            choices = [other for other in self if self.main_of(other) == other and self._said(other, "engine") is None]
            raise document.error(("engine",), no_such("family with engines of its own", engine, choices))
        return Family(document, self[main] if main else None, self.get(owner or ""))

    def _said(self, name: str | None, key: str, missing: str | None = None) -> str | None:
        """A value in the file of a family before it is loaded; `missing` where there is no such family."""
        return self._documents[name].peek(key) if name in self._documents else missing
