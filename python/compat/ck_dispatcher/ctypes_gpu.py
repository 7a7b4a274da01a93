# SPDX-License-Identifier: MIT
"""Words of a KernelConfig on a GPU: a kernel of products has a tile, and does what is told here. Plain products of 16
bits have several on Hopper, and a config chooses; others have one.

A config that says otherwise is refused with the reason, and mended by `auto_correct_kernel_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilekiln import ArgumentError
from tilekiln.dispatcher._limits import GPU_PRODUCTS, GPU_TILES

if TYPE_CHECKING:
    from ctypes_config import KernelConfig

TARGETS = tuple(GPU_PRODUCTS)
_RING = ("compv4", "a ring of blocks in shared memory is filled ahead of what is multiplied")
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
    pipeline, tile = _way_of(config, element)
    m, n, words = map(int, tile.split("x"))
    cuda, k = target.startswith("cuda"), words * 4 // element
    (down, across), (rows, columns), threads, groups, by = (
        ((m // 64, 1), (64, n), 128 * (1 + m // 64), m // 64, f"{m // 64} warpgroups of wgmma, and one that loads")
        if pipeline == "tiles"
        else _WAVES[pipeline if cuda else target[:8]]
    )
    step = 32 // element if cuda else _STEPS.get(target, 16)
    block = f"{pipeline} has tiles of {m} x {n} x {k}"
    ring, how = _RING if cuda else _AHEAD
    walks = "blocks stay and walk over tiles" if cuda else "each tile is a block of its own"
    return {
        **{f"tile_{of}": (size, block) for of, size in zip("mnk", (m, n, k), strict=True)},
        **{f"wave_{of}": (count, by) for of, count in zip("mnk", (down, across, 1), strict=True)},
        **{f"warp_tile_{of}": (size, by) for of, size in zip("mnk", (rows, columns, step), strict=True)},
        "block_size": (threads, by),
        "num_wave_groups": (groups, by),
        "pipeline": (ring, how),
        "double_buffer": (cuda, how),
        "scheduler": ("intrawave", "no wave waits for another's products"),
        "epilogue": _DIRECT if pipeline == "ampere" else ("cshuffle", "sums go to C by way of shared memory"),
        "persistent": (cuda, walks),
        "preshuffle": (False, "B is read as it lies"),
    }


def _way_of(config: KernelConfig, element: int) -> tuple[str, str]:
    """The pipeline and the tile, in words of 32 bits along k, of a config's kernel."""
    own = GPU_PRODUCTS[config.target][config.operator]
    asked = f"{config.tile_m}x{config.tile_n}x{config.tile_k * element // 4}"
    plain = config.operator == "gemm" and config.elementwise == "PassThrough" and config.multiplied_layout == "rcr"
    named = plain and element == 2 and asked in GPU_TILES.get(config.target, ())
    return ("tiles", asked) if named and asked != own[1] else own


def named_tile(config: KernelConfig) -> dict[str, Any]:
    """Words of a selection beside the signature: the tile, where a kernel is for that tile alone."""
    pipeline, tile = _way_of(config, 2 if config.dtype_a in ("fp16", "bf16") else 1)
    return {"pipeline": pipeline, "tile": tile} if pipeline == "tiles" else {}


def is_of_target(config: KernelConfig, algorithm: Mapping[str, Any], element: int) -> bool:
    """Whether an instance of a config's signature is of its target and tile, and hands out work as it says."""
    if not config.target:
        return algorithm.get("schedule") in (None, config.schedule)
    way = (algorithm["pipeline"], algorithm["tile"])
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
