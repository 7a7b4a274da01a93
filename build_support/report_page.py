# SPDX-License-Identifier: MIT
"""The report as one page of HTML that needs nothing else: pictures are SVG in it, laid out here."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import squarify

from codegen.schema.sizes import shown

from . import bounds

WIDTH, TREE_HEIGHT, HEAD, LANE = 1200, 520, 20, 26
KINDS = ("engine", "rows", "runtime", "tables")


def page(data: Mapping[str, Any], most: int) -> str:
    """`most`: rows of a table of slowest or largest."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters.update(size=_size, delta=lambda count: f"{'+' if count > 0 else '−'}{_size(abs(count))}")
    timed = [one for one in data["objects"] if one["cpu"] is not None]
    return environment.get_template("report.html.jinja").render(
        data=data,
        tree=treemap(data["objects"]),
        tree_height=TREE_HEIGHT,
        time=timeline(timed),
        width=WIDTH,
        lane=LANE,
        table=size_table(data["sizes"], data["targets"]),
        slowest=sorted(timed, key=lambda one: -one["cpu"])[:most],
        largest=sorted(data["objects"], key=lambda one: -one["code"] - one["data"])[:most],
        rows=[{**one, "id": _id(one["path"]), **_named(data["objects"], one["path"])} for one in data["rows"]],
        link=links(data),
        plain=plain([same["section"] for same in data["duplicates"]]),
        listed=most,
        plots=[bounds.plot(one) for one in data["bounds"]],
        label=bounds.LABEL,
        line=bounds.LINE,
    )


def _id(path: str) -> str:
    """Fragment of a link to the rows of an object."""
    return "rows-" + re.sub(r"[^a-z0-9]+", "-", path.lower().rpartition("/obj/rows/")[2].removesuffix(".o"))


def _named(listed: Sequence[Mapping[str, Any]], path: str) -> dict[str, Any]:
    one = next(one for one in listed if one["path"] == path)
    return {"part": one["part"], "name": one["name"]}


def links(data: Mapping[str, Any]) -> dict[str, str]:
    """By path of an object: where its rows are told. Of an engine: the first object of its family's on its target."""
    own = {one["path"]: _id(one["path"]) for one in data["rows"]}
    parts: dict[str, str] = {}
    for one in data["objects"]:
        if one["path"] in own:
            parts.setdefault(one["part"], own[one["path"]])
    engines = [one for one in data["objects"] if one["kind"] == "engine" and one["part"] in parts]
    return {**{one["path"]: parts[one["part"]] for one in engines}, **own}


def _size(count: int) -> str:
    return shown(count) if count >= 1000 else f"{count} B" if count else "–"


def plain(sections: Sequence[str]) -> dict[str, str]:
    """Names of sections as people read them: the function's, where c++filt knows it."""
    names = [re.sub(r"^\.(text|rodata|data)(\.rel\.ro)?(\.local)?\.(?=_Z)", "", name) for name in sections]
    try:
        said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        said = "\n".join(names)
    shorter = (name if len(name) <= 110 else f"{name[:109]}…" for name in said.splitlines())
    return dict(zip(sections, shorter, strict=True))


def treemap(listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Groups (engines of a target, rows of a family, runtime, tables) of objects, areas by bytes in the library."""
    groups: dict[tuple[str, str], list[tuple[int, str, str]]] = defaultdict(list)
    for one in listed:
        size = one["code"] + one["data"]
        if not size:
            continue
        family, _, target = one["part"].partition(" for ")
        title = {"engine": f"engines for {target}", "rows": f"rows of {family}"}.get(one["kind"], one["kind"])
        groups[one["kind"], title].append((size, one["name"], one["path"]))
    weights = sorted(((sum(size for size, *_ in members), key) for key, members in groups.items()), reverse=True)
    found = []
    for (kind, title), box in _boxes(weights, 0, 0, WIDTH, TREE_HEIGHT):
        members = sorted(groups[kind, title], reverse=True)
        head = HEAD if box["dy"] > 2 * HEAD and box["dx"] > 60 else 0
        inner = _boxes(members, box["x"] + 1, box["y"] + head, max(box["dx"] - 2, 0.1), max(box["dy"] - head - 1, 0.1))
        found.append(
            {
                "kind": kind,
                "title": _fit(f"{title} · {shown(sum(size for size, *_ in members))}", box["dx"]) if head else "",
                "says": f"{title}: {shown(sum(size for size, *_ in members))}, {len(members)} objects",
                "box": box,
                "objects": [
                    {
                        "name": _fit(name, b["dx"]) if b["dy"] > 16 else "",
                        "says": f"{name}: {shown(size)}",
                        "path": path,
                        "box": b,
                    }
                    for (size, name, path), (_, b) in zip(members, inner, strict=True)
                ],
            }
        )
    return found


def _boxes(
    items: Sequence[tuple[Any, ...]], x: float, y: float, width: float, height: float
) -> list[tuple[Any, dict[str, float]]]:
    """Rectangles of areas by size; `items` come largest first."""
    sizes = squarify.normalize_sizes([size for size, *_ in items], width, height)
    return [(key, box) for (_, key, *_), box in zip(items, squarify.squarify(sizes, x, y, width, height), strict=True)]


def _fit(text: str, width: float) -> str:
    """As much of a text as a box of this width shows at 11 pixels; nothing rather than two letters."""
    room = int((width - 8) / 6.2)
    return text if len(text) <= room else f"{text[: room - 1]}…" if room > 4 else ""


def timeline(timed: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The jobs of the last build in lanes, one for each that ran beside others. None when nothing was measured."""
    last = max((one["build"] for one in timed), default=None)
    jobs = sorted((one for one in timed if one["build"] == last), key=lambda one: one["start"])
    if not jobs:
        return None
    begin, end = jobs[0]["start"], max(one["end"] for one in jobs)
    scale = WIDTH / max(end - begin, 1e-3)
    lanes: list[float] = []
    bars = []
    for one in jobs:
        lane = next((at for at, free in enumerate(lanes) if free <= one["start"]), len(lanes))
        lanes[lane:] = [one["end"], *lanes[lane + 1 :]]
        width = max((one["end"] - one["start"]) * scale, 0.5)
        bars.append(
            {
                "kind": one["kind"],
                "x": (one["start"] - begin) * scale,
                "y": lane * LANE,
                "width": width,
                "name": _fit(one["name"], width),
                "says": f"{one['name']}, {one['part']}: {one['end'] - one['start']:.2f} s, {one['cpu']:.2f} s CPU, "
                f"{shown(one['peak'])} of memory",
            }
        )
    seconds = end - begin
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 1e9) if seconds / step <= 12)
    marks = [{"x": at * step * scale, "text": f"{at * step:g} s"} for at in range(int(seconds / step) + 1)]
    cpu = sum(one["cpu"] for one in jobs)
    height = len(lanes) * LANE
    return {"bars": bars, "marks": marks, "height": height, "seconds": seconds, "cpu": cpu, "jobs": len(jobs)}


def size_table(sizes: Sequence[Mapping[str, Any]], targets: Sequence[str]) -> list[dict[str, Any]]:
    """Code of engines and data of rows, a line a family, a column a target."""
    cells: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: {"engine": 0, "rows": 0}))
    for one in sizes:
        family, _, target = one["part"].partition(" for ")
        if one["kind"] in ("engine", "rows"):
            cells[family][target][one["kind"]] += one["code"] + one["data"]
    return [{"family": family, "cells": [cells[family][target] for target in targets]} for family in sorted(cells)]
