"""flash_attn.ops.triton.rotary: rotary position embedding without autograd's help, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from ...._faces import FaceArgumentError

__all__ = ["apply_rotary"]


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Rotate the first rotary_dim elements of each head by the angle of its position; the others stay.

    x (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens, int32 (batch + 1). cos, sin:
    (positions, rotary_dim / 2), rotary_dim <= headdim. interleaved: pairs (2i, 2i + 1), else (i, i + rotary_dim / 2).
    seqlen_offsets: position of the first token, an int, or integers (batch). max_seqlen: not needed. conjugate: by the
    angle the other way round, which is the backward. The computation is in fp32, the result of x's dtype, a new tensor
    that autograd can differentiate; inplace: x is written and returned, which autograd allows where it allows x.add_().
    """
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise FaceArgumentError(
            f"cos: was for a rotary_dim of {2 * half}, must be at most {x.shape[-1]}, the headdim of x"
        )
    if cos.shape != sin.shape:
        raise FaceArgumentError(f"sin: was of shape {tuple(sin.shape)}, must be that of cos: {tuple(cos.shape)}")
    positions = _positions(x, seqlen_offsets, cu_seqlens)
    if positions.numel() and not torch.compiler.is_compiling() and int(positions.max()) >= len(cos):
        raise FaceArgumentError(f"cos: had {len(cos)} positions, must have {int(positions.max()) + 1}")
    cosine, sine = (table[positions].float()[..., None, :] for table in (cos, sin))
    if conjugate:
        sine = -sine
    rotary = x[..., : 2 * half].float()
    first, second = rotary.unflatten(-1, (half, 2)).unbind(-1) if interleaved else rotary.chunk(2, -1)
    turned = first * cosine - second * sine, first * sine + second * cosine
    rotated = (torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)).to(x.dtype)
    if not inplace:
        return torch.cat([rotated, x[..., 2 * half :]], -1)
    x[..., : 2 * half] = rotated
    return x


def _positions(x: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """int64 (batch or 1, seqlen), or (total) with cu_seqlens."""
    if cu_seqlens is None:
        return torch.arange(x.shape[1]) + (offsets[:, None] if isinstance(offsets, Tensor) else offsets)
    rows = torch.arange(x.shape[0])
    # Rows past the last sequence count as of the last.
    batch = (torch.searchsorted(cu_seqlens, rows, right=True) - 1).clamp(max=cu_seqlens.numel() - 2)
    return rows - cu_seqlens[batch] + (offsets[batch] if isinstance(offsets, Tensor) else offsets)
