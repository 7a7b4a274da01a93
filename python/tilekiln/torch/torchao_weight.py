# SPDX-License-Identifier: MIT
"""Weights that torchao has quantised (`quantize_`), packed with the numbers and factors they have."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..api.quantised_weight import QuantisedWeight
from .packed import Activations, Weights


class Ready(NamedTuple):
    """A weight of torchao as a packed `Linear` takes it."""

    weight: QuantisedWeight
    kind: Weights
    activations: Activations


def read(weight: Any) -> Ready | None:
    """The numbers of a weight of torchao; None for any other. ValueError where they are no symmetric int8 or int4."""
    if not type(weight).__module__.startswith("torchao."):
        return None
    name = type(weight).__name__
    if not all(hasattr(weight, field) for field in ("qdata", "scale", "block_size")):
        raise ValueError(f"has a weight of torchao, {name}, that is not int8 numbers with factors")
    values, scale, block = weight.qdata, weight.scale, weight.block_size
    if values.dtype != torch.int8 or values.shape != weight.shape:
        raise ValueError(f"has a weight of torchao, {name}, whose numbers are {values.dtype} {tuple(values.shape)}")
    zero = getattr(weight, "zero_point", None)
    if zero is not None and bool(zero.any()):
        raise ValueError(f"has a weight of torchao, {name}, with zero points, must be symmetric")
    if any(getattr(weight, field, None) is not None for field in ("act_quant_scale", "act_pre_scale")):
        raise ValueError(f"has a weight of torchao, {name}, with factors of rows that are known beforehand")
    n, k = values.shape
    if block[0] not in (1, n):
        raise ValueError(f"has a weight of torchao, {name}, of which {block[0]} rows share factors, must be 1 or {n}")
    groups = -(-k // block[1])
    factors = scale.float().reshape(-1, groups).expand(n, groups).contiguous()
    bits = 4 if str(getattr(weight, "target_dtype", "")) == "torch.int4" else 8
    group = block[1] if groups > 1 else -(-k // 32) * 32
    packed = QuantisedWeight.from_values(values.contiguous(), factors, bits=bits, group=group)
    rows = getattr(weight, "act_quant_kwargs", None) or getattr(weight, "activation_quantization", None)
    return Ready(packed, "int4" if bits == 4 else "int8", "int8" if rows is not None else None)
