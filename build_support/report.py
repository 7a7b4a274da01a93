# SPDX-License-Identifier: MIT
"""The report of a built library: what it holds, what each object cost, what changed. As JSON and as a page of HTML."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from codegen.tell import elf

from . import bounds, console, measured
from .request import Build, Request

GROUP = 0x200  # a section that the linker keeps once, however many objects have it
LEAST_DUPLICATE = 64  # bytes; below, equal sections are chance
LISTED = 15


def commands(request: Request, build: Build) -> dict[str, Callable[..., int]]:
    """Action of the target `report`, after the build."""

    def report(target: Any, source: Any, env: Any) -> int:
        from .report_page import page  # jinja2 and squarify are not waited for by other builds

        for receipt, node in build.libraries.items():
            objects = [os.path.relpath(leaf.abspath) for leaf in leaves(node)]
            known = measured.read(request.variant.directory)
            data = collect(node.path, build.manifests[receipt].path, objects, known, build.instances)
            base = f"{request.variant.directory}/report/{receipt}"
            data["changes"] = changes(keep_previous(base, data), data)
            write(f"{base}.json", json.dumps(data, indent=1) + "\n")
            write(f"{base}.html", page(data, LISTED))
            console.block(f"{console.line('built', base + '.html')}, and the same as {receipt}.json")
        return 0

    return {"report": report}


def leaves(node: Any) -> list[Any]:
    """The nodes of the compiled objects of a library, through joined ones."""
    found = []
    for child in node.sources:
        below = [leaf for leaf in child.sources if leaf.path.endswith(".o")]
        found += below or ([child] if child.path.endswith(".o") else [])
    return found


def collect(
    library: str,
    manifest: str,
    objects: Sequence[str],
    known: Mapping[str, measured.Measured],
    instances: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """All figures of one library. Sizes are bytes, times seconds, memory bytes. `instances`: names, by object."""
    with open(manifest, "rb") as file:
        claim = json.load(file)
    with open(library, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    listed = [entry_of(path, known.get(path)) for path in objects]
    rows, columns = claim["instances"]["rows"], claim["instances"]["columns"]
    family, target = columns.index("family"), columns.index("target")
    timed = [one for one in listed if one["cpu"] is not None]
    last = max((one["build"] for one in timed), default=0)
    return {
        "library": library,
        "size": os.path.getsize(library),
        "sha256": digest,
        "receipt": claim["receipt"],
        "where": claim["where"],
        "mode": claim["mode"],
        "toolchain": claim["toolchain"],
        "plan_hash": claim["plan_hash"],
        "targets": [target["name"] for target in claim["targets"]],
        "instances": {
            "count": len(rows),
            "by_family_and_target": [
                {"family": name, "target": on, "count": count}
                for (name, on), count in Counter((row[family], row[target]) for row in rows).items()
            ],
            "names": [row[0] for row in rows],
        },
        "totals": {
            "objects": len(listed),
            "code": sum(one["code"] for one in listed),
            "data": sum(one["data"] for one in listed),
            "cpu": sum(one["cpu"] for one in timed),
            "peak": max((one["peak"] for one in timed), default=0),
            "not_measured": len(listed) - len(timed),  # taken from a cache
            "in_last_build": sum(one["build"] == last for one in timed),
        },
        "sizes": by_part(listed),
        "objects": listed,
        "rows": rows_of(listed, instances, claim),
        "duplicates": duplicates(objects),
        "bounds": bounds.of_objects(".", listed),
    }


def rows_of(
    listed: Sequence[Mapping[str, Any]], instances: Mapping[str, Sequence[str]], claim: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Of each object that holds rows: the values that the axes of its signature have in them, and a selection of them,
    "" of a family that none names (a stage that comes along with another)."""
    columns = {name: at for at, name in enumerate(claim["instances"]["columns"])}
    name, family, target = (columns[word] for word in ("name", "family", "target"))
    by_name = {row[name]: row for row in claim["instances"]["rows"]}
    named = {stages["main"] for stages in claim["stages"].values()}

    def values(rows: Iterable[Sequence[Any]], axes: Sequence[str]) -> dict[str, list[str]]:
        listed = list(rows)
        return {axis: sorted({_word(row[columns[axis]]) for row in listed}, key=_order) for axis in axes}

    whole: dict[tuple[str, str], dict[str, list[str]]] = {}
    found = []
    for one in listed:
        own = [by_name[instance] for instance in instances.get(one["path"], ()) if instance in by_name]
        if not own:
            continue
        of = (own[0][family], own[0][target])
        signature = claim["families"][of[0]]["signature"]
        if of not in whole:
            whole[of] = values((row for row in by_name.values() if (row[family], row[target]) == of), signature)
        axes = values(own, signature)
        narrow = [f"{axis}={','.join(words)}" for axis, words in axes.items() if words != whole[of][axis]]
        where = " ".join([f"family={of[0]}", f"target={of[1]}", *narrow]) if of[0] in named else ""
        found.append({"path": one["path"], "count": len(own), "axes": axes, "where": where, "first": own[0][name]})
    return found


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _order(word: str) -> tuple[int, str]:
    return (int(word), "") if word.isdecimal() else (-1, word)


