# SPDX-License-Identifier: MIT
"""Backends: how targets of one kind are recognised and compiled. One kernels/backends/<name>/backend.yaml each."""

from __future__ import annotations

from codegen.schema import yaml_types
from codegen.schema.errors import no_such
from codegen.schema.machines import MACHINES, PLANNED
from codegen.schema.yaml_io import Document


class Backend:
    """Attributes are those of the file; `machine` is the entry of codegen.schema.machines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        file = document.load(yaml_types.BackendFile)
        self.name, self.about, self.device, self.hub = file.backend, file.about, file.device, file.hub
        self.toolchain, self.for_tests = file.toolchain or "none", file.for_tests
        if document.shown.split("/")[-2] != self.name:
            raise document.error(("backend",), f"the file must lie in kernels/backends/{self.name}")
        self.planned, self.engine, self.limits = file.planned, file.engine, file.limits
        self.absent = {name: one.says for one in file.absent for name in one.families}
        for key in ("machine", "toolchain"):
            if (getattr(file, key) is None) != file.planned:
                what = "it has none yet: leave it out, or planned out" if file.planned else f"'{key}' is missing here"
                raise document.error((key,) if file.planned else (), what)
        word = file.machine or PLANNED
        if word not in MACHINES:
            raise document.error(("machine",), no_such("machine", word, MACHINES).replace("\n", "; "))
        self.machine = MACHINES[word]

    @property
    def host(self) -> bool:
        """Whether its memory is the host's own."""
        return self.device == 1
