# SPDX-License-Identifier: MIT
"""S_dmask, what return_attn_probs says of dropout, in the two conventions that callers know.

"randval", as flash_attn on AMD GPUs: the random bytes, uint8 (batch, nheads, seqlen_q, seqlen_k), varlen (nheads,
total_q, longest sequence of keys). A probability is kept where randval <= floor(255 (1 - dropout_p)).

"signed", as flash_attn on CUDA GPUs: the probabilities before dropout, dtype of q, (batch, nheads, seqlen_q, seqlen_k),
varlen (batch, nheads, longest of both), negative where dropout drops them. Made apart from the kernels, for tests.

CONVENTION is the one in use: set it, or TILEKILN_FLASH_ATTN_S_DMASK before the import.
"""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import torch
from torch import Tensor

from .._modules import FaceArgumentError

CONVENTIONS = ("randval", "signed")
CONVENTION = os.environ.get("TILEKILN_FLASH_ATTN_S_DMASK", "randval")
"""Of S_dmask: "randval" or "signed"."""


def empty(q: Tensor) -> Tensor:
    """S_dmask without dropout."""
    if CONVENTION not in CONVENTIONS:
        raise FaceArgumentError(
            f"CONVENTION: was {CONVENTION!r}, must be one of {', '.join(CONVENTIONS)} "
            "(tilekiln.compat.flash_attn.attn_probs, or TILEKILN_FLASH_ATTN_S_DMASK)"
        )
    return torch.empty(0, dtype=q.dtype if CONVENTION == "signed" else torch.uint8, device=q.device)


def s_dmask(q: Tensor, k: Tensor, lse: Tensor, randval: Tensor | None, arguments: dict[str, Any]) -> Tensor:
    """In the convention in use. lse and randval as `calls.forward` made them with these arguments."""
    nothing = empty(q)
    if randval is None or CONVENTION == "randval":
        return nothing if randval is None else randval
    if q.dim() == 4:
        made = [_signed(*one, b, arguments) for b, one in enumerate(zip(q, k, lse, randval, strict=True))]
        return torch.stack(made).to(q.dtype) if made else q.new_empty(randval.shape)
    starts_q = arguments["cu_seqlens_q"].tolist()
    starts_k = arguments["seqstart_k" if "seqstart_k" in arguments else "cu_seqlens_k"]
    lengths_k = arguments.get("seqlen_k", starts_k.diff()).tolist()
    batch = len(lengths_k)
    longest_q = max((end - begin for begin, end in itertools.pairwise(starts_q)), default=0)
    result = q.new_zeros(batch, q.shape[1], longest_q, max(lengths_k, default=0))
    for b, start_k, length_k in zip(range(batch), starts_k.tolist(), lengths_k, strict=False):
        rows, keys = slice(*starts_q[b : b + 2]), slice(start_k, start_k + length_k)
        one = q[rows], k[keys], lse[:, rows], randval[:, rows, :length_k]
        result[b, :, : len(one[0]), :length_k] = _signed(*one, b, arguments)
    return result


def _signed(q: Tensor, k: Tensor, lse: Tensor, randval: Tensor, b: int, arguments: dict[str, Any]) -> Tensor:
    """fp32 (nheads, seqlen_q, seqlen_k) of sequence b: q (seqlen_q, nheads, headdim), lse (nheads, seqlen_q)."""
    scale = arguments["softmax_scale"]
    wide = k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("ihd,jhd->hij", q.float(), wide) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if arguments["softcap"]:
        scores = arguments["softcap"] * torch.tanh(scores / arguments["softcap"])
    rows, keys = (torch.arange(len(x), device=q.device) for x in (q, k))
    distance = keys[None] - rows[:, None] - (len(k) - len(q))
    slopes = arguments["alibi_slopes"]
    if slopes is not None:
        scores = scores - (slopes if slopes.ndim == 1 else slopes[b])[:, None, None] * distance.abs()
    left, right = arguments["window"]
    right = 0 if arguments["causal"] else right
    hidden = torch.isneginf(lse)[..., None]
    if left >= 0:
        hidden = hidden | (distance < -left)
    if right >= 0:
        hidden = hidden | (distance > right)
    p = torch.exp(scores - lse[..., None]).masked_fill(hidden, 0)
    return torch.where(randval <= math.floor((1 - arguments["dropout_p"]) * 255), p, -p)
