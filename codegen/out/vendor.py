# SPDX-License-Identifier: MIT
"""A receipt taken into another project: its sources with build files, and the packages that an installation brings.

The build files are templates/; what is compiled and how comes from codegen.out.sources and codegen.emit.flags.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, NamedTuple

from codegen.emit import flags
from codegen.out import device, sbom, sources, static
from codegen.out.sources import Sources
from codegen.schema.tree import tree

PACKAGES = "package"
LIB, PKGCONFIG, CMAKE, INCLUDE, SHARE = "lib", "lib/pkgconfig", "lib/cmake/tilekiln", "include", "share/doc/tilekiln"
ONE_RECEIPT = "TILEKILN_ONE_RECEIPT_A_PROGRAM_OTHERS_BY_DLOPEN"
"""Shown by CMake and compilers for a target with two receipts: names of a property and of a macro are all that both
let a package say then."""


class _Group(NamedTuple):
    variable: str
    flags: list[str]
    sources: list[str]
    keep: list[str]


@cache
def _environment() -> Any:
    from codegen.emit.render import environment

    return environment(os.path.join(os.path.dirname(__file__), "templates"))


def _text(name: str, **context: Any) -> bytes:
    rendered: str = _environment().get_template(f"{name}.jinja").render(context)
    return rendered.encode()


def _oldest(version: str) -> str:
    """The oldest version that this one can stand in for: of the same major version, and minor while that is 0."""
    major, minor, _ = version.split(".", 2)
    return f"{major}.{minor}" if major == "0" else major


def packages(
    receipt: str, about: str, version: str, library: str, soname: str, with_static: bool = False
) -> dict[str, bytes]:
    """pkg-config files and CMake package of a receipt, by path below a prefix. They move with it.

    `library` is the file's name, `soname` that by which programs ask the loader for it. With a static library it has a
    pkg-config file of its own; the CMake package looks for it.
    """
    context = {
        "receipt": receipt,
        "about": about,
        "version": version,
        "oldest": _oldest(version),
        "library": library,
        "soname": soname,
        "manifest": flags.manifest_name(receipt),
        "one_receipt": ONE_RECEIPT,
        "archive": static.library_name(receipt),
    }
    named = {
        f"{PKGCONFIG}/tilekiln-{receipt}.pc": "tilekiln.pc",
        f"{CMAKE}/tilekiln-{receipt}.cmake": "tilekiln-receipt.cmake",
        f"{CMAKE}/tilekilnConfig.cmake": "tilekilnConfig.cmake",
        f"{CMAKE}/tilekilnConfigVersion.cmake": "tilekilnConfigVersion.cmake",
    }
    if with_static:
        named[f"{PKGCONFIG}/tilekiln-{receipt}-static.pc"] = "tilekiln-static.pc"
    return {path: _text(template, **context) for path, template in named.items()}


def module_file(version: str) -> dict[str, bytes]:
    """Module of an installation, by path below its prefix: `module use PREFIX/share/modulefiles`."""
    return {f"share/modulefiles/tilekiln/{version}": _text("modulefile", version=version)}


def contents(source: Sources) -> dict[str, bytes]:
    """Every file of the vendored tree but its ledger."""
    made = dict(source.contents)
    groups = [_Group(g.name.replace("-", "_"), g.flags, g.sources, g.keep) for g in source.groups]
    installed = [(f"include/{header}", f"{INCLUDE}/{os.path.dirname(header)}") for header in source.headers]
    installed += [(source.manifest, LIB), ("LICENSE", SHARE)]
    own = [f"{LIB}/{source.library}", f"{LIB}/{source.soname}", f"{LIB}/{source.manifest}"]
    for path, text in packages(source.receipt, source.about, source.version, source.library, source.soname).items():
        made[f"{PACKAGES}/{os.path.basename(path)}"] = text
        installed.append((f"{PACKAGES}/{os.path.basename(path)}", os.path.dirname(path)))
        if f"tilekiln-{source.receipt}." in path:
            own.append(path)
    context: dict[str, Any] = {
        "receipt": source.receipt,
        "about": source.about,
        "version": source.version,
        "where": source.where,
        "targets": source.targets,
        "instances": source.instances,
        "library": source.library,
        "soname": source.soname,
        "manifest": source.manifest,
        "groups": groups,
        "engines": [group for group in groups if group.keep],
        "least": flags.LEAST,
        "outside": list(tree().outside_operators),
        "standard": flags.STANDARD.removeprefix("c++"),
        "gnu": flags.GNU,
        "old_clang": flags.OLD_CLANG_ENGINE,
        "sound_clang": flags.SOUND_CLANG,
        "join": flags.JOIN,
        "seed": flags.seed(""),
        "assembler": device.ASSEMBLER,
        "exports": flags.EXPORTS,
        "link_flags": [*flags.LINK, *flags.LIBRARY_LINK],
        "fast_math": flags.FAST_MATH,
        "installed": installed,
        "one_receipt": ONE_RECEIPT,
        "folders": sorted({LIB, *(folder for _, folder in installed)}),
        "own": own,
    }
    for name in ("CMakeLists.txt", "sources.cmake", "Makefile", "sources.mk", "README.md"):
        made[name] = _text(name, **context)
    if sbom.there():
        made[sbom.NAME] = sbom.text(f"tilekiln-{source.receipt}", source.version, source.about, made)
    return made


def vendor(
    receipt: str, targets: list[str], where: str, folder: str, dry: bool = False, objects: device.Objects | None = None
) -> str:
    """Make `folder` the vendored tree of a receipt; what was done, for people. Errors are those of sources.write;
    `objects` compiles kernels of devices."""
    source = sources.sources(receipt, targets, where, objects=objects)
    made = contents(source)
    change = sources.write(folder, source, made, dry)
    return sources.summary(folder, source, change, len(made) + 1, dry)
