"""The host side of the CUDA backward, for checks and timings: plans the order of the adds, fills a row, launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.gpu import driver, order
from tools.gpu.forward import LOG2E, UNBOUNDED

HEADER = "kernels/attention/fmha_bwd/dq_dk_dv/cuda/row.h"
MASK, PAIRED, ALIBI, GROUP, SOFTCAP, BIAS, DROPOUT, BOTTOM_RIGHT = (1 << bit for bit in range(8))


def set_strides(row: Any, name: str, tensor: torch.Tensor, parts: tuple[str, ...], group: bool) -> None:
    """NAME_batch and NAME_`parts` of a row: dimensions from the first on (packed: no batch); one of size 1 has none."""
    strides = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    for part, stride in zip(parts if group else ("batch", *parts), strides, strict=False):
        setattr(row, f"{name}_{part}", stride)


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
        sink_size: int = 0,
        sink: torch.Tensor | None = None,
        d_sink: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        dbias: torch.Tensor | None = None,
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
        workers: int = 0,
        team: int = 0,
    ) -> Callable[[], None]:
        """Tensors are (batch, nhead, seqlen, hdim) of any strides, or packed (nhead, total, hdim) with seqstart_q.

        dbias is of the full shape. workers, team: for tests.
        """
        group = seqstart_q is not None
        nhead_q, hdim, nhead_k = q.shape[-3], q.shape[-1], k.shape[-3]
        batch = len(seqstart_q) - 1 if seqstart_q is not None else q.shape[0]
        rows, keys = (max_seqlen_q, max_seqlen_k) if group else (q.shape[-2], k.shape[-2])
        row: Any = driver.aligned(driver.structure(HEADER, "Row"))
        driver.map_rows(row.q, q, self.build.query_rows)
        driver.map_rows(row.dout, dout, self.build.query_rows)
        driver.map_rows(row.k, k, self.build.keys)
        driver.map_rows(row.v, v, self.build.keys)
        row.batch, row.nhead_q, row.nhead_k, row.hdim = batch, nhead_q, nhead_k, hdim
        row.seqlen_q, row.seqlen_k = rows, keys
        row.query_tiles, row.key_tiles = -(-rows // self.build.query_rows), -(-keys // self.build.keys)
        for name, tensor in {"out": out, "dout": dout, "dq": dq, "dk": dk, "dv": dv}.items():
            set_strides(row, name, tensor, ("head", "row"), group)
        set_strides(row, "lse", lse, ("head",), group)
        for name, array in {"bias": bias, "dbias": dbias}.items():
            if array is not None:
                set_strides(row, name, array, ("head", "row"), group)
        row.softmax_scale = hdim**-0.5 if softmax_scale is None else softmax_scale
        row.score_scale_log2 = LOG2E if softcap else row.softmax_scale * LOG2E
        row.softcap, row.softcap_inner = softcap, row.softmax_scale / softcap if softcap else 0.0
        row.bias_scale = LOG2E / row.score_scale_log2
        row.keep_scale = 1.0
        if dropout_p:
            from tilekiln import reference

            row.dropout_seed, row.dropout_offset = rng
            row.dropout_over = 0x10001 * (255 - reference.keep_threshold(dropout_p))
            row.keep_scale = 1.0 / (1.0 - dropout_p)
        left, right = window[0], 0 if causal else window[1]
        masked, paired = left >= 0 or right >= 0, left < 0 <= right
        row.left, row.right = (UNBOUNDED if side < 0 else side for side in (left, right))
        row.sink_size = sink_size if left >= 0 else 0
        row.shift = keys - rows if mask_origin == "bottom_right" else 0
        row.features = (
            MASK * masked
            | PAIRED * paired
            | ALIBI * (alibi_slopes is not None)
            | GROUP * group
            | SOFTCAP * (softcap > 0)
            | BIAS * (bias is not None)
            | DROPOUT * (dropout_p > 0)
            | BOTTOM_RIGHT * (mask_origin == "bottom_right")
        )
        if alibi_slopes is not None:
            row.alibi_batch = alibi_slopes.stride(0) if alibi_slopes.dim() == 2 else 0
        plan = order.plan(
            batch * nhead_k,
            nhead_q // nhead_k * row.query_tiles * self.build.query_rows,
            keys,
            self.build.hdim,
            masked=masked,
            paired=paired,
            workers=workers or driver.multiprocessors(),
            team=team,
        )
        for name in ("team", "passes", "units", "team_units", "lists", "slots", "turn"):
            setattr(row, name, getattr(plan, name))
        tiles = batch * nhead_q * row.query_tiles
        of_rows = [torch.full((tiles * self.build.query_rows,), float("nan"), device="cuda") for _ in range(2)]
        sums, sink_sums = (
            torch.full((size,), float("nan"), device="cuda")
            for size in (tiles * order.TILE_ELEMENTS * plan.slots, tiles)
        )
        counters = torch.full((tiles * plan.slots,), 77, dtype=torch.int32, device="cuda")  # poison: prepare zeroes
        pointers = {"out": out, "dout_rows": dout, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "d_sink": d_sink}
        pointers |= {"lse": lse, "lse_log2": of_rows[0], "delta": of_rows[1], "dq_sums": sums, "counters": counters}
        pointers |= {"sink_sums": sink_sums, "sink": sink, "bias": bias, "alibi_slopes": alibi_slopes}
        pointers |= {"seqstart_q": seqstart_q, "seqstart_k": seqstart_k, "seqlens_q": seqlen_q, "seqlens_k": seqlen_k}
        for name, pointer in pointers.items():
            setattr(row, name, driver.address(pointer))
        grid = (row.query_tiles, batch * nhead_q, 1)
        kept = (pointers, q, k, v)

        def run(kept: Any = kept) -> None:
            driver.launch(self.before, grid, 256, 0, row)
            driver.launch(self.main, (plan.workers, 1, 1), self.build.threads, self.build.shared_bytes, row)
            driver.launch(self.after, grid, 256, 0, row)

        return run
