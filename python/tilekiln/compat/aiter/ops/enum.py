# SPDX-License-Identifier: MIT
"""aiter.ops.enum: numbers of activations and of kinds of quantisation."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ActivationType", "Enum", "MlaVersion", "QuantType"]

Enum = int


class ActivationType(IntEnum):
    """Function of the gate of a feed-forward layer."""

    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2
    Situv2 = 3


class QuantType(IntEnum):
    """Numbers that share a scale."""

    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5
    per_256x128 = 6
    per_1024x128 = 7


class MlaVersion(IntEnum):
    """Layout of a latent cache."""

    V32 = 0
    V40 = 1
