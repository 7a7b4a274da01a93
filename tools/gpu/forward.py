# SPDX-License-Identifier: MIT
"""The host side of the CUDA forward, for checks and timings: fills a row and launches it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.gpu import driver

HEADER = "kernels/attention/fmha_fwd/cuda/params.h"
MASK, GROUP, SOFTCAP, ALIBI, BIAS, DROPOUT, BOTTOM_RIGHT, HEAVY_FIRST = (1 << bit for bit in range(8))
BLOCK_SCALES = 512
LOG2E = 1.4426950408889634
UNBOUNDED = 1 << 29  # further than any key; twice it fits an int
L2_BYTES = 16 << 20  # keys and values of the heads in flight


def head_group(heads: int, bytes_per_head: int) -> int:
    """The largest power of two that divides `heads` and keeps the group's keys and values in L2."""
    group = 1
    while heads % (2 * group) == 0 and 2 * group * bytes_per_head <= L2_BYTES:
        group *= 2
    return group


def _descale(row: Any, descales: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    row.q_descale, row.k_descale, row.v_descale = map(driver.address, descales)
    row.q_scales, row.k_scales = descales[0].shape[-1], descales[1].shape[-1]
    for name, one in zip("qkv", descales, strict=True):
        setattr(row, f"{name}_scale_batch", one[0].numel())
        setattr(row, f"{name}_scale_head", one.shape[-1])


class Forward:
    """One build; `prepare` gives a launch of it as a function without arguments."""

    def __init__(self, cubin: Path) -> None:
        self.module = driver.Module(cubin)
        self.build = self.module.constant("fmha_fwd_build", driver.structure(HEADER, "Build"))
        self.kernel = self.module.kernel("fmha_fwd_hopper", self.build.shared_bytes)
        self.next_tile = torch.zeros(1, dtype=torch.int32, device="cuda")

    def prepare(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        softmax_scale: float | None = None,
        causal: bool = False,
        window: tuple[int, ...] = (-1, -1),
        mask_origin: str = "bottom_right",
        sink: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        softcap: float = 0.0,
        dropout_p: float = 0.0,
        rng: tuple[int, int] = (0, 0),
        seqstart_q: torch.Tensor | None = None,
        seqstart_k: torch.Tensor | None = None,
        seqlen_q: torch.Tensor | None = None,
        seqlen_k: torch.Tensor | None = None,
        max_seqlen_q: int = 0,
        max_seqlen_k: int = 0,
        descales: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> Callable[[], None]:
        """Tensors are (batch, nhead, seqlen, hdim) of any strides, or packed (nhead, total, hdim) with seqstart_q.

        descales: of e4m3, one value each, or (batch, nhead, blocks of 128). window: left, right, and keys that stay.
        """
        group = seqstart_q is not None
        row: Any = driver.aligned(driver.structure(HEADER, "Params"))
        driver.map_rows(row.q, q, 8 if dropout_p else self.build.query_box)
        driver.map_rows(row.k, k, self.build.keys)
        driver.map_rows(row.v, v, self.build.keys)
        row.out, row.lse, row.next_tile = map(driver.address, (out, lse, self.next_tile))
        row.seqstart_q, row.seqstart_k = map(driver.address, (seqstart_q, seqstart_k))
        row.seqlen_q, row.seqlen_k = map(driver.address, (seqlen_q, seqlen_k))
        row.cu_seqlens_q, row.cu_seqlens_k = row.seqstart_q, row.seqstart_k
        row.alibi_slopes, row.sink, row.bias = map(driver.address, (alibi_slopes, sink, bias))
        row.nhead_q, row.nhead_k, row.hdim_v = q.shape[-3], k.shape[-3], v.shape[-1]
        if seqstart_q is not None:
            row.batch, row.seqlen_q_most, row.seqlen_k_most = len(seqstart_q) - 1, max_seqlen_q, max_seqlen_k
            row.total_q, row.total_k = q.shape[1], k.shape[1]
        else:
            row.batch, row.seqlen_q_most, row.seqlen_k_most = q.shape[0], q.shape[2], k.shape[2]
        row.out_head, row.out_row = out.stride()[-3:-1]
        row.out_batch = 0 if group else out.stride(0)
        if lse is not None:
            row.lse_head, row.lse_batch = lse.stride(-2), 0 if group else lse.stride(0)
        if alibi_slopes is not None and alibi_slopes.dim() == 2:
            row.alibi_batch = alibi_slopes.stride(0)
        if bias is not None:
            strides = [0 if size == 1 else stride for size, stride in zip(bias.shape, bias.stride(), strict=True)]
            row.bias_head, row.bias_row, row.bias_batch = strides[-3], strides[-2], strides[0] if not group else 0
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        row.score_scale_log2 = (softcap or scale) * LOG2E
        row.softcap_inner = scale / softcap if softcap else 0.0
        alone = softcap and alibi_slopes is None and bias is None and not dropout_p
        if alone and row.score_scale_log2 <= 100:
            row.capped_top = math.floor(min(row.score_scale_log2 + 1, 126 - row.score_scale_log2))
        row.bias_scale = LOG2E / row.score_scale_log2
        left, right = window[0], 0 if causal else window[1]
        row.left, row.right = (UNBOUNDED if side < 0 else side for side in (left, right))
        row.sink_keys = window[2] if left >= 0 and len(window) > 2 else 0
        if dropout_p:
            from tilekiln import reference

            row.dropout_seed, row.dropout_offset = rng
            row.dropout_over = 0x10001 * (255 - reference.keep_threshold(dropout_p))
            row.keep_scale = 1.0 / (1.0 - dropout_p)
        if descales is not None:
            _descale(row, descales)
        features = {
            MASK: left >= 0 or right >= 0, GROUP: group, SOFTCAP: softcap > 0, ALIBI: alibi_slopes is not None,
            BIAS: bias is not None, DROPOUT: dropout_p > 0, BOTTOM_RIGHT: mask_origin == "bottom_right",
            HEAVY_FIRST: right >= 0, BLOCK_SCALES: descales is not None and descales[0].numel() > 1,
        }  # fmt: skip
        row.features = sum(word for word, given in features.items() if given)
        row.query_blocks = -(-row.seqlen_q_most // self.build.query_rows)
        row.tiles = row.query_blocks * row.nhead_q * row.batch
        row.head_group = head_group(row.batch * row.nhead_q, row.seqlen_k_most * 2 * (q.shape[-1] + v.shape[-1]))
        grid = (min(driver.multiprocessors(), row.tiles), 1, 1)
        kept = (q, k, v, out, lse, sink, bias, alibi_slopes, descales, seqstart_q, seqstart_k, seqlen_q, seqlen_k)

        def run(kept: Any = kept) -> None:
            driver.launch(self.kernel, grid, self.build.threads, self.build.shared_bytes, row)

        return run
