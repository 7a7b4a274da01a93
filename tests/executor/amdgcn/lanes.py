# SPDX-License-Identifier: MIT
"""Instructions between lanes, as Python models of a wave: DPP, swizzles, permutations, reading and writing one lane.

A model gets a, b and the old result as lists with one entry a lane, and gives the new result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.executor.amdgcn.assembled import ALL, GFX9, RDNA
from tests.executor.amdgcn.instructions import Case

Model = Callable[[list[int], list[int], list[int]], list[int]]


def _case(text: str, model: Model, on: tuple[str, ...] = ALL, results: int = 1) -> Case:
    """A case of `instructions` whose result held {c} before."""

    def expected(a: Any, b: Any, c: Any, *, lanes: int) -> Any:
        lists = [[int(word) for word in array[:lanes]] for array in (a, b, c)]
        made = np.zeros((results, 64), np.uint32)
        made[:, :lanes] = np.asarray(model(*lists), np.uint64).reshape(results, lanes) & np.uint64(0xFFFFFFFF)
        return made

    return Case(f"v_mov_b32 {{d}}, {{c}}\n{text}", expected, on, "uuu", results)


def _dpp(
    control: str,
    source: Callable[[int], int],
    on: tuple[str, ...] = ALL,
    row_mask: int = 15,
    bank_mask: int = 15,
    zeros: bool = False,
) -> Case:
    """source(lane): the lane that is read, -1 for none: the old value stays, or 0 with bound_ctrl."""
    masks = f"row_mask:{row_mask:#x} bank_mask:{bank_mask:#x}" + " bound_ctrl:1" * zeros

    def model(a: list[int], b: list[int], old: list[int]) -> list[int]:
        made = list(old)
        for lane in range(len(a)):
            if not row_mask >> lane // 16 & 1 or not bank_mask >> lane % 16 // 4 & 1:
                continue
            if source(lane) >= 0:
                made[lane] = a[source(lane)]
            elif zeros:
                made[lane] = 0
        return made

    return _case(f"v_mov_b32_dpp {{d}}, {{a}} {control} {masks}", model, on)


def _row(lane: int, at: int) -> int:
    """Lane `at` of a lane's row, -1 outside the row."""
    return lane // 16 * 16 + at if 0 <= at < 16 else -1


