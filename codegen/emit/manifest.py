# SPDX-License-Identifier: MIT
"""The manifest: the plan as built, JSON with one instance a line."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from codegen.plan.plan import Plan
from codegen.schema import cpu, tuned
from codegen.schema.axes import INTEGER, Family
from codegen.schema.places import Places

FORMAT, ABI = 1, 1
DECLARATIONS = ("operator.yaml", "family.yaml", "arguments.yaml")  # what makes a folder a room or an area
MARK = b"tilekiln manifest, zlib\n"  # with two lengths of 8 bytes tilekiln::manifest_mark
assert len(MARK) == 24
ZEROED = ("source_hash", "source_hashes", "plan_hash")
"""Keys of hashes, which differ wherever anything does: no use to those who compare texts."""


def deflated(text: bytes) -> bytes:
    """A manifest as libraries hold it: MARK, the lengths of stream and text, the zlib stream."""
    stream = zlib.compress(text, 9)
    return MARK + len(stream).to_bytes(8, "little") + len(text).to_bytes(8, "little") + stream


def inflated(data: bytes) -> list[bytes]:
    """Every manifest in the bytes of a library. ValueError for a damaged one."""
    found = []
    at = data.find(MARK)
    while at >= 0:
        begin = at + len(MARK)
        bytes_, length = (int.from_bytes(data[begin + 8 * i : begin + 8 * i + 8], "little") for i in range(2))
        try:
            text = zlib.decompress(data[begin + 16 : begin + 16 + bytes_])
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(text) != length:
            raise ValueError(f"it has {len(text)} bytes, not {length}")
        found.append(text)
        at = data.find(MARK, begin)
    return found


def source_hashes(places: Places) -> dict[str, str]:
    """Of everything libraries are made from besides plans, by folder: templates, engines, runtime, headers.

    Rooms and areas are folders of their own; what lies in no room counts for the folder below kernels/.

    `held.sources` says which of them one library is made from.
    """
    states: dict[str, Any] = {}
    for folder in ("include", "kernels", *(one.path for one in places.outside)):
        paths = places.walk(folder)
        rooms = {os.path.dirname(path) for path in paths if os.path.basename(path) in DECLARATIONS}
        for path in paths:
            part = folder if folder == "include" else os.path.dirname(path)
            while part not in rooms and part.count("/") > 1:
                part = os.path.dirname(part)
            state = states.setdefault(part, hashlib.blake2b(digest_size=16))
            with open(places.at(path), "rb") as file:
                data = file.read()
            state.update(f"{path}\0{len(data)}\0".encode())
            state.update(data)
    return {part: state.hexdigest() for part, state in sorted(states.items())}


def source_hash(hashes: Mapping[str, str]) -> str:
    """Of all folders of source_hashes together."""
    return hashlib.blake2b("\n".join(f"{k} {v}" for k, v in hashes.items()).encode(), digest_size=16).hexdigest()


def _rows(plan: Plan, axes: list[str]) -> bytes:
    """Each row is three pieces of JSON; targets share that of the signature. null: no axis of the family."""
    pieces: dict[tuple[str, int], bytes] = {}
    shown = plan.algorithm_axes()
    hows: dict[tuple[str, int], bytes] = {}
    lines = []
    for instance in plan.instances:
        key = (instance.family_.name, instance.packed)
        if key not in pieces:
            pieces[key] = msgspec.json.encode([*map(instance.signature.get, axes)])[1:-1]
        how = (instance.target.name, id(instance.how))
        if how not in hows:
            hows[how] = msgspec.json.encode([*map(instance.algorithm.get, shown)])[1:-1]
        lines.append(b'["%b","%b",%b,%b]' % (instance.name.encode(), instance.family.encode(), pieces[key], hows[how]))
    return b",\n".join(lines)


def _algorithms(plan: Plan, family: Family) -> list[dict[str, object]]:
    """The algorithms of a family's instances, each once, with the rules that steer the choice between them."""
    ways: dict[tuple[str, int], dict[str, object]] = {}
    for instance in plan.instances:
        how = instance.how
        if instance.family_ is family and (instance.target.name, id(how)) not in ways:
            rules = {"needs": how.needs.text, "best": how.best.text}
            ways[instance.target.name, id(how)] = {**instance.algorithm, "rank": how.rank, **rules}
    return list(ways.values())


