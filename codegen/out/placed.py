# SPDX-License-Identifier: MIT
"""Files put into a folder of somebody else's, an installation or a vendored tree, with a ledger of what is ours there.

Only what changes is written, what is ours and no longer wanted goes, and what is not ours is neither overwritten nor
removed. The ledger is written first, naming old and new files: after an interruption everything is still known.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from codegen.emit import files
from codegen.schema import typed
from codegen.schema.errors import CodegenError


class Link(bytes):
    """Target of a symbolic link, in place of a file's content."""


class Ledger(msgspec.Struct):
    """Least contents of a ledger: the digest of each file by path; "" where a change was interrupted."""

    files: dict[str, str]


class Change(NamedTuple):
    """Paths, sorted. `by_hand`: those written or removed that somebody had changed."""

    written: list[str]
    removed: list[str]
    by_hand: list[str]


def known(folder: str, ledger: str) -> dict[str, str]:
    """The files of a ledger, {} when there is none. CodegenError when it cannot be read."""
    path = os.path.join(folder, ledger)
    data = files.read(path)
    if data is None:
        return {}
    try:
        listed = typed.decode(data, Ledger).files
    except msgspec.MsgspecError as error:
        raise CodegenError(f"{path} cannot be read: {error}. Remove it, and what it was to list, by hand.") from error
    for name in listed:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise CodegenError(f"{path} names {name}, which is not below its folder. Remove the ledger by hand.")
    return listed


def place(
    folder: str,
    made: Mapping[str, bytes],
    ledger: str,
    record: bytes,
    *,
    shared: Collection[str] = (),
    permissions: int | None = None,
    write: bool = True,
) -> Change:
    """Make `made` true under `folder`, `record` being the new ledger.

    `shared` are paths that other ledgers of the folder name: ours to write, not to remove. CodegenError, and nothing
    touched, when a file is in the way that no ledger names. With write=False nothing is touched; the answer is what
    would have been.
    """
    old = known(folder, ledger)
    found = {path: _read(os.path.join(folder, path), made.get(path)) for path in {*made, *old}}
    strange = sorted(p for p in made if found[p] not in (None, made[p]) and p not in old and p not in shared)
    if strange:
        what = "\n".join(f"  {path}" for path in strange[:20])
        raise CodegenError(
            f"{folder}: not overwritten, as Tilekiln has not put it there (nothing was changed):\n{what}\n"
            "Remove it, or name another folder."
        )
    changed = sorted(path for path in made if found[path] != made[path])
    gone = sorted(path for path in old.keys() - made.keys() - set(shared) if found[path] is not None)
    by_hand = []
    for path in sorted({*changed, *gone} & old.keys()):
        data = found[path]
        if data is not None and old[path] not in ("", files.digest(data)):
            by_hand.append(path)
    if write:
        if changed or gone:
            between = {path: old.get(path, "") for path in {*old, *made}}
            for path in changed:
                between[path] = ""
            note = msgspec.json.encode(Ledger(dict(sorted(between.items()))))
            files.write(os.path.join(folder, ledger), note, permissions)
        for path in changed:
            _write(os.path.join(folder, path), made[path], permissions)
        for path in gone:
            files.remove(folder, path)
        if files.read(os.path.join(folder, ledger)) != record:
            files.write(os.path.join(folder, ledger), record, permissions)
    return Change(changed, gone, by_hand)


def _read(path: str, wanted: bytes | None) -> bytes | None:
    """A file's content, or what a link names where a link is wanted, or where nothing is; None: not there."""
    if os.path.islink(path) and (wanted is None or isinstance(wanted, Link)):
        return Link(os.fsencode(os.readlink(path)))
    return files.read(path)


def _write(path: str, data: bytes, permissions: int | None) -> None:
    if not isinstance(data, Link):
        files.write(path, data, permissions)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}.tmp"
    os.symlink(data, os.fsencode(new))
    os.replace(new, path)


def withdraw(folder: str, ledger: str, *, shared: Collection[str] = (), write: bool = True) -> list[str]:
    """Remove what a ledger names and the ledger, and folders that are then empty; the paths removed, sorted."""
    paths = [path for path in sorted(known(folder, ledger)) if path not in shared]
    gone = [path for path in paths if os.path.lexists(os.path.join(folder, path))]
    if write:
        for path in gone:
            files.remove(folder, path)
        if os.path.exists(os.path.join(folder, ledger)):
            files.remove(folder, ledger)
        if os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
    return gone
