# SPDX-License-Identifier: MIT
"""flash_attn.layers.rotary: rotary position embedding, differentiable, in place too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import _absent
from ..._modules import FaceArgumentError
from ..ops.triton.rotary import apply_rotary

__all__ = [
    "ApplyRotaryEmb",
    "ApplyRotaryEmbKV_",
    "ApplyRotaryEmbQKV_",
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]

__getattr__ = _absent.sentences(__name__)


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """x turned by a right angle: of each pair (a, b) it makes (-b, a). Pairs as apply_rotary_emb says."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, -1)
    turned = -second, first
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """apply_rotary_emb in x's own dtype and from position 0, as a yardstick.

    x (batch, seqlen, nheads, headdim). cos, sin: (seqlen, rotary_dim / 2) or (batch, seqlen, rotary_dim / 2).
    """
    dim = 2 * cos.shape[-1]
    cosine, sine = (t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1) for t in (cos, sin))
    rotary, rest = x[..., :dim], x[..., dim:]
    turned = rotary * cosine[..., None, :] + rotate_half(rotary, interleaved) * sine[..., None, :]
    return torch.cat([turned, rest], -1)


class _InPlace(torch.autograd.Function):
    """turn(x, conjugate) writes to x. Autograd's own rules forbid that for a leaf and for one of unbind's results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Callable[[Tensor, bool], None]) -> Tensor:
        ctx.turn = turn
        # A node that has saved x notices by x's version. One that has saved a view cannot: the other results of an
        # unbind share its version, and would not be usable any more.
        turn(x.detach() if x._base is None else x.data, False)
        return x

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        dx = dout.clone()
        ctx.turn(dx, True)
        return dx, None


def _in_place(x: Tensor, turn: Callable[[Tensor, bool], None]) -> Tensor:
    """x after turn(x, False), differentiable."""
    if torch.is_grad_enabled() and x.requires_grad:
        turned: Tensor = _InPlace.apply(x, turn)
        return turned
    turn(x, False)
    return x


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotate the first rotary_dim elements of each head by the angle of its position; the others stay. Differentiable.

    x (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens, int32 (batch + 1). cos, sin:
    (positions, rotary_dim / 2), rotary_dim <= headdim. interleaved: pairs (2i, 2i + 1), else (i, i + rotary_dim / 2).
    seqlen_offsets: position of the first token, an int, or integers (batch). max_seqlen: not needed. The computation
    is in fp32, the result of x's dtype. inplace: x is written, and returned, or a view of all of it where x requires
    grad; that x may be a leaf.
    """
    if not inplace or not (x.requires_grad and torch.is_grad_enabled()):
        return apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)

    def turn(tensor: Tensor, conjugate: bool) -> None:
        apply_rotary(tensor, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, True, conjugate)

    return _in_place(x, turn)


apply_rotary_emb_func = apply_rotary_emb
"""The name of apply_rotary_emb in older versions."""


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """apply_rotary_emb, in place, of the queries and keys of qkv, which is returned.

    qkv (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, num_heads_q + 2 num_heads_k, headdim) with num_heads_q.
    cos_k, sin_k: tables of the keys, if they are others; the rest as for apply_rotary_emb.
    """
    if (cos_k is None) != (sin_k is None):
        absent, given = ("cos_k", "sin_k") if cos_k is None else ("sin_k", "cos_k")
        raise FaceArgumentError(f"{absent}: was None, must be given with {given}")
    _check_qkv(qkv, num_heads_q)

    def turn(tensor: Tensor, conjugate: bool) -> None:
        if tensor.dim() == 5:
            q, k, both = tensor[:, :, 0], tensor[:, :, 1], tensor[:, :, :2]
            together = both.flatten(2, 3) if both.stride(2) == both.shape[3] * both.stride(3) else None
        else:
            assert num_heads_q is not None
            last = (num_heads_q + tensor.shape[2]) // 2
            q, k, together = tensor[:, :, :num_heads_q], tensor[:, :, num_heads_q:last], tensor[:, :, :last]
        if cos_k is None and together is not None:
            apply_rotary(together, cos, sin, seqlen_offsets, None, None, interleaved, True, conjugate)
            return
        for part, cosine, sine in (
            (q, cos, sin),
            (k, cos if cos_k is None else cos_k, sin if sin_k is None else sin_k),
        ):
            apply_rotary(part, cosine, sine, seqlen_offsets, None, None, interleaved, True, conjugate)

    return _in_place(qkv, turn)


