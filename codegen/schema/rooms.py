"""Where operators and families lie: a room is a folder below kernels/ that holds operator.yaml, family.yaml or both.

It is named as what it holds. The room of a stage may lie in that of its operator, without the operator's name:
kernels/attention/fmha_bwd/dot_do_o holds the family fmha_bwd_dot_do_o. A folder with arguments.yaml is an area: what
its operators, the rooms in it, have in common.
"""

from __future__ import annotations

import os

from codegen.schema.yaml_io import Document

KERNELS = "kernels"


def found(root: str, file: str) -> dict[str, Document]:
    """The files of this name in rooms, by the name of what they hold, sorted. CodegenError where two hold the same."""
    rooms: dict[str, Document] = {}
    for folder in sorted(_folders(root, file)):
        document = Document(root, f"{folder}/{file}")
        names = _names(root, folder)
        word = file.removesuffix(".yaml")
        name = str(document.peek(word))
        if name not in names:
            raise document.error((word,), f"the {word} in {folder} must be named {' or '.join(names)}")
        if name in rooms:
            raise document.error((word,), f"{rooms[name].shown} is the {word} of this name")
        rooms[name] = document
    return dict(sorted(rooms.items()))


def areas(root: str) -> dict[str, Document]:
    """By the path of their folder."""
    return {folder: Document(root, f"{folder}/arguments.yaml") for folder in sorted(_folders(root, "arguments.yaml"))}


def folder_of(document: Document) -> str:
    """The room of a family or an operator, from the tree's root."""
    return os.path.dirname(document.shown)


def _names(root: str, folder: str) -> list[str]:
    """What a room may hold."""
    above, name = os.path.split(folder)
    inside = os.path.isfile(os.path.join(root, above, "operator.yaml"))
    return [name, f"{os.path.basename(above)}_{name}"] if inside else [name]


def _folders(root: str, file: str) -> list[str]:
    here = []
    for above, folders, files in os.walk(os.path.join(root, KERNELS)):
        folders[:] = [name for name in folders if name[0] != "."]
        if file in files:
            here.append(os.path.relpath(above, root).replace(os.sep, "/"))
    return here
