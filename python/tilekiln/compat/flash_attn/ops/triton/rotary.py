# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton.rotary: rotary embedding by the operator rotary; where no library has it, by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....._core.native import ArgumentError, NoKernelError
from .....api.operators import _call, at_hand_has
from .....torch import calls, operators
from .....torch.watchers import idle
from .... import _absent
from ...._modules import FaceArgumentError

__all__ = ["apply_rotary"]

__getattr__ = _absent.sentences(__name__)


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
    if cu_seqlens is None and type(seqlen_offsets) is int:
        quick = _quickly(x, cos, sin, seqlen_offsets, interleaved, inplace, conjugate)
        if quick is not None:
            return quick
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise FaceArgumentError(
            f"cos: was for a rotary_dim of {2 * half}, must be at most {x.shape[-1]}, the headdim of x"
        )
    if cos.shape != sin.shape:
        raise FaceArgumentError(f"sin: was of shape {tuple(sin.shape)}, must be that of cos: {tuple(cos.shape)}")
    plain = isinstance(seqlen_offsets, int) and cu_seqlens is None  # positions follow from the shape
    positions = None if plain else _positions(x, seqlen_offsets, cu_seqlens)
    _check_positions(x, len(cos), seqlen_offsets, positions)
    recorded = torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad or sin.requires_grad)
    if not (recorded and inplace) and _computes(x, cos, sin):
        if recorded and x.requires_grad:
            made: Tensor = _Rotary.apply(
                x, lambda tensor, back: apply_rotary(
                    tensor, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, False, conjugate != back
                )
            )  # fmt: skip
            return made
        start = seqlen_offsets if plain else 0
        if cos.requires_grad or sin.requires_grad:
            cos, sin = cos.detach(), sin.detach()
        return _computed(x, cos, sin, start, positions, interleaved, conjugate, inplace)
    positions = _positions(x, seqlen_offsets, cu_seqlens) if positions is None else positions
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


def _quickly(
    x: Tensor, cos: Tensor, sin: Tensor, start: int, interleaved: bool, inplace: bool, conjugate: bool
) -> Tensor | None:
    """The operator's call of tensors of the CPU that nothing watches; None where it refuses, whose words are upstream's
    elsewhere, or may.
    """
    if not (idle() and type(x) is type(cos) is type(sin) is Tensor and x.is_cpu and x.dim() == 4 and cos.numel()):
        return None
    if (x.requires_grad or cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return None
    given: dict[str, Any] = {"start": start} if start else {}
    if interleaved:
        given["interleaved"] = True
    if conjugate:
        given["conjugate"] = True
    if inplace:
        given["y"] = x
    try:
        made: Tensor = _call("rotary", (x, cos, sin), given)
    except (ArgumentError, NoKernelError):
        return None
    return made


class _Rotary(torch.autograd.Function):
    """turn(x, False), a new tensor; its backward is turn(dy, True), which is differentiable too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Callable[[Tensor, bool], Tensor]) -> Tensor:
        ctx.turn = turn
        return turn(x, False)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return ctx.turn(dy if dy.stride(-1) == 1 else dy.contiguous(), True), None


def _computes(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Is there a kernel for this call?"""
    return (
        calls.untouched(x, cos, sin)
        and ((x.is_cpu and cos.is_cpu and sin.is_cpu) or x.device == cos.device == sin.device)
        and x.dtype in operators.FLOATS
        and (x.shape[-1] < 2 or x.stride(-1) == 1)
        and cos.shape[-1] > 0
        and at_hand_has("rotary", calls.backend(x))
    )


def _computed(
    x: Tensor, cos: Tensor, sin: Tensor, start: Any, positions: Tensor | None, interleaved: bool, conjugate: bool,
    inplace: bool,
) -> Tensor:  # fmt: skip
    if cos.dtype is not sin.dtype or (cos.dtype is not torch.float32 and cos.dtype is not x.dtype):
        cos, sin = cos.float(), sin.float()
    tables = (cos if cos.stride(-1) == 1 else cos.contiguous()), (sin if sin.stride(-1) == 1 else sin.contiguous())
    heads = x[None] if x.dim() == 3 else x
    # A flag that is off is the operator's default: reading one takes a tenth of a microsecond.
    given: dict[str, Any] = {"start": start} if start else {}
    if interleaved:
        given["interleaved"] = True
    if conjugate:
        given["conjugate"] = True
    if positions is not None:
        given["positions"] = positions.reshape(-1, heads.shape[1]).expand(heads.shape[:2]).contiguous()
    if inplace:
        given["y"] = heads
    made: Tensor = _call("rotary", (heads, *tables), given)
    if inplace:
        return x
    return made[0] if x.dim() == 3 else made


def _check_positions(x: Tensor, there: int, start: int | Tensor, positions: Tensor | None) -> None:
    if torch.compiler.is_compiling():
        return
    if positions is None:
        assert isinstance(start, int)
        least, most = start, start + x.shape[1] - 1
        if not x.shape[1]:
            return
    elif positions.numel():
        least, most = (int(one) for one in positions.aminmax())
    else:
        return
    if most >= there:
        raise FaceArgumentError(f"cos: had {there} positions, must have {most + 1}")
    if least < 0:
        raise FaceArgumentError(f"seqlen_offsets: made a position of {least}, must make none below 0")


def _positions(x: Tensor, offsets: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """int64 (batch or 1, seqlen), or (total) with cu_seqlens."""
    if cu_seqlens is None:
        return torch.arange(x.shape[1], device=x.device) + (
            offsets[:, None] if isinstance(offsets, Tensor) else offsets
        )
    rows = torch.arange(x.shape[0], device=x.device)
    # Rows past the last sequence count as of the last.
    batch = (torch.searchsorted(cu_seqlens, rows, right=True) - 1).clamp(max=cu_seqlens.numel() - 2)
    return rows - cu_seqlens[batch] + (offsets[batch] if isinstance(offsets, Tensor) else offsets)
