# SPDX-License-Identifier: MIT
"""flash_attn.cute.block_sparsity: the tiles of a block-sparse mask."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ... import _absent

__all__ = ["BlockSparseTensorsTorch"]

__getattr__ = _absent.sentences(__name__)


class BlockSparseTensorsTorch(NamedTuple):
    """Tiles that queries see. mask_block_cnt: int32 (batch or 1, nheads or 1, tiles of queries), how many are shown in
    part, as mask_mod says; mask_block_idx: int32 (..., tiles of keys), their numbers first. full_block_cnt and
    full_block_idx: the same of those that are shown whole. block_size: queries and keys of a tile; None is (128, 128).
    """

    mask_block_cnt: Tensor
    mask_block_idx: Tensor
    full_block_cnt: Tensor | None = None
    full_block_idx: Tensor | None = None
    cu_total_m_blocks: Tensor | None = None
    cu_block_idx_offsets: Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: Tensor | None = None
    dq_write_order_full: Tensor | None = None
