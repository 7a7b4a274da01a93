"""The host side of the CUDA decode, for checks and timings: fills a row and launches split and combine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.gpu import driver
from tools.gpu.forward import LOG2E

HEADER = "kernels/attention/fmha_fwd_splitkv/cuda/row.h"


class Decode:
    """One build; `prepare` gives both launches as a function without arguments."""

    def __init__(self, cubin: Path) -> None:
        self.module = driver.Module(cubin)
        self.build = self.module.constant("fmha_decode_build", driver.structure(HEADER, "Build"))
        self.linear = self.module.kernel("fmha_decode_linear", self.build.shared_bytes)
        self.vectorized = self.module.kernel("fmha_decode_vectorized", self.build.shared_bytes)
        self.combine = self.module.kernel("fmha_decode_combine")

    def prepare(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        table: torch.Tensor,
        *,
        splits: int,
        seqlen_k: torch.Tensor | None = None,
        table_start: torch.Tensor | None = None,
        last_page_len: torch.Tensor | None = None,
    ) -> Callable[[], None]:
        """q, out (batch, nhead_q, hdim). k, v: linear (pages, page, nhead_k, hdim), or vectorized, of 5 dimensions.

        table: (batch, pages) with seqlen_k, or a flat one with table_start and last_page_len.
        """
        row: Any = driver.structure(HEADER, "Row")()
        batch, row.nhead_q, hdim = q.shape
        vectorized = k.dim() == 5  # k (pages, nhead_k, hdim / 8, page, 8), v (pages, nhead_k, page / 8, hdim, 8)
        row.nhead_k, page = (k.shape[1], k.shape[3]) if vectorized else (k.shape[2], k.shape[1])
        row.page_shift, row.splits = page.bit_length() - 1, splits
        split = self.vectorized if vectorized else self.linear
        row.table_row = table.shape[1] if table.dim() == 2 else 0
        row.q_batch, row.q_head = q.stride()[:2]
        row.out_batch, row.out_head = out.stride()[:2]
        for name, tensor in (("k", k), ("v", v)):
            stride = tensor.stride()
            linear = {"page": stride[0], "key": stride[1], "head": stride[2], "chunk": 8}
            if vectorized:
                linear = {"page": stride[0], "head": stride[1], "chunk": stride[2], "key": stride[3]}
            for part, value in linear.items():
                setattr(row, f"{name}_{part}", value)
        row.score_scale_log2 = hdim**-0.5 * LOG2E
        part_out = torch.full((batch * row.nhead_q * splits * hdim,), float("nan"), device="cuda")
        part_lse = torch.full((batch * row.nhead_q * splits,), float("nan"), device="cuda")
        pointers = {"q": q, "k": k, "v": v, "table": table, "table_start": table_start, "seqlen_k": seqlen_k}
        pointers |= {"last_page_len": last_page_len, "part_out": part_out, "part_lse": part_lse, "out": out, "lse": lse}
        for name, tensor in pointers.items():
            setattr(row, name, driver.address(tensor))
        grid, heads = (splits, row.nhead_k, batch), (row.nhead_q, batch, 1)

        def run(pointers: Any = pointers) -> None:
            driver.launch(split, grid, self.build.threads, self.build.shared_bytes, row)
            driver.launch(self.combine, heads, hdim, 0, row)

        return run
