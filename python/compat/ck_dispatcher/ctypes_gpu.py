# SPDX-License-Identifier: MIT
"""Words of a KernelConfig on a GPU: a kernel of products has a tile, and does what is told here. Plain products of 16
bits have several on Hopper, and a config chooses by tile, pipeline and scheduler; others have one.

A config that says otherwise is refused with the reason, and mended by `auto_correct_kernel_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tilekiln import ArgumentError
from tilekiln.dispatcher._limits import GPU_PRODUCTS, GPU_TILES

if TYPE_CHECKING:
    from ctypes_config import KernelConfig

TARGETS = tuple(GPU_PRODUCTS)
_BUFFERS = {  # by a word of upstream's: the value of the axis, and what it does
    "compv4": ("ring", "a ring of blocks in shared memory is filled ahead of what is multiplied"),
    "compv3": ("two", "one block is read while another is multiplied, and more CTAs share a processor"),
    "mem": ("most", "blocks that are on their way fill the shared memory of a processor"),
}
_TURNS = "warpgroups have a tile each, in turns: one multiplies while the other stores"
_AHEAD = ("compv3", "the next block is on its way in registers while one block of LDS is multiplied")
_DIRECT = ("default", "sums go from registers to C")
_HOPPER = ((2, 1), (64, 256), 384, 2, "two warpgroups of wgmma, and one that loads")
_WAVES = {  # waves of a block, rows and columns that one multiplies at once, threads, groups of waves
    "hopper": _HOPPER,
    "groups": _HOPPER,
    "ampere": ((2, 2), (16, 8), 128, 1, "four warps of mma.sync"),
    "hip-gfx9": ((2, 2), (32, 32), 256, 1, "four waves of MFMA"),
    "hip-gfx1": ((2, 4), (16, 16), 256, 1, "eight waves of WMMA"),
}
_STEPS = {"hip-gfx90a": 8, "hip-gfx942": 8}  # numbers along k of one instruction, where it is not 16


def words_of(config: KernelConfig, element: int) -> dict[str, tuple[Any, str]]:
    """By field of a KernelConfig what it must be on its GPU, and why. element: bytes of a number of A.

    ArgumentError where the target has no kernel of the operator.
    """
    target, operator = config.target, config.operator
    if operator not in GPU_PRODUCTS[target]:
        known = ", ".join(GPU_PRODUCTS[target])
        raise ArgumentError(f"target: was {target}, must be one with kernels of {operator}; it has {known}")
    way = _way_of(config, element)
    m, n, words = map(int, way.tile.split("x"))
    cuda, k = target.startswith("cuda"), words * 4 // element
    teams = 2 if way.turns else m // 64
    (down, across), (rows, columns), threads, groups, by = (
        ((m // 64, 1), (64, n), 128 * (1 + teams), teams, f"{teams} warpgroups of wgmma, and one that loads")
        if way.pipeline == "tiles"
        else _WAVES[way.pipeline if cuda else target[:8]]
    )
    step = 32 // element if cuda else _STEPS.get(target, 16)
    block = f"{way.pipeline} has tiles of {m} x {n} x {k}"
    ring = next(word for word, (value, _) in _BUFFERS.items() if value == way.buffers) if cuda else _AHEAD[0]
    how = _BUFFERS[ring][1] if cuda else _AHEAD[1]
    walks = "blocks stay and walk over tiles" if cuda else "each tile is a block of its own"
    return {
        **{f"tile_{of}": (size, block) for of, size in zip("mnk", (m, n, k), strict=True)},
        **{f"wave_{of}": (count, by) for of, count in zip("mnk", (down, across, 1), strict=True)},
        **{f"warp_tile_{of}": (size, by) for of, size in zip("mnk", (rows, columns, step), strict=True)},
        "block_size": (threads, by),
        "num_wave_groups": (groups, by),
        "pipeline": (ring, how),
        "double_buffer": (cuda, how),
        "scheduler": ("interwave", _TURNS) if way.turns else ("intrawave", "no wave waits for another's products"),
        "epilogue": _DIRECT if way.pipeline == "ampere" else ("cshuffle", "sums go to C by way of shared memory"),
        "persistent": (cuda, walks),
        "preshuffle": (False, "B is read as it lies"),
    }


class _Way(NamedTuple):
    """The choice of a kernel: pipeline, tile in words of 32 bits along k, buffers, whether warpgroups take turns."""

    pipeline: str
    tile: str
    buffers: str = "ring"
    turns: bool = False

    @property
    def words(self) -> str:
        return " ".join([self.tile, *[self.buffers] * (self.buffers != "ring"), *["interwave"] * self.turns])


def _way_of(config: KernelConfig, element: int) -> _Way:
    """The way of a config's kernel: what it asks for, else by its pipeline, its scheduler or its tile alone."""
    own = _Way(*GPU_PRODUCTS[config.target][config.operator])
    tile = f"{config.tile_m}x{config.tile_n}x{config.tile_k * element // 4}"
    plain = config.operator == "gemm" and config.elementwise == "PassThrough" and config.multiplied_layout == "rcr"
    if not (plain and element == 2 and tile in GPU_TILES.get(config.target, ())):
        return own
    buffers = _BUFFERS.get(config.pipeline, ("ring", ""))[0]
    turns = config.scheduler == "interwave"
    ways = [
        _Way("tiles", tile, *more) for more in ((buffers, turns), (buffers, False), ("ring", turns), ("ring", False))
    ]
    found = next(way for way in ways if way.words in GPU_TILES[config.target])
    return own if found.words == own.words else found


def named_tile(config: KernelConfig) -> dict[str, Any]:
    """Words of a selection beside the signature: the tile, where a kernel is for that tile alone."""
    way = _way_of(config, 2 if config.dtype_a in ("fp16", "bf16") else 1)
    if way.pipeline != "tiles":
        return {}
    scheduler = ("intrawave", "interwave")[way.turns]
    return {"pipeline": "tiles", "tile": way.tile, "buffers": way.buffers, "scheduler": scheduler}


def is_of_target(config: KernelConfig, algorithm: Mapping[str, Any], element: int) -> bool:
    """Whether an instance of a config's signature is of its target and tile, and hands out work as it says."""
    if not config.target:
        return algorithm.get("schedule") in (None, config.schedule)
    turns = algorithm.get("scheduler") == "interwave"
    way = _Way(algorithm["pipeline"], algorithm["tile"], algorithm.get("buffers") or "ring", turns)
    fits = algorithm["target"] == config.target and algorithm.get("accumulate") != "fast"
    return bool(fits and way == _way_of(config, element))


def on_device(config: KernelConfig, a: Any, b: Any, more: Sequence[Any]) -> list[Any]:
    """The matrices as they are multiplied, which stay where they are. ArgumentError for one of the host."""
    made = [a.T if config.transpose_a else a, b.T if config.transpose_b else b, *more]
    for name, array in zip(("A", "B", *(f"Ds[{at}]" for at in range(len(more)))), made, strict=True):
        asked = getattr(array, "__dlpack_device__", None)
        if asked is None or asked()[0] == 1:
            must = f"must be on a device of {config.target}, such as a tensor"
            raise ArgumentError(f"{name}: was an array of the host, {type(array).__name__}, {must}")
    return made
