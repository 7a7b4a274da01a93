"""The host side of the CUDA backward, for checks and timings: plans the order of the adds, fills a row, launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.gpu import driver, order
from tools.gpu.forward import LOG2E, UNBOUNDED

HEADER = "kernels/fmha_bwd_dq_dk_dv/cuda/row.h"
MASK, PAIRED, ALIBI = 1, 2, 4


class Backward:
    """One build; `prepare` gives the three launches as a function without arguments."""

    def __init__(self, cubin: Path) -> None:
        self.module = driver.Module(cubin)
        self.build = self.module.constant("fmha_bwd_build", driver.structure(HEADER, "Build"))
        self.main = self.module.kernel("fmha_bwd_hopper", self.build.shared_bytes)
        self.before = self.module.kernel("fmha_bwd_prepare")
        self.after = self.module.kernel("fmha_bwd_convert")

    def prepare(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dq: torch.Tensor,
        dk: torch.Tensor,
        dv: torch.Tensor,
        *,
        softmax_scale: float | None = None,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        mask_origin: str = "bottom_right",
        alibi_slopes: torch.Tensor | None = None,
        workers: int = 0,
        team: int = 0,
    ) -> Callable[[], None]:
        """Tensors are (batch, nhead, seqlen, hdim) of any strides; lse is contiguous. workers, team: for tests."""
        batch, nhead_q, seqlen_q, hdim = q.shape
        nhead_k, seqlen_k = k.shape[1:3]
        row: Any = driver.aligned(driver.structure(HEADER, "Row"))
        driver.map_rows(row.q, q, self.build.query_rows)
        driver.map_rows(row.dout, dout, self.build.query_rows)
        driver.map_rows(row.k, k, self.build.keys)
        driver.map_rows(row.v, v, self.build.keys)
        row.batch, row.nhead_q, row.nhead_k, row.hdim = batch, nhead_q, nhead_k, hdim
        row.seqlen_q, row.seqlen_k = seqlen_q, seqlen_k
        row.query_tiles, row.key_tiles = -(-seqlen_q // self.build.query_rows), -(-seqlen_k // self.build.keys)
        for name, tensor in {"out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv}.items():
            for part, stride in zip(("batch", "head", "row"), tensor.stride()[:3], strict=True):
                setattr(row, f"{name}_{part}", stride)
        row.softmax_scale = hdim**-0.5 if softmax_scale is None else softmax_scale
        row.score_scale_log2, row.alibi_scale = row.softmax_scale * LOG2E, 1 / row.softmax_scale
        left, right = window[0], 0 if causal else window[1]
        masked, paired = left >= 0 or right >= 0, left < 0 <= right
        row.left, row.right = (UNBOUNDED if side < 0 else side for side in (left, right))
        row.shift = seqlen_k - seqlen_q if mask_origin == "bottom_right" else 0
        row.features = MASK * masked | PAIRED * paired | ALIBI * (alibi_slopes is not None)
        if alibi_slopes is not None:
            row.alibi_batch = alibi_slopes.stride(0) if alibi_slopes.dim() == 2 else 0
        plan = order.plan(
            batch * nhead_k,
            nhead_q // nhead_k * row.query_tiles * self.build.query_rows,
            seqlen_k,
            self.build.hdim,
            masked=masked,
            paired=paired,
            workers=workers or driver.multiprocessors(),
            team=team,
        )
        for name in ("team", "passes", "units", "team_units", "lists", "slots", "turn"):
            setattr(row, name, getattr(plan, name))
        rows = batch * nhead_q * row.query_tiles * self.build.query_rows
        lse_log2, delta = (torch.full((rows,), float("nan"), device="cuda") for _ in range(2))
        sums = torch.full((rows * self.build.hdim * plan.slots,), float("nan"), device="cuda")
        counters = torch.full(
            (batch * nhead_q * row.query_tiles * plan.slots,), 77, dtype=torch.int32, device="cuda"
        )  # poison: prepare zeroes
        pointers = {"out": out, "dout_rows": dout, "dq": dq, "dk": dk, "dv": dv, "lse": lse, "lse_log2": lse_log2}
        pointers |= {"delta": delta, "dq_sums": sums, "counters": counters}
        for name, tensor in pointers.items():
            setattr(row, name, tensor.data_ptr())
        row.alibi_slopes = driver.address(alibi_slopes)
        grid = (row.query_tiles, batch * nhead_q, 1)
        kept = (pointers, q, k, v, alibi_slopes)

        def run(kept: Any = kept) -> None:
            driver.launch(self.before, grid, 256, 0, row)
            driver.launch(self.main, (plan.workers, 1, 1), self.build.threads, self.build.shared_bytes, row)
            driver.launch(self.after, grid, 256, 0, row)

        return run
