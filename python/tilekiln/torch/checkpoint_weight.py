# SPDX-License-Identifier: MIT
"""Layers of 4 bits as AWQ's and GPTQ's checkpoints have them: qweight, qzeros, scales and g_idx, packed as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..api.quantised_weight import QuantisedWeight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of eight that each half byte of a word of AWQ holds, the lowest first."""
PARTS = "qweight", "qzeros", "scales"


class Ready(NamedTuple):
    """A weight as a packed `Linear` takes it, and the dtype of its layer."""

    weight: QuantisedWeight
    dtype: torch.dtype


def is_checkpoint_layer(module: Any) -> bool:
    """Has it packed numbers, packed zero points and factors?"""
    parts: list[Any] = [getattr(module, name, None) for name in PARTS]
    return all(isinstance(one, Tensor) and one.ndim == 2 for one in parts) and parts[0].dtype == torch.int32


def read(module: Any) -> Ready:
    """The numbers, zero points and factors of a layer. ValueError where it is none of 4 bits in groups along k.

    GPTQ: qweight (k / 8, n), eight numbers of a column in a word; qzeros (groups, n / 8), less 1, but for layers that
    say qzero_format() 2. AWQ: qweight (k, n / 8) and qzeros (groups, n / 8), eight columns in a word, in AWQ_ORDER.
    scales (groups, n) of both. g_idx, if any, is the group of each number along k.
    """
    qweight, qzeros, scales = (getattr(module, name) for name in PARTS)
    if any(one.device.type != "cpu" for one in (qweight, qzeros, scales)):
        raise ValueError(f"is on {qweight.device}, and packed weights are for the CPU")
    groups, n = scales.shape
    of_gptq = qweight.shape[1] == n
    k = qweight.shape[0] * (8 if of_gptq else 1)
    if 8 * qweight.shape[1] != n * (8 if of_gptq else 1) or tuple(qzeros.shape) != (groups, n // 8) or n % 8:
        shapes = ", ".join(f"{name} {tuple(getattr(module, name).shape)}" for name in PARTS)
        raise ValueError(f"has {shapes}: no 4 bits as GPTQ, (k / 8, n), or AWQ, (k, n / 8), lays them out")
    group = -(-k // 32) * 32 if groups == 1 else k // groups
    if groups * group < k or k % groups or group % 32:
        raise ValueError(f"has {groups} groups of {k} numbers, must be groups of a multiple of 32")
    g_idx = getattr(module, "g_idx", None)
    if (
        isinstance(g_idx, Tensor)
        and g_idx.numel()
        and not torch.equal(g_idx.long(), torch.arange(k, device=g_idx.device) // group)
    ):
        raise ValueError("has its rows in the order of activations (desc_act, g_idx), must be in their own")
    if of_gptq:
        values = _halves(qweight.t(), range(8))
        kept = getattr(module, "qzero_format", None)
        zero = _halves(qzeros, range(8)) + (0 if callable(kept) and kept() == 2 else 1)
    else:
        values, zero = _halves(qweight, AWQ_ORDER).t().contiguous(), _halves(qzeros, AWQ_ORDER)
    factors = scales.half()
    if not torch.equal(factors.to(scales.dtype), scales):
        raise ValueError(f"has factors of {scales.dtype} that fp16 does not hold")
    packed = QuantisedWeight.from_uint4(values, factors.t().contiguous(), zero.t().contiguous(), group=group)
    return Ready(packed, scales.dtype if scales.dtype == torch.bfloat16 else torch.float16)


def _halves(words: Tensor, order: Any) -> Tensor:
    """(rows, 8 columns) uint8 of (rows, columns) int32: half byte i of a word is the number order[i] of its eight."""
    made = torch.empty(*words.shape, 8, dtype=torch.uint8, device=words.device)
    for i, at in enumerate(order):
        made[..., at] = (words >> 4 * i & 15).to(torch.uint8)
    return made.flatten(1)
