# SPDX-License-Identifier: MIT
"""Operators from outside in a build: links to their folders in the variant's, by which compilers find them.

So a source or header of theirs has the same name on every machine, and nothing that is compiled says where it lies.
"""

from __future__ import annotations

import os

from codegen.schema.places import Places

FOLDER = "outside"


def link(places: Places, directory: str) -> None:
    """Make `directory`/outside/operators/NAME lead to each folder."""
    for one in places.outside:
        path = os.path.join(directory, FOLDER, one.path)
        if os.path.islink(path) and os.readlink(path) == one.folder:
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        os.symlink(one.folder, temporary)
        os.replace(temporary, path)


def path_of(places: Places, directory: str, path: str) -> str:
    """A path of the tree as it is found from the root: by its link, or where it lies while there is no link."""
    linked = f"{directory}/{FOLDER}/{path}"
    if not any(f"{path}/".startswith(f"{one.path}/") for one in places.outside):
        return path
    return (
        linked if os.path.exists(os.path.join(places.root, linked)) else os.path.relpath(places.at(path), places.root)
    )


def headers(places: Places, directory: str) -> list[str]:
    """Include folders for "operators/NAME/..." of operators from outside."""
    return [f"{directory}/{FOLDER}"] if places.outside else []