def entry_of(path: str, cost: measured.Measured | None) -> dict[str, Any]:
    """One object: where it belongs, what it weighs, what it cost when it was last compiled (null: not measured)."""
    sections = [section for section in elf.sections(path) if section.loaded]
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:16]
    kind, part, name = place(path)
    return {
        "path": path,
        "kind": kind,
        "part": part,
        "name": name,
        "code": sum(section.size for section in sections if section.code),
        "data": sum(section.size for section in sections if not section.code),
        "digest": digest,
        "cpu": cost and round(cost.cpu, 3),
        "peak": cost and cost.peak,
        "start": cost and cost.start,
        "end": cost and cost.end,
        "build": cost and cost.build,
    }


TABLES = ("table", "operators", "manifest")  # of a receipt, made from codegen/emit/render.py's sources


def place(path: str) -> tuple[str, str, str]:
    """(kind, part, name) of an object: kind is engine, rows, runtime or tables; part is what a size is summed by."""
    words = path.removesuffix(".o").rpartition("/obj/")[2].split("/")
    if words[0] == "engine":
        family, _, pipeline = words[2].rpartition("-")
        return "engine", f"{family} for {words[1]}", f"{pipeline} of {family}"
    if words[0] == "rows":
        return "rows", f"{words[1]} for {words[2]}", re.sub("-[0-9a-f]{12}$", "", words[3])
    if words[-1] in TABLES:
        return "tables", "tables", words[1]
    return "runtime", "runtime", "/".join(words[words[0] == "runtime" and len(words) > 1 :])


def by_part(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Code and data by kind and part, largest first."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in listed:
        found[one["kind"], one["part"]].update(objects=1, code=one["code"], data=one["data"])
    parts = [{"kind": kind, "part": part, **counts} for (kind, part), counts in found.items()]
    return sorted(parts, key=lambda entry: -entry["code"] - entry["data"])


def duplicates(objects: Sequence[str]) -> list[dict[str, Any]]:
    """Sections with the same bytes (before relocation) that all end up in the library, by what they waste."""
    found: dict[tuple[int, bytes], list[tuple[str, str]]] = defaultdict(list)
    once: set[tuple[str, str]] = set()
    for path in objects:
        kind, part, name = place(path)
        scope = part.rpartition(" for ")[2] if kind == "engine" else ""
        for section in elf.sections(path):
            if not section.loaded or section.size < LEAST_DUPLICATE or not section.data.strip(b"\0"):
                continue
            if section.name.startswith(".eh_frame"):
                continue
            if section.flags & GROUP:
                if (scope, section.name) in once:
                    continue
                once.add((scope, section.name))
            found[section.flags & ~GROUP, section.data].append((section.name, f"{name}, {part}"))
    listed: list[dict[str, Any]] = [
        {"section": places[0][0], "size": len(data), "count": len(places), "in": [where for _, where in places]}
        for (_, data), places in found.items()
        if len(places) > 1
    ]
    return sorted(listed, key=lambda entry: entry["size"] * (entry["count"] - 1), reverse=True)[:LISTED]


def keep_previous(base: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The report of the library before this one; None for the first. Of the same bytes again it stays the same."""
    previous = f"{base}.previous.json"
    old = _read(f"{base}.json")
    if old and old.get("sha256") != data["sha256"]:
        os.replace(f"{base}.json", previous)
        return old
    return _read(previous)


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, Any] | None:
    """Differences from the library before: instances, sizes and objects. None without a report of it, or with one of
    an older version."""
    if old is None or not {"instances", "objects", "sizes"} <= old.keys():
        return None
    before, after = set(old["instances"]["names"]), set(new["instances"]["names"])
    was, now = ({one["path"]: one for one in report["objects"]} for report in (old, new))
    sizes_before, sizes_now = (
        {f"{one['kind']}: {one['part']}": one["code"] + one["data"] for one in report["sizes"]} for report in (old, new)
    )
    grown = [
        {"part": part, "by": sizes_now.get(part, 0) - sizes_before.get(part, 0)}
        for part in sizes_now | sizes_before
        if sizes_now.get(part, 0) != sizes_before.get(part, 0)
    ]
    return {
        "size": new["size"] - old["size"],
        "instances_added": sorted(after - before),
        "instances_removed": sorted(before - after),
        "objects_added": sorted(now.keys() - was.keys()),
        "objects_removed": sorted(was.keys() - now.keys()),
        "objects_changed": sorted(
            path for path in now.keys() & was.keys() if now[path]["digest"] != was[path]["digest"]
        ),
        "parts": sorted(grown, key=lambda entry: -abs(entry["by"])),
        "toolchain": old["toolchain"] != new["toolchain"],
    }


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)
