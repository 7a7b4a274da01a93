# SPDX-License-Identifier: MIT
"""Pictures of what a benchmark measured, for docs/pictures: the same figures give the same bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .forward import Figure

OURS, THEIRS, GREY = "#d9673a", "#7d8da0", "#636c76"


def figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """matplotlib's figure and axes (rows, columns), with a background that dark pages bear."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tilekiln", "font.size": 8})
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)


def save(drawn: Any, path: str) -> None:
    """Without the date, so that it changes only with what it shows."""
    drawn.savefig(path, metadata={"Date": None} if path.endswith(".svg") else {})
    if path.endswith(".svg"):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(compact(text))


def compact(text: str) -> str:
    """matplotlib's SVG with a line a group: a path has one for each of its points there."""
    paths = re.sub(r'(?<= d=")[^"]*', lambda found: " ".join(found[0].split()), text)
    return re.sub(r"(</?g id=)", r"\n\1", re.sub(r">\s+<", "><", paths)).rstrip() + "\n"


def bars(path: str, figures: Sequence[Figure]) -> None:
    """Share of the core's peak, a panel a dtype and mask: ours, and PyTorch's by the ratio of the two times."""
    dtypes = list(dict.fromkeys(one.dtype for one in figures))
    masks = list(dict.fromkeys(one.mask for one in figures))
    drawn, axes = figure(len(masks), len(dtypes), (2.9 * len(dtypes), 2.2 * len(masks)))
    for row, mask in enumerate(masks):
        for column, dtype in enumerate(dtypes):
            panel = axes[row][column]
            own = [one for one in figures if (one.dtype, one.mask) == (dtype, mask)]
            for at, one in enumerate(own):
                panel.bar(at - 0.2, 100 * one.share, 0.4, color=OURS)
                panel.text(at - 0.2, 100 * one.share + 1, f"{100 * one.share:.0f}", ha="center", size=7)
                if not math.isnan(one.ratio):
                    theirs = 100 * one.share / one.ratio
                    panel.bar(at + 0.2, theirs, 0.4, color=THEIRS)
                    panel.text(at + 0.2, theirs + 1, f"{theirs:.0f}", ha="center", size=7)
            heads = [f"/{one.shape.nhead_k}" if one.shape.nhead_k != one.shape.nhead_q else "" for one in own]
            names = [
                f"S{one.shape.seqlen}\nD{one.shape.hdim}{group and chr(10) + 'GQA'}"
                for one, group in zip(own, heads, strict=True)
            ]
            panel.set_xticks(range(len(own)), names)
            panel.set_ylim(0, 105)
            panel.set_title(f"{dtype}, {mask}", size=9)
            panel.spines[["top", "right"]].set_visible(False)
            if column == 0:
                panel.set_ylabel("% of the core's peak")
    from matplotlib.patches import Patch

    patches = [Patch(color=OURS, label="Tilekiln"), Patch(color=THEIRS, label="PyTorch SDPA")]
    drawn.legend(handles=patches, loc="outside lower center", ncols=2, frameon=False)
    save(drawn, path)


def shares(path: str, points: Sequence[tuple[str, str, int, float]]) -> None:
    """Share of the core's peak over seqlen, a panel a dtype: (dtype, mask, seqlen, share)."""
    dtypes = list(dict.fromkeys(dtype for dtype, *_ in points))
    drawn, axes = figure(1, len(dtypes), (3.4 * len(dtypes), 2.4))
    for panel, dtype in zip(axes[0], dtypes, strict=True):
        for mask, color in (("full", OURS), ("causal", THEIRS)):
            own = [(seqlen, 100 * share) for kind, seen, seqlen, share in points if (kind, seen) == (dtype, mask)]
            panel.plot(*zip(*own, strict=True), color=color, marker="o", markersize=3, label=mask)
        panel.axhline(100, color=GREY, linewidth=0.8, linestyle=":")
        panel.set_xscale("log", base=2)
        panel.set_ylim(0, 105)
        panel.set_title(dtype, size=9)
        panel.set_xlabel("seqlen")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("% of the core's peak")
    axes[0][0].legend(frameon=False, loc="lower right")
    save(drawn, path)
