# SPDX-License-Identifier: MIT
"""Is a library what its manifest claims: the plan made again from the manifest, by this tree, and compared."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import msgspec

from codegen.emit.flags import manifest_name
from codegen.emit.manifest import FORMAT, MARK, inflated, manifest, source_hashes
from codegen.emit.operators import python_table
from codegen.plan import held
from codegen.plan.plan import Plan, digest, resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell import elf

_SHOWN = 5


def embedded(path: str) -> tuple[bytes, bytes]:
    """Memory image of a library, and the manifest in it. CodegenError without one. Nothing is run."""
    try:
        data = b"".join(section.data for section in elf.sections(path) if section.loaded)
    except OSError as error:
        raise CodegenError(f"{path}: {error.strerror}") from error
    except (ValueError, struct.error):
        data = b""
    try:
        found = inflated(data)
    except ValueError as error:
        raise CodegenError(f"{path}: its manifest is of another version or damaged: {error}") from error
    if not found:
        raise CodegenError(f"{path}: is no library of Tilekiln: it has no manifest inside")
    return data, found[0]


def verify(root: Tree, path: str) -> tuple[str, bool]:
    """Comparisons and differences as text for people, and whether there are no differences."""
    data, text = embedded(path)
    try:
        claim = msgspec.json.decode(text)
        receipt, targets = claim["receipt"]["name"], [target["name"] for target in claim["targets"]]
        info = {"version": claim["tilekiln"], "mode": claim["mode"], **claim["toolchain"]}
        names, where = [row[0] for row in claim["instances"]["rows"]], claim["where"]
        sources, plan_hash = claim["source_hashes"], claim["plan_hash"]
    except (msgspec.DecodeError, KeyError, TypeError, IndexError) as error:
        raise CodegenError(f"{path}: its manifest is of another version or damaged: {error!r}") from error
    differs = [] if claim["format"] == FORMAT else [f"the manifest's format is {claim['format']}, ours is {FORMAT}"]
    differs += _library(path, data, text, receipt, names)
    here, plan, planned = source_hashes(root.places), None, list[str]()
    try:
        plan = resolve(receipt, targets, where, root=root)
        here = held.sources(plan, here)
        planned = _plan(plan, names, plan_hash)
    except CodegenError as error:
        planned.append(f"plan: this tree cannot make it: {error}".partition("\n")[0])
        here = {folder: digest for folder, digest in here.items() if folder in sources}
    differs += _sources(here, sources)
    if claim["tilekiln"] != root.version:
        differs.append(f"version: the library is of {claim['tilekiln']}, this tree is {root.version}")
    differs += planned
    if plan and not differs:
        families = [f for f in root.families.values() if any(i.family_ is f for i in plan.instances)]
        if manifest(plan, families, info, here, python_table.of_outside(plan)) != text:
            differs.append("manifest: the same instances, yet other words about them, the receipt or the targets")
    what = f"{os.path.basename(path)}: receipt {receipt}, {', '.join(targets)}" + (
        f", where '{where}'" if where else ""
    )
    made = f"{len(names):,} instances, {info['mode']} by {info['cxx']} {info['cxx_version']} {info['flags']}"
    verdict = "is what it claims" if not differs else "is not what this tree makes of its manifest:"
    lines = [what, made, f"plan {plan_hash}", verdict, *(f"  {line}" for line in differs)]
    return "\n".join(lines), not differs


def _sources(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    differs = []
    for folder in sorted(here.keys() | there.keys()):
        if folder not in there:
            differs.append(f"sources: {folder} was not there when the library was built")
        elif folder not in here:
            differs.append(f"sources: {folder} is not in this tree")
        elif here[folder] != there[folder]:
            differs.append(f"sources: {folder} differs")
    return differs


def _library(path: str, data: bytes, text: bytes, receipt: str, names: list[str]) -> list[str]:
    """Contradictions between a library and its own manifest, a line each."""
    differs = []
    if digest(names).encode() + b"\0" not in data:
        differs.append("library: its table does not list the instances of its manifest")
    if data.count(MARK) > 1:
        differs.append("library: there are two manifests inside")
    beside = os.path.join(os.path.dirname(path), manifest_name(receipt))
    if os.path.exists(beside):
        with open(beside, "rb") as file:
            if file.read() != text:
                differs.append(f"{os.path.basename(beside)}: differs from the manifest inside the library")
    return differs


def _plan(plan: Plan, names: list[str], plan_hash: str) -> list[str]:
    now = [instance.name for instance in plan.instances]
    differs = []
    for some, others, says in ((names, now, "only the library has"), (now, names, "the library lacks")):
        gone = sorted(set(some) - set(others))
        if gone:
            more = f" and {len(gone) - _SHOWN:,} more" if len(gone) > _SHOWN else ""
            differs.append(f"instances: {says} {', '.join(gone[:_SHOWN])}{more}")
    if not differs and plan.digest != plan_hash:
        differs.append(f"plan: its hash is {plan.digest} for the same instances, in the manifest {plan_hash}")
    return differs
