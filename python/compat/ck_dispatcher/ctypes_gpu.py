# SPDX-License-Identifier: MIT
"""Words of a KernelConfig on a GPU: each kernel of products has one tile, and does what is told here.

A config that says otherwise is refused with the reason, and mended by `auto_correct_kernel_config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilekiln import ArgumentError
from tilekiln.dispatcher._limits import GPU_PRODUCTS

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


def words_of(target: str, operator: str, element: int) -> dict[str, tuple[Any, str]]:
    """By field of a KernelConfig what it must be on a GPU, and why. element: bytes of a number of A.

    ArgumentError where the target has no kernel of the operator.
    """
    if operator not in GPU_PRODUCTS[target]:
        known = ", ".join(GPU_PRODUCTS[target])
        raise ArgumentError(f"target: was {target}, must be one with kernels of {operator}; it has {known}")
    pipeline, tile = GPU_PRODUCTS[target][operator]
    m, n, words = map(int, tile.split("x"))
    cuda, k = target.startswith("cuda"), words * 4 // element
    (down, across), (rows, columns), threads, groups, by = _WAVES[pipeline if cuda else target[:8]]
    step = 32 // element if cuda else _STEPS.get(target, 16)
    block = f"{pipeline} has tiles of {m} x {n} x {k}"
    ring, how = _RING if cuda else _AHEAD
    walks = "blocks stay and walk over tiles" if cuda else "each tile is a block of its own"
    return {
        **dict(
            zip(("tile_m", "tile_n", "tile_k"), ((m, block), (n, block), (words * 4 // element, block)), strict=True)
        ),
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


def is_of_target(config: KernelConfig, algorithm: Mapping[str, Any]) -> bool:
    """Whether an instance of a config's signature is of its target, and hands out work as it says."""
    if not config.target:
        return algorithm.get("schedule") in (None, config.schedule)
    return bool(algorithm["target"] == config.target and algorithm.get("accumulate") != "fast")


def on_device(config: KernelConfig, a: Any, b: Any, more: Sequence[Any]) -> list[Any]:
    """The matrices as they are multiplied, which stay where they are. ArgumentError for one of the host."""
    made = [a.T if config.transpose_a else a, b.T if config.transpose_b else b, *more]
    for name, array in zip(("A", "B", *(f"Ds[{at}]" for at in range(len(more)))), made, strict=True):
        asked = getattr(array, "__dlpack_device__", None)
        if asked is None or asked()[0] == 1:
            must = f"must be on a device of {config.target}, such as a tensor"
            raise ArgumentError(f"{name}: was an array of the host, {type(array).__name__}, {must}")
    return made
