# SPDX-License-Identifier: MIT
"""Norms, gates and rotary embedding of vLLM by row operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.ir.ops import fused_add_rms_norm, rms_norm
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

from ...api.operators import _call

PROVIDER = "tilekiln"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _norm_fits(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Whether the norm of these is rmsnorm2d."""
    if variance_size is not None or weight is None or x.dtype not in FLOATS or weight.dtype != x.dtype:
        return False
    return x.device.type == "cpu" and x.numel() > 0 and x.stride(-1) == 1 and _rows(x) is not None


def _fused_fits(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _norm_fits(x, weight, epsilon, variance_size) and x_residual.is_contiguous() and x.is_contiguous()


def _rows(x: Tensor) -> Tensor | None:
    """x (..., columns) as (rows, columns) of the same memory; None where its strides do not allow it."""
    if x.dim() == 2:
        return x
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return None


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    rows = _rows(x)
    made: Tensor = _call("rmsnorm2d", (rows, weight), {"epsilon": epsilon, "rounding": "transformers"})
    return made.view(x.shape)


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """In place: x becomes the norm, x_residual the sum."""
    rows, sums = x.view(-1, x.shape[-1]), x_residual.view(-1, x.shape[-1])
    given = {"residual": sums, "residual_out": sums, "y": rows, "epsilon": epsilon, "rounding": "transformers"}
    _call("rmsnorm2d", (rows, weight), given)
    return x, x_residual


def _gated(name: str, x: Tensor, **how: Any) -> Tensor:
    half = x.shape[-1] // 2
    rows = x.reshape(-1, x.shape[-1])
    made: Tensor = _call(name, (rows[:, :half], rows[:, half:]), how)
    return made.view(*x.shape[:-1], half)


class _Silu(SiluAndMul):
    def forward_cpu(self, x: Tensor) -> Tensor:
        """silu(x[..., :half]) x[..., half:]."""
        return _gated("silu_and_mul", x)


class _Gelu(GeluAndMul):
    def forward_cpu(self, x: Tensor) -> Tensor:
        """gelu(x[..., :half]) x[..., half:], exact or by tanh."""
        return _gated("gelu_and_mul", x, approximate=self.approximate)


class _Turned:
    """Heads turned in place by the rows of cos_sin_cache that are the tokens' positions."""

    def forward_cpu(self, positions: Tensor, query: Tensor, key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """query, key (tokens, heads * head_size), views of one array or not; both are written."""
        if positions.dim() != 1:
            turned: tuple[Tensor, Tensor | None] = self.forward_native(positions, query, key)  # type: ignore[attr-defined]
            return turned
        tables = self._match_cos_sin_cache_dtype(query)  # type: ignore[attr-defined]
        cos, sin = tables.chunk(2, dim=-1)
        how = {"positions": positions[None], "interleaved": not self.is_neox_style}  # type: ignore[attr-defined]
        for x in (query, key):
            if x is not None:
                heads = x.view(1, x.shape[0], -1, self.head_size)  # type: ignore[attr-defined]
                _call("rotary", (heads, cos, sin), {**how, "y": heads})
        return query, key


class _Rotary(_Turned, RotaryEmbedding):
    pass


class _Llama3Rotary(_Turned, Llama3RotaryEmbedding):
    pass


LAYERS = {SiluAndMul: _Silu, GeluAndMul: _Gelu, RotaryEmbedding: _Rotary, Llama3RotaryEmbedding: _Llama3Rotary}


def register() -> None:
    """Each once in a process: vLLM refuses a second class for one of its own."""
    if PROVIDER not in rms_norm.impls:
        rms_norm.register_impl(PROVIDER, supports_args=_norm_fits)(_rms_norm)
        fused_add_rms_norm.register_impl(PROVIDER, supports_args=_fused_fits, inplace=True)(_fused_add_rms_norm)
    for theirs, ours in LAYERS.items():
        if theirs.__name__ not in op_registry_oot:
            theirs.register_oot(_decorated_op_cls=ours, name=theirs.__name__)
