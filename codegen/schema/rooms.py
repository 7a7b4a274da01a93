# SPDX-License-Identifier: MIT
"""Rooms of operators and families: folders below kernels/ that hold operator.yaml, family.yaml or both.

It is named as what it holds. The room of a stage may lie in that of its operator, without the operator's name:
kernels/attention/fmha_bwd/dot_do_o holds the family fmha_bwd_dot_do_o. A folder with arguments.yaml is an area: what
its operators, the rooms in it, have in common. Folders from outside (places) hold rooms and areas as kernels/ does.
"""

from __future__ import annotations

import os

from codegen.schema.places import Places
from codegen.schema.yaml_io import Document

KERNELS = "kernels"


def found(places: Places, file: str) -> dict[str, Document]:
    """The files of this name in rooms, by the name of what they hold, sorted. CodegenError where two hold the same."""
    rooms: dict[str, Document] = {}
    for folder in sorted(_folders(places, file)):
        document = Document(places, f"{folder}/{file}")
        names = _names(places, folder)
        word = file.removesuffix(".yaml")
        name = str(document.peek(word))
        if name not in names:
            raise document.error((word,), f"the {word} in {folder} must be named {' or '.join(names)}")
        if name in rooms:
            raise document.error((word,), f"{rooms[name].shown} is the {word} of this name")
        rooms[name] = document
    return dict(sorted(rooms.items()))


def areas(places: Places) -> dict[str, Document]:
    """By the path of their folder."""
    found = sorted(_folders(places, "arguments.yaml"))
    return {folder: Document(places, f"{folder}/arguments.yaml") for folder in found}


def folder_of(document: Document) -> str:
    """The room of a family or an operator, as a path of the tree."""
    return os.path.dirname(document.path)


def _names(places: Places, folder: str) -> list[str]:
    """Names of operators or families that a room may hold."""
    above, name = os.path.split(folder)
    inside = os.path.isfile(places.at(f"{above}/operator.yaml"))
    return [name, f"{os.path.basename(above)}_{name}"] if inside else [name]


def _folders(places: Places, file: str) -> list[str]:
    tops = [KERNELS, *(one.path for one in places.outside)]
    return [os.path.dirname(path) for top in tops for path in places.walk(top) if os.path.basename(path) == file]