def _check_qkv(qkv: Tensor, num_heads_q: int | None) -> None:
    shape = tuple(qkv.shape)
    if qkv.dim() == 5 and shape[2] == 3:
        return
    if qkv.dim() != 4:
        raise FaceArgumentError(
            f"qkv: was of shape {shape}, must be (batch, seqlen, 3, nheads, headdim), "
            "or (batch, seqlen, num_heads_q + 2 num_heads_k, headdim) with num_heads_q"
        )
    if num_heads_q is None:
        raise FaceArgumentError("num_heads_q: was None, must be given with a qkv of 4 dimensions")
    if not 0 < num_heads_q < shape[2] or (shape[2] - num_heads_q) % 2:
        raise FaceArgumentError(
            f"num_heads_q: was {num_heads_q}, must be the {shape[2]} heads of qkv less those of k and v, an even number"
        )


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """apply_rotary_emb, in place, of the keys of kv (batch, seqlen, 2, nheads, headdim), which is returned."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise FaceArgumentError(f"kv: was of shape {tuple(kv.shape)}, must be (batch, seqlen, 2, nheads, headdim)")

    def turn(tensor: Tensor, conjugate: bool) -> None:
        apply_rotary(tensor[:, :, 0], cos, sin, seqlen_offsets, None, None, interleaved, True, conjugate)

    return _in_place(kv, turn)


class RotaryEmbedding(torch.nn.Module):
    """Rotary position embedding (RoFormer, https://arxiv.org/abs/2104.09864) with its tables, in place.

    dim: the rotary_dim; base: of the frequencies base^(-2i / dim). interleaved: as for apply_rotary_emb.
    scale_base: None, or that of XPos (https://arxiv.org/abs/2212.10554), which scales queries by ((2i + 0.4 dim) /
    (1.4 dim))^((position - positions / 2) / scale_base) and keys by its inverse. device: of the frequencies, the CPU.
    """

    inv_freq: Tensor
    scale: Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None if scale_base is None else self._compute_scale(device), persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None
        self._cos_k_cached: Tensor | None = None
        self._sin_k_cached: Tensor | None = None

    def _even(self, device: torch.device | str | None) -> Tensor:
        return torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)

    def _compute_inv_freq(self, device: torch.device | str | None = None) -> Tensor:
        return self.base ** -(self._even(device) / self.dim)

    def _compute_scale(self, device: torch.device | str | None = None) -> Tensor:
        return (self._even(device) + 0.4 * self.dim) / (1.4 * self.dim)

    def _update_cos_sin_cache(
        self, seqlen: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Make the tables anew, of seqlen positions, if they are shorter, of another dtype or of inference mode.

        Subclasses of Transformers call this and read the tables. Angles are fp32, also in a model cast to bf16.
        """
        cached = self._cos_cached
        dtype = torch.float32 if dtype is None else dtype
        serves = cached is not None and cached.dtype == dtype and not (self.training and cached.is_inference())
        if serves and seqlen <= self._seq_len_cached:
            return
        self._seq_len_cached = seqlen
        exact = self.inv_freq.dtype == torch.float32
        position = torch.arange(seqlen, device=device, dtype=torch.float32)
        angle = torch.outer(position, self.inv_freq if exact else self._compute_inv_freq(device))
        cos, sin = angle.cos(), angle.sin()
        if self.scale_base is None:
            self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)
            return
        scale = self._compute_scale(device) ** ((position - seqlen // 2) / self.scale_base)[:, None]
        self._cos_cached, self._sin_cached = (cos * scale).to(dtype), (sin * scale).to(dtype)
        self._cos_k_cached, self._sin_k_cached = (cos / scale).to(dtype), (sin / scale).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotate queries and keys, in place: qkv, or with kv (q, kv).

        qkv: as for apply_rotary_emb_qkv_; with kv (batch, seqlen, 2, nheads_k, headdim) it is q (batch, seqlen, nheads,
        headdim). seqlen_offset: position of the first token, an int, or integers (batch): max_seqlen then says how many
        positions there are at most.
        """
        if max_seqlen is None and not isinstance(seqlen_offset, int) and self._cos_cached is None:
            raise FaceArgumentError("max_seqlen: was None, must be given with a tensor seqlen_offset at the first call")
        if max_seqlen is not None or isinstance(seqlen_offset, int):
            longest = qkv.shape[1] + seqlen_offset if max_seqlen is None else max_seqlen
            self._update_cos_sin_cache(int(longest), device=qkv.device, dtype=qkv.dtype)
        cos, sin, cos_k, sin_k = self._cos_cached, self._sin_cached, self._cos_k_cached, self._sin_k_cached
        assert cos is not None
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        keys = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
        return q, apply_rotary_emb_kv_(kv, *keys, self.interleaved, seqlen_offset)


class ApplyRotaryEmb:
    """apply_rotary_emb for callers of upstream's autograd function: `ApplyRotaryEmb.apply`."""

    apply = staticmethod(apply_rotary_emb)


class ApplyRotaryEmbQKV_:  # noqa: N801
    """apply_rotary_emb_qkv_ for callers of upstream's autograd function."""

    apply = staticmethod(apply_rotary_emb_qkv_)


class ApplyRotaryEmbKV_:  # noqa: N801
    """apply_rotary_emb_kv_ for callers of upstream's autograd function."""

    apply = staticmethod(apply_rotary_emb_kv_)
