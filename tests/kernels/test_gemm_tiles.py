# SPDX-License-Identifier: MIT
"""A product's tile is the block that its engine works in: the scratch shows it, and the bits of out are the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.conftest import ROOT

TILES = {(0, 0): (120, 1024), (120, 1024): (120, 1024), (64, 32): (60, 32), (256, 64): (240, 64), (100, 17): (96, 17),
         (9999, 9999): (240, 1024)}  # fmt: skip
"""By tile_m and tile_k (0: the engine's): the rows of sums of a tile, even parts of 480, and the words of b."""
LONE = 128
"""The most words of b of a tile that is alone."""


def test_tiles_are_blocks(tmp_path: Path) -> None:
    flags = ["-std=c++20", "-O1", "-march=native", "-DTILEKILN_TARGET=probe", f"-I{ROOT}", f"-I{ROOT / 'include'}"]
    program = tmp_path / "tiles"
    sources = [ROOT / "tests/kernels/gemm_tiles.cpp", ROOT / "kernels/gemm/cpu/finish.cpp"]
    subprocess.run(["g++", *flags, *sources, "-o", program], check=True)
    words = [str(number) for tile in TILES for number in tile]
    said = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split() for line in said]
    rows = {int(a) for a, _, _ in found}
    assert len(rows) > 1
    assert len({hash_ for _, _, hash_ in found}) == 1
    for (tile_m, tile_k), (most, keys), (a, b, _) in zip(TILES, TILES.values(), found, strict=True):
        assert int(b) == min(keys, LONE), (tile_m, tile_k)
        assert most - 4 <= int(a) <= most + 4, (tile_m, tile_k)  # in whole register blocks, of 4 or of 6 rows
