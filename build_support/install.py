# SPDX-License-Identifier: MIT
"""`scons install`: libraries, headers, manifests and packages below a prefix, and what `-c install` takes away again.

Every receipt has a ledger in the prefix, so receipts share headers, and an uninstallation removes what was installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from codegen.emit import files
from codegen.emit.flags import manifest_name
from codegen.emit.operators import header
from codegen.emit.soname import soname
from codegen.out import placed, sbom, static
from codegen.out.sources import public_headers
from codegen.out.vendor import INCLUDE, LIB, SHARE, module_file, packages
from codegen.schema import typed
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree

from .platform_tag import loaded

LEDGERS = "lib/tilekiln/installed"
READABLE = 0o644  # whatever the umask: an installation is for everybody


class Entry(msgspec.Struct):
    """The ledger of one receipt."""

    receipt: str
    version: str
    files: dict[str, str]


@dataclass(frozen=True)
class Place:
    """`prefix` as people name it, absolute; files go to `destdir` + `prefix`."""

    prefix: str
    destdir: str = ""

    @property
    def root(self) -> str:
        return self.destdir + self.prefix


def place(prefix: str, destdir: str) -> Place:
    """Of the options prefix= and DESTDIR=, which may be relative or begin with ~."""
    whole = [os.path.abspath(os.path.expanduser(path)) if path else "" for path in (prefix, destdir)]
    return Place(whole[0], "" if whole[1] == "/" else whole[1])


def _ledger(receipt: str) -> str:
    return f"{LEDGERS}/{receipt}.json"


def _installed(root: str) -> list[str]:
    """The receipts that are installed there."""
    folder = os.path.join(root, LEDGERS)
    return sorted(name[:-5] for name in os.listdir(folder) if name.endswith(".json")) if os.path.isdir(folder) else []


def _of_others(root: str, receipt: str) -> set[str]:
    """Paths that other receipts have installed too."""
    others = [name for name in _installed(root) if name != receipt]
    return {path for name in others for path in placed.known(root, _ledger(name))}


def _entry(root: str, receipt: str) -> Entry | None:
    data = files.read(os.path.join(root, _ledger(receipt)))
    try:
        return typed.decode(data, Entry) if data is not None else None
    except msgspec.MsgspecError:
        return None  # an interrupted installation: known files, no version


def check(where: Place, receipts: Collection[str], version: str) -> None:
    """CodegenError when the prefix holds receipts of another version that would be left beside these."""
    for name in _installed(where.root):
        entry = _entry(where.root, name)
        if name not in receipts and entry is not None and entry.version != version:
            raise CodegenError(
                f"{where.root} holds receipt {name} of Tilekiln {entry.version}, whose headers are there. "
                f"Install both at once (receipt={','.join([*receipts, name])}), or below another prefix."
            )


def made(tree: Tree, receipt: str, library: str, with_static: bool = False) -> dict[str, bytes]:
    """Files installed of a receipt, by path below the prefix, of its built library, beside which its manifest lies."""
    folder, name = os.path.split(library)
    found = {f"{LIB}/{file}": _read(folder, file) for file in (name, manifest_name(receipt))}
    if (numbered := soname(name, tree.root)) != name:
        found[f"{LIB}/{numbered}"] = placed.Link(name.encode())
    found |= {f"{INCLUDE}/{header}": _read(tree.root, f"include/{header}") for header in public_headers(tree.root)}
    if tree.places.outside:
        held = json.loads(found[f"{LIB}/{manifest_name(receipt)}"]).get("operators", {})
        operators = [tree.operators[name] for name in held]
        found |= {f"{INCLUDE}/{header.path(one)}": header.text(one).encode() for one in operators}
    if with_static:
        found[f"{LIB}/{static.library_name(receipt)}"] = _read(folder, static.library_name(receipt))
        found[static.header_path(receipt)] = _read(os.path.dirname(folder), static.header_path(receipt))
    found |= packages(receipt, tree.receipt(receipt).about, tree.version, name, numbered, with_static)
    found |= module_file(tree.version)
    found[f"{SHARE}/LICENSE"] = _read(tree.root, "LICENSE")
    if sbom.there():
        about = tree.receipt(receipt).about
        held = {path: data for path, data in found.items() if not isinstance(data, placed.Link)}
        bill = sbom.text(f"tilekiln-{receipt}", tree.version, about, held, loaded([library]))
        found[f"{SHARE}/tilekiln-{receipt}.{sbom.NAME}"] = bill
    return found


def _read(folder: str, path: str) -> bytes:
    with open(os.path.join(folder, path), "rb") as file:
        return file.read()


def install(tree: Tree, receipt: str, library: str, where: Place, with_static: bool = False) -> str:
    """Installs; what was done, for people. CodegenError when a stranger's file is in the way or writing fails."""
    found = made(tree, receipt, library, with_static)
    entry = Entry(receipt, tree.version, {path: files.digest(data) for path, data in sorted(found.items())})
    record = msgspec.json.format(msgspec.json.encode(entry), indent=1) + b"\n"
    try:
        shared = _of_others(where.root, receipt)
        change = placed.place(where.root, found, _ledger(receipt), record, shared=shared, permissions=READABLE)
    except OSError as error:
        raise CodegenError(
            f"{where.root} cannot be written: {error.strerror}: {error.filename}. "
            "Name a prefix of yours, as prefix=$HOME/.local, or run the installation as its owner."
        ) from error
    lines = [f"installed {os.path.join(where.root, path)}" for path in change.written]
    lines += [f"removed {os.path.join(where.root, path)}" for path in change.removed]
    return "\n".join(lines) or f"{receipt} is installed in {where.root} and up to date"


def uninstall(receipt: str, where: Place, only_say: bool) -> str:
    """Removes what `install` has put there; what was done, for people. CodegenError when it cannot."""
    if receipt not in _installed(where.root):
        return f"{receipt} is not installed in {where.root}"
    try:
        gone = placed.withdraw(where.root, _ledger(receipt), shared=_of_others(where.root, receipt), write=not only_say)
    except OSError as error:
        raise CodegenError(f"{where.root} cannot be changed: {error.strerror}: {error.filename}") from error
    verb = "would remove" if only_say else "removed"
    return "\n".join(f"{verb} {os.path.join(where.root, path)}" for path in gone)