DPP = [
    _dpp("quad_perm:[2,0,3,1]", lambda lane: lane // 4 * 4 + (2, 0, 3, 1)[lane % 4]),
    _dpp("row_shl:3", lambda lane: _row(lane, lane % 16 + 3)),
    _dpp("row_shr:5", lambda lane: _row(lane, lane % 16 - 5)),
    _dpp("row_shr:1", lambda lane: _row(lane, lane % 16 - 1), zeros=True),
    _dpp("row_ror:6", lambda lane: _row(lane, (lane % 16 - 6) % 16)),
    _dpp("row_mirror", lambda lane: _row(lane, 15 - lane % 16)),
    _dpp("row_half_mirror", lambda lane: lane // 8 * 8 + 7 - lane % 8),
    _dpp("row_ror:1", lambda lane: _row(lane, (lane % 16 - 1) % 16), row_mask=2, bank_mask=5),
    _dpp("row_bcast:15", lambda lane: lane // 16 * 16 - 1, GFX9, row_mask=10),
    _dpp("row_bcast:31", lambda lane: 31 if lane >= 32 else -1, GFX9),
    _dpp("wave_shl:1", lambda lane: lane + 1 if lane < 63 else -1, ("gfx90a", "gfx942", "gfx950")),
    _dpp("wave_shr:1", lambda lane: lane - 1, ("gfx90a", "gfx942", "gfx950"), zeros=True),
    _dpp("row_newbcast:9", lambda lane: _row(lane, 9), GFX9),
    _dpp("row_share:9", lambda lane: _row(lane, 9), RDNA),
    _dpp("row_xmask:10", lambda lane: _row(lane, lane % 16 ^ 10), RDNA),
    _case(
        "v_add_u32_dpp {d}, {a}, {b} row_mirror row_mask:0xf bank_mask:0xf",
        lambda a, b, old: [a[_row(lane, 15 - lane % 16)] + b[lane] for lane in range(len(a))],
        GFX9,
    ),
    _case(
        "v_add_nc_u32_dpp {d}, {a}, {b} row_mirror row_mask:0xf bank_mask:0xf",
        lambda a, b, old: [a[_row(lane, 15 - lane % 16)] + b[lane] for lane in range(len(a))],
        RDNA,
    ),
]


def _swizzled(offset: int) -> Model:
    """The bit mask mode of ds_swizzle_b32: ((lane & and) | or) ^ xor in groups of 32."""
    and_mask, or_mask, xor_mask = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return lambda a, b, old: [a[lane & ~31 | (lane & 31 & and_mask | or_mask) ^ xor_mask] for lane in range(len(a))]


def _permlane(a: list[int], b: list[int], old: list[int], other: bool) -> list[int]:
    choice = 0xFEDCBA9801234567  # nibble k: the lane that lane k of a row reads
    return [a[(lane // 16 * 16 + (choice >> 4 * (lane % 16) & 15)) ^ (16 if other else 0)] for lane in range(len(a))]


def _swap(span: int) -> Model:
    """v_permlane{32,16}_swap: the odd spans of the first register with the even ones of the second."""

    def model(a: list[int], b: list[int], old: list[int]) -> list[int]:
        odd = [lane // span % 2 for lane in range(64)]
        first = [b[lane - span] if odd[lane] else a[lane] for lane in range(64)]
        second = [b[lane] if odd[lane] else a[lane + span] for lane in range(64)]
        return [*first, *second]

    return model


def _permuted(a: list[int], b: list[int], old: list[int]) -> list[int]:
    """ds_permute: each lane sends to lane 63 - l (a reversal, so that no two send to one)."""
    return a[::-1]


MOVES = [
    _case('ds_swizzle_b32 {d}, {a} offset:swizzle(BITMASK_PERM, "01pip")', _swizzled(7 | 8 << 5 | 2 << 10)),
    _case("ds_swizzle_b32 {d}, {a} offset:0x401f", _swizzled(0x401F)),
    _case(
        "ds_swizzle_b32 {d}, {a} offset:0x8000|0x1b",
        lambda a, b, old: [a[lane // 4 * 4 + 3 - lane % 4] for lane in range(len(a))],
    ),
    _case(
        "v_and_b32 v30, 0xfc, {b}\nds_bpermute_b32 {d}, v30, {a} offset:4",
        lambda a, b, old: [a[((b[lane] & 0xFC) + 4 >> 2) % len(a)] for lane in range(len(a))],
    ),
    _case("v_xor_b32 v30, 0xfc, v0\nds_permute_b32 {d}, v30, {a}", _permuted),
    _case("v_readlane_b32 s20, {a}, 5\nv_mov_b32 {d}, s20", lambda a, b, old: [a[5]] * len(a)),
    _case("s_mov_b32 s21, 29\nv_readlane_b32 s20, {a}, s21\nv_mov_b32 {d}, s20", lambda a, b, old: [a[29]] * len(a)),
    _case("v_readfirstlane_b32 s20, {a}\nv_mov_b32 {d}, s20", lambda a, b, old: [a[0]] * len(a)),
    _case(
        "s_mov_b32 exec_lo, 0xfff0\nv_readfirstlane_b32 s20, {a}\nv_mov_b32 {d}, s20\ns_mov_b32 exec_lo, -1",
        lambda a, b, old: [a[4] if 4 <= lane < 16 or lane >= 32 else old[lane] for lane in range(len(a))],
    ),
    _case("v_writelane_b32 {d}, 60, 9", lambda a, b, old: [60 if lane == 9 else old[lane] for lane in range(len(a))]),
    _case(
        "v_mbcnt_lo_u32_b32 {d}, {a}, 3\nv_mbcnt_hi_u32_b32 {d}, {b}, {d}",
        lambda a, b, old: [
            3 + (a[lane] & (1 << min(lane, 32)) - 1).bit_count() + (b[lane] & (1 << max(lane - 32, 0)) - 1).bit_count()
            for lane in range(len(a))
        ],
    ),
    _case(
        "s_mov_b32 s20, 0x01234567\ns_mov_b32 s21, 0xfedcba98\nv_permlane16_b32 {d}, {a}, s20, s21",
        lambda a, b, old: _permlane(a, b, old, False),
        RDNA,
    ),
    _case(
        "s_mov_b32 s20, 0x01234567\ns_mov_b32 s21, 0xfedcba98\nv_permlanex16_b32 {d}, {a}, s20, s21",
        lambda a, b, old: _permlane(a, b, old, True),
        RDNA,
    ),
    _case("v_mov_b32 {d}, {a}\nv_mov_b32 {e}, {b}\nv_permlane32_swap_b32 {d}, {e}", _swap(32), ("gfx950",), 2),
    _case("v_mov_b32 {d}, {a}\nv_mov_b32 {e}, {b}\nv_permlane16_swap_b32 {d}, {e}", _swap(16), ("gfx950",), 2),
    _case(
        "v_accvgpr_write_b32 a3, {a}\ns_nop 1\nv_accvgpr_mov_b32 a4, a3\nv_accvgpr_read_b32 {d}, a4",
        lambda a, b, old: a,
        GFX9,
    ),
]
CASES = [*DPP, *MOVES]
