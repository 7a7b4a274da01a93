# SPDX-License-Identifier: MIT
"""Kernels over kernels/backends/cuda/tile leave barriers, slots, swizzles and descriptors to it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TILE = ROOT / "kernels" / "backends" / "cuda" / "tile"
WORDS = re.compile(
    r"\b(mbarrier|barrier_init|arrive_expecting|warp_arrive|warp_arrive_if|phase|slot|swizzled?|swizzle128|\w*descriptor)\b"
)
MOST_LINES, MOST_COLUMNS = 1300, 120


def test_no_kernel_says_the_words_of_tile() -> None:
    every = [path for kind in ("cu", "h") for path in (ROOT / "kernels").rglob(f"cuda/*.{kind}")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in every}
    own = {name: text for name, text in texts.items() if not name.startswith("kernels/backends/")}
    assert "kernels/gemm/gemm/cuda/gemm.cu" in own
    said = {name: sorted(set(WORDS.findall(text))) for name, text in own.items() if WORDS.search(text)}
    assert not said, f"words of kernels/backends/cuda/tile in kernels: {said}"


def test_the_vocabulary_stays_small_and_narrow() -> None:
    lines = {path.name: path.read_text(encoding="utf-8").splitlines() for path in TILE.glob("*.h")}
    assert lines
    assert sum(map(len, lines.values())) <= MOST_LINES
    wide = [
        f"{name}:{at}" for name, text in lines.items() for at, line in enumerate(text, 1) if len(line) > MOST_COLUMNS
    ]
    assert not wide


def test_every_header_is_included_by_a_kernel_or_by_another() -> None:
    users = [path for kind in ("cu", "h") for path in (ROOT / "kernels").rglob(f"*.{kind}")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in users)
    assert [
        path.name for path in TILE.glob("*.h") if f'#include "kernels/backends/cuda/tile/{path.name}"' not in text
    ] == []
