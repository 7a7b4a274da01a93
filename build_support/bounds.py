# SPDX-License-Identifier: MIT
"""Bounds on the speed of kernels that nobody here can time, beside what others report: for the report of a build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

FORWARD = "kernels/attention/fmha_fwd/hip/gate.yaml"
"""Figures of each code object of the forward."""
CEILINGS = "kernels/backends/hip/ceilings.yaml"
"""By kernel and architecture, for the others: registers and LDS at most, shares of the matrix peak at least."""
PUBLISHED = "kernels/backends/hip/published.yaml"
WIDTH, LABEL, LINE = 1200, 300, 18  # of a plot: all, the names in it, the height of a kernel's line


def of_objects(root: str, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By target of kernels among a library's objects: their recorded shares of the matrix peak, and published ones."""
    if not any("/engine/hip-" in one["path"] for one in listed):
        return []
    forward, ceilings = _read(root, FORWARD), _read(root, CEILINGS)["kernels"]
    published = _read(root, PUBLISHED)
    found: dict[str, list[dict[str, Any]]] = {}
    for one in listed:
        name, target = os.path.basename(one["path"]).removesuffix(".o"), os.path.basename(os.path.dirname(one["path"]))
        architecture = target.rpartition("-")[2]
        kernel = name.rpartition("-")[0].replace(f"_{architecture}", "", 1)
        ceiling = ceilings.get(kernel, {}).get(architecture, [])
        figures = forward.get(name) or dict(zip(("vgprs", "lds_bytes", "serial", "overlapped"), ceiling, strict=False))
        if one["kind"] == "engine" and "overlapped" in figures:
            found.setdefault(target, []).append({"kernel": name, **figures})
    return [
        {"target": target, "kernels": kernels, "published": published.get(target.rpartition("-")[2], [])}
        for target, kernels in found.items()
    ]


def _read(root: str, path: str) -> dict[str, Any]:
    with open(os.path.join(root, path), "rb") as file:
        found: dict[str, Any] = msgspec.yaml.decode(file.read())
    return found


def plot(of: Mapping[str, Any]) -> dict[str, Any]:
    """A line a kernel: a bar to what it reaches when nothing overlaps, a paler one to what it can reach at best.
    Published shares are marks from top to bottom."""
    scale = WIDTH - LABEL - 10
    lines = [
        {
            "name": one["kernel"],
            "y": at * LINE,
            "serial": one["serial"] * scale,
            "overlapped": one["overlapped"] * scale,
            "says": f"{one['kernel']}: {one['serial']:.0%} when nothing overlaps, at most {one['overlapped']:.0%}; "
            f"{one['vgprs']} registers, {one['lds_bytes']:,} bytes of LDS",
        }
        for at, one in enumerate(of["kernels"])
    ]
    marks = []
    for one in of["published"]:
        low, high = one["share"] if isinstance(one["share"], list) else (one["share"], one["share"])
        said = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        place = {"x": LABEL + low * scale, "width": max(2.0, (high - low) * scale)}
        marks.append({**place, "says": f"{one['of']}: {said} ({one['source']})"})
    return {"target": of["target"], "lines": lines, "marks": marks, "height": len(lines) * LINE}
