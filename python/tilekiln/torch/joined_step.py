# SPDX-License-Identifier: MIT
"""Norms of heads, rotary, cache and attention of a step as one call, in the rooms of a growing cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.native import NoKernelError
from ..api.operators import _call
from .norms import RMSNorm


def appended(
    attention: Any, norms: Any, scaling: Any, cache: Any, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor
) -> Tensor | None:
    """Attention of a token of each sequence, all at one position, which the cache has then; None where that cannot be.

    q (batch, 1, nhead, hdim), k and v of nhead_k; cos and sin (1, rotary_dim / 2), which lie as all rows of a table.
    norms: `head_norms` of the module.
    """
    layers = getattr(cache, "layers", ())
    layer: Any = layers[attention.layer_idx] if attention.layer_idx < len(layers) else None
    rooms = layer.room_for(k.transpose(1, 2), v.transpose(1, 2)) if hasattr(layer, "room_for") else None
    if rooms is None or norms is None:
        return None
    keys, values, length = rooms
    given = {
        "seqlen_k": _lengths(len(q), length),
        "rotary_cos": cos.expand(length + 1, -1),
        "rotary_sin": sin.expand(length + 1, -1),
        "rotary_interleaved": False,
        "softmax_scale": scaling,
        "attend": True,
    }
    if norms:
        modules = [attention._modules[name] for name in ("q_norm", "k_norm")]
        if any(one._forward_hooks or one._forward_pre_hooks or type(one) is not RMSNorm for one in modules):
            return None
        parameters = (one._parameters["weight"] for one in modules)
        given |= dict(zip(("q_gamma", "k_gamma"), parameters, strict=True)) | norms
    try:
        made: Tensor = _call("fmha_fwd_appendkv", (q, keys.transpose(1, 2), values.transpose(1, 2), k, v), given)
    except NoKernelError:  # whose checks come before anything is written
        return None
    layer.grow(1)
    return made


_last_lengths: tuple[tuple[int, int], Any] = ((0, 0), None)


def _lengths(batch: int, length: int) -> Tensor:
    """int32 (batch), all of them alike: what was made for the layer before is taken again."""
    global _last_lengths
    known, made = _last_lengths
    if known != (batch, length):
        made = torch.full((batch,), length, dtype=torch.int32, device="cpu")
        _last_lengths = (batch, length), made
    its: Tensor = made
    return its


def head_norms(attention: Any) -> dict[str, Any] | None:
    """Options of fmha_fwd_appendkv for norms of heads beside their weights; None where it has none like them."""
    norms = [attention._modules[name] for name in ("q_norm", "k_norm") if name in attention._modules]
    if not norms:
        return {}
    first = norms[0]
    alike = all(type(one) is RMSNorm and (one.eps, one.rounding) == (first.eps, first.rounding) for one in norms)
    whole = all(len(one.weight) == attention.head_dim for one in norms) if alike else False
    if len(norms) != 2 or not whole or any(one.offset for one in norms):
        return None
    return {"norm_epsilon": first.eps, "norm_rounding": first.rounding}