def _always(family: Family) -> dict[str, int | str | bool]:
    """Values that instances have by their rules, asked for or not: a split always writes its LSE."""
    left = list(family.everything)  # bit c: code c
    for clause in (clause for rule in family.rules for clause in rule.when):
        said = [at for at, codes in enumerate(clause) if codes != family.everything[at]]
        if len(said) == 1:
            left[said[0]] &= ~clause[said[0]]
    only = [
        (axis, codes.bit_length() - 1) for axis, codes in zip(family.axes, left, strict=True) if codes.bit_count() == 1
    ]
    values = {axis.name: axis.json(code) for axis, code in only if axis.kind != INTEGER and len(axis.values) > 1}
    return {axis: value for axis, value in values.items() if value not in (False, "none")}


def pinned(plan: Plan) -> list[tuple[tuned.Table, list[tuple[tuned.Winner, int]]]]:
    """The measured choices of the receipt's table for instances of the plan."""
    table = plan.source.tuned
    whole = [] if plan.where else [f"_{target.word}" for target in plan.target_list]
    return [] if table is None else table.of((instance.name for instance in plan.instances), whole)


def _tuned(plan: Plan) -> list[dict[str, object]]:
    """The same for those who read a manifest."""
    keys = ("problem", "shapes", "call", "id", "instance", "settings")
    return [
        {"machine": table.machine, "problems": [{key: getattr(one, key) for key in keys} for one, _ in winners]}
        for table, winners in pinned(plan)
    ]


def manifest(
    plan: Plan,
    families: list[Family],
    build_info: Mapping[str, object],
    sources: Mapping[str, str],
    outside: Mapping[str, object],
) -> bytes:
    """The manifest of a plan. `families`: those with instances. build_info: version, mode, cxx, cxx_version, flags.
    `sources`: source_hashes of the tree. `outside`: what frameworks must know of operators that no tree has."""
    axes = list(dict.fromkeys(axis.name for family in families for axis in family.axes))
    head = {
        "format": FORMAT,
        "tilekiln": build_info["version"],
        "abi": ABI,
        "receipt": {"name": plan.source.name, "number": plan.source.number, "about": plan.source.about},
        "where": plan.where,
        "mode": build_info["mode"],
        "targets": [
            {
                "name": target.name,
                "backend": target.backend,
                "isa": target.isa,
                "order": target.order,
                "arch": target.arch,
                "cpu_flags": cpu.cpuinfo(target.cpuid),
            }
            for target in plan.target_list
        ],
        "toolchain": {key: build_info[key] for key in ("cxx", "cxx_version", "flags")},
        "source_hash": source_hash(sources),
        "source_hashes": sources,
        "plan_hash": plan.digest,
        "families": {
            f.name: {
                "signature": list(f.axis_of),
                "algorithm": list(plan.algorithm_axes(f)),
                "holds": [axis.name for axis in f.integers if axis.holds == "at_least"],
                "numbers": {axis.name: list(axis.of) for axis in f.algorithm_axes if axis.of},
                "sizes": list(f.file.sizes),
                "fit": dict(f.file.choice.fit) if f.file.choice else {},
                "algorithms": _algorithms(plan, f),
                "always": _always(f),
            }
            for f in families
        },
        "stages": {
            name: {
                "stages": operator.file.stages,
                "main": operator.file.stages[operator.main],
                "optional": operator.file.optional,
            }
            for name, operator in plan.tree.operators.items()
            if not {f.name for f in families}.isdisjoint(operator.file.stages)
        },
    }
    if measured := _tuned(plan):
        head["tuned"] = measured
    if outside:
        head["operators"] = outside
    lines = b",\n".join(msgspec.json.encode(key) + b":" + msgspec.json.encode(value) for key, value in head.items())
    columns = msgspec.json.encode(["name", "family", *axes, *plan.algorithm_axes()])
    return b'{%b,\n"instances":{"columns":%b,"rows":[\n%b\n]}}\n' % (lines, columns, _rows(plan, axes))
