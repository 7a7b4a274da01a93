# SPDX-License-Identifier: MIT
"""A receipt as a self-contained source tree: every file of it, and how the sources are compiled and linked.

Build systems that are neither ours nor CMake or make read `describe`; a vendored tree (codegen.out.vendor) is this and
build files. Nothing here depends on a compiler: whoever builds the tree chooses one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from codegen.emit import files, flags, includes
from codegen.emit.operators import header, python_table
from codegen.emit.render import render
from codegen.emit.soname import soname
from codegen.out import device, placed
from codegen.plan import held
from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.places import Places
from codegen.schema.tree import Tree, tree

MARKER = "tilekiln-sources.json"
"""The ledger of such a tree, and what makes a folder one."""
GENERATED = "generated"
PUBLIC_HEADER = "tilekiln/tilekiln.h"
INCLUDED = (PUBLIC_HEADER, "tilekiln/registry.h", "tilekiln/dispatcher.hpp")
"""Headers that programs include; the dispatcher is header-only, over the C ABI."""


class Group(msgspec.Struct):
    """Sources that are compiled alike. With `keep` their objects become one that shows these symbols only."""

    name: str
    flags: list[str]
    sources: list[str]
    keep: list[str] = []


class Sources(msgspec.Struct):
    """A receipt for some targets. `contents` by path; `headers` are the public ones, below include/."""

    receipt: str
    about: str
    version: str
    where: str
    targets: list[str]
    instances: int
    contents: dict[str, bytes]
    groups: list[Group]
    headers: list[str]

    @property
    def library(self) -> str:
        return flags.library_name(self.receipt)

    @property
    def soname(self) -> str:
        return soname(self.library, tree().root)

    @property
    def manifest(self) -> str:
        return flags.manifest_name(self.receipt)

    @property
    def link_flags(self) -> list[str]:
        script = [f"-Wl,--version-script={flags.EXPORTS}", f"-Wl,-soname,{self.soname}"]
        return ["-shared", *flags.LINK, *script, *flags.LIBRARY_LINK, "-pthread"]


def sources(
    receipt: str,
    targets: Sequence[str],
    where: str = "",
    root: Tree | None = None,
    objects: device.Objects | None = None,
) -> Sources:
    """The source tree of a receipt. CodegenError for what is asked wrongly.

    `objects` compiles kernels of devices; without it targets of such are refused.
    """
    root = root or tree()
    plan = resolve(receipt, targets, where, root=root)
    info = {
        "version": root.version,
        "mode": "release",
        "cxx": "unknown",
        "cxx_version": "unknown",
        "flags": f"{flags.OPTIMISED['engine']} {flags.NO_ASSERTIONS}",
    }
    made = render([plan], info)
    contents, generated = {}, made.generated
    units = held.units(root)
    for path, data in made.contents.items():
        if path in units:
            continue  # a vendored tree lists the sources, which its build may compile as it likes
        if path.startswith(("include/", "kernels/generated/")):
            contents[path] = data
        elif not path.endswith("manifest.json"):
            contents[f"{GENERATED}/{path}"] = data
    groups = [
        Group("generated", _options("rows"), sorted(f"{GENERATED}/{one.path}" for one in generated.sources)),
        Group("runtime", _options("host"), runtime(root.places, generated.host[plan.receipt])),
    ]
    for target in root.every_target.values():
        if target not in plan.target_list and not any(engine.target == target.name for engine in generated.engines):
            continue
        if target.backend_.toolchain != "cxx":
            own = [engine for engine in generated.engines if engine.target == target.name]
            if objects is None:
                how = f"target {target.name} is compiled by toolchain '{target.backend_.toolchain}'"
                raise CodegenError(f"{how}, which `scons vendor=` runs: use that, or leave it out of the targets")
            made_here = device.sources(root, target, own, GENERATED, objects)
            contents |= made_here
            shared = {path for engine in own if not engine.kernel for path in engine.shares}
            named = sorted({*shared, *(path for path in made_here if path.endswith(".cpp"))})
            keep = sorted(engine.symbol for engine in own)
            groups.append(Group(f"engine-{target.name}", [*_options("runtime"), *device.options(target)], named, keep))
            continue
        engines = [engine for engine in generated.engines if engine.target == target.name]
        special = [*flags.ENGINE, *target.flags, f"-D{flags.define(target.name)}"]
        if engines:
            written = {f"{GENERATED}/{path}" if engine.made else path for engine in engines for path in engine.sources}
            keep = [engine.symbol for engine in engines]
            groups.append(
                Group(f"engine-{target.name}", [*_options("engine"), *special], sorted(written), sorted(keep))
            )
    for path in dict.fromkeys([*(path for group in groups[1:] for path in group.sources), "LICENSE", flags.EXPORTS]):
        if path not in contents:
            contents[path] = _read(root.places, path)
    contents[flags.manifest_name(plan.receipt)] = made.contents[f"{plan.receipt}/manifest.json"]
    contents |= _headers(root.places, contents)
    return Sources(
        plan.receipt,
        plan.source.about,
        root.version,
        plan.where,
        [target.name for target in plan.target_list],
        len(plan.instances),
        dict(sorted(contents.items())),
        groups,
        [*public_headers(root.root), *(header.path(root.operators[name]) for name in python_table.of_outside(plan))],
    )


def _options(what: str) -> list[str]:
    return [*flags.HIDDEN, flags.OPTIMISED[what], flags.NO_ASSERTIONS, *flags.AGAINST_HOST]


def _read(places: Places, path: str) -> bytes:
    data = places.read(path)
    if data is None:
        raise CodegenError(f"{places.shown(path)} is missing")
    return data


def runtime(places: Places, patterns: Sequence[str]) -> list[str]:
    """The host code of a library (Generated.host), as paths of the tree."""
    return sorted(path for pattern in patterns for path in places.matching(pattern))


def public_headers(root: str) -> list[str]:
    """Those that a program needs, below include/, sorted."""
    include = os.path.join(root, "include")
    found = includes.closure(INCLUDED, [include])
    return sorted(os.path.relpath(path, include) for path in found)


def _headers(places: Places, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """path -> content of every header that the sources reach, public ones included."""
    found: dict[str, bytes] = {}
    waiting = [(path, name) for path, data in contents.items() for name in includes.named(data) if _is_code(path)]
    waiting += [("", header) for header in INCLUDED]
    while waiting:
        path, name = waiting.pop()
        for folder in (os.path.dirname(path), *flags.HEADERS):
            place = os.path.normpath(os.path.join(folder, name))
            if place in contents or place in found:
                break
            data = places.read(place)
            if data is not None:
                found[place] = data
                waiting += [(place, other) for other in includes.named(data)]
                break
        else:
            raise CodegenError(f'{path} includes "{name}", which is neither beside it nor below the root or include/')
    return found


def _is_code(path: str) -> bool:
    return path.endswith((".cpp", ".h"))


def describe(source: Sources, digests: Mapping[str, str]) -> bytes:
    """All that a build system has to know, as JSON; the text of MARKER."""
    answer: dict[str, Any] = {
        "receipt": source.receipt,
        "version": source.version,
        "where": source.where,
        "targets": source.targets,
        "library": source.library,
        "manifest": source.manifest,
        "license": "LICENSE",
        "headers": [f"include/{header}" for header in source.headers],
        "standard": flags.STANDARD,
        "include": flags.HEADERS,
        "compilers": {name: f">= {least}" for name, least in flags.LEAST.items()},
        "flags_of_compiler": {"g++": flags.GNU, "clang++": []},
        "engine_flags_of_compiler": {f"clang++ < {flags.SOUND_CLANG}": flags.OLD_CLANG_ENGINE},
        "groups": [msgspec.to_builtins(group) for group in source.groups],
        "join": ["ld", *flags.JOIN],
        "link": source.link_flags,
        "files": dict(digests),
    }
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"


def listed(contents: Mapping[str, bytes]) -> list[str]:
    """Every file of a tree with these contents, sorted: what `write` leaves."""
    return sorted([*contents, MARKER])


def record(source: Sources, contents: Mapping[str, bytes]) -> bytes:
    return describe(source, {path: files.digest(data) for path, data in sorted(contents.items())})


def write(folder: str, source: Sources, contents: Mapping[str, bytes], dry: bool = False) -> placed.Change:
    """Make `folder` that tree. CodegenError when it holds something that is no such tree, or cannot be written."""
    try:
        if os.path.isdir(folder) and os.listdir(folder) and not os.path.exists(os.path.join(folder, MARKER)):
            raise CodegenError(
                f"{folder} is not empty and no tree of Tilekiln's sources: it has no {MARKER}. Name a new folder."
            )
        return placed.place(folder, contents, MARKER, record(source, contents), write=not dry)
    except OSError as error:
        raise CodegenError(f"{folder} cannot be written: {error.strerror}: {error.filename}") from error


def withdraw(folder: str, write: bool = True) -> list[str]:
    """Remove such a tree, and nothing else that is in its folder; the paths removed. CodegenError when it is none."""
    if not os.path.exists(os.path.join(folder, MARKER)):
        raise CodegenError(f"{folder} is no tree of Tilekiln's sources: it has no {MARKER}. Nothing was removed.")
    try:
        return placed.withdraw(folder, MARKER, write=write)
    except OSError as error:
        raise CodegenError(f"{folder} cannot be changed: {error.strerror}: {error.filename}") from error


def summary(folder: str, source: Sources, change: placed.Change, count: int, dry: bool = False) -> str:
    """Text for people on a run of `write`."""
    written, removed = ("to write", "to remove") if dry else ("written", "removed")
    lines = [
        f"{folder}: {source.receipt} for {', '.join(source.targets)}, {source.instances:,} instances, {count:,} files: "
        f"{len(change.written):,} {written}, {len(change.removed):,} {removed}"
    ]
    lines += [f"  changed by hand, now as generated: {path}" for path in change.by_hand if path not in change.removed]
    lines += [f"  changed by hand, now removed: {path}" for path in change.by_hand if path in change.removed]
    return "\n".join(lines)


def tell(receipt: str, targets: Iterable[str], where: str, folder: str, how: str) -> str:
    """`python -m codegen sources`: list (folder ""), as names or JSON, or write."""
    source = sources(receipt, list(targets), where)
    if folder:
        change = write(folder, source, source.contents)
        return summary(folder, source, change, len(source.contents) + 1)
    if how == "json":
        return record(source, source.contents).decode()
    return "\n".join(listed(source.contents))
