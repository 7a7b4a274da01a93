# SPDX-License-Identifier: MIT
"""aiter.mla: absorbed multi-head latent attention over a latent cache, by fmha_mla_decode.

q (total, heads, hdim), o (total, heads, hdim_v), kv_buffer (pages, page_size, 1, hdim), all fp32, fp16 or bf16 of one
dtype: of a row all elements are the key and the first hdim_v the value. Sequence i has the queries qo_indptr[i] to
qo_indptr[i + 1] - 1 and the pages kv_indices[kv_indptr[i] to kv_indptr[i + 1] - 1], the last with kv_last_page_lens[i]
keys. sm_scale None: 1 / sqrt(hdim). No result has a gradient.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from .. import _absent
from .._modules import errors_as_upstream
from ._paged import table_of
from ._rows import off
from ._run import run

__all__ = ["mla_decode_fwd", "mla_prefill_fwd"]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(cache="kv_buffer", out="o", softmax_scale="sm_scale", seqlen_k="kv_indptr")


def _attend(
    q: Tensor, kv_buffer: Tensor, o: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
    kv_last_page_lens: Tensor, sm_scale: float | None, causal: bool,
) -> Tensor:  # fmt: skip
    """lse (total, heads); o is written. Sequences with as many queries go in one call."""
    if kv_buffer.dim() != 4 or kv_buffer.shape[2] != 1 or q.dim() != 3:
        raise ArgumentError(
            f"kv_buffer: was of shape {tuple(kv_buffer.shape)}, must be (pages, page_size, 1, hdim) for q (total, "
            f"heads, hdim), which was of shape {tuple(q.shape)}"
        )
    table, lengths = table_of(kv_indptr, kv_indices, kv_last_page_lens, kv_buffer.shape[1])
    starts = qo_indptr.tolist()
    counts = [end - begin for begin, end in itertools.pairwise(starts)]
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    given: dict[str, Any] = {"hdim_v": o.shape[-1], "causal": causal, "return_lse": True}
    if sm_scale is not None:
        given["softmax_scale"] = sm_scale
    cache = kv_buffer.squeeze(2)
    for count in sorted(set(counts) - {0}):
        which = [i for i, one in enumerate(counts) if one == count]
        whole = len(which) == len(counts)
        rows: Any = slice(None)
        part: Any = slice(None)
        if not whole:
            ranges = [torch.arange(starts[i], starts[i] + count, device=q.device) for i in which]
            rows, part = torch.cat(ranges), torch.tensor(which, device=q.device)
        queries = q[rows].view(len(which), count, *q.shape[1:])
        arguments = {**given, "block_table": table[part], "seqlen_k": lengths[part]}
        made, of_rows = run("fmha_mla_decode", (queries, cache), arguments)
        o[rows] = made.view(-1, *o.shape[1:])
        lse[rows] = of_rows.transpose(1, 2).reshape(-1, q.shape[1])
    return lse


@_named
def mla_decode_fwd(
    q: Tensor, kv_buffer: Tensor, o: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
    kv_last_page_lens: Tensor, max_seqlen_q: int, page_size: int = 1, nhead_kv: int = 1, sm_scale: float | None = None,
    logit_cap: float = 0.0, num_kv_splits: int | None = None, num_kv_splits_indptr: Tensor | None = None,
    work_meta_data: Tensor | None = None, work_indptr: Tensor | None = None, work_info_set: Tensor | None = None,
    reduce_indptr: Tensor | None = None, reduce_final_map: Tensor | None = None,
    reduce_partial_map: Tensor | None = None, q_scale: Tensor | None = None, kv_scale: Tensor | None = None,
    intra_batch_mode: bool = False, return_logits: bool = False, return_lse: bool = False,
    g_kv_indptr: Tensor | None = None, cp_world_size: int = 1, cp_rank: int = 0, causal: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(o, lse (total, heads), with return_lse, else None); o is written.

    causal: query j of n sees the keys up to seqlen_k - n + j. num_kv_splits and what plans the work (work_...,
    reduce_...) change nothing. 8 bits, a cap of the scores and shards of a sequence are refused.
    """
    off("logit_cap", logit_cap > 0 and logit_cap, "there is no cap of latent attention")
    off("q_scale", q_scale, "queries are 16 or 32 bits")
    off("kv_scale", kv_scale, "tilekiln.fmha_mla_decode takes rows of 656 bytes of fp8")
    off("return_logits", return_logits, "parts of the keys are added up inside")
    off("g_kv_indptr", g_kv_indptr, "a cache is whole")
    off("cp_world_size", cp_world_size != 1 and cp_world_size, "a cache is whole")
    lse = _attend(q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, sm_scale, bool(causal))
    return o, lse if return_lse else None


@_named
def mla_prefill_fwd(
    q: Tensor, kv_buffer: Tensor, o: Tensor, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
    kv_last_page_lens: Tensor, max_seqlen_q: int, sm_scale: float | None = None, logit_cap: float = 0.0,
    num_kv_splits: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(o, lse (total, 1, heads, 1)): `mla_decode_fwd`, causal."""
    off("logit_cap", logit_cap > 0 and logit_cap, "there is no cap of latent attention")
    lse = _attend(q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, sm_scale, True)
    return o, lse[:, None, :, None]
