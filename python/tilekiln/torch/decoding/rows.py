# SPDX-License-Identifier: MIT
"""RMS norms of rows, before a product or in it, and modules that nothing watches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...api.operators import _call


def is_plain(module: Any) -> bool:
    """Is there nothing between a module's call and the forward of its class?"""
    return not is_watched(module) and "forward" not in module.__dict__


def is_watched(module: Any) -> bool:
    """Has it hooks?"""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _factors(module: Any, how: dict[str, Any]) -> Tensor:
    """Factors of a norm: its weight, or 1 + that."""
    weight: Tensor = module._parameters["weight"]
    return weight + how["offset"] if how["offset"] else weight


def normed(x: Tensor, module: Any, how: dict[str, Any]) -> Tensor:
    made: Tensor = _call("rmsnorm2d", (x, _factors(module, how)), {key: how[key] for key in ("epsilon", "rounding")})
    return made


def norm_options(module: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Options of a product by which it normalises its rows so."""
    return {"a_norm": _factors(module, how), "norm_epsilon": how["epsilon"], "norm_rounding": how["rounding"]}
