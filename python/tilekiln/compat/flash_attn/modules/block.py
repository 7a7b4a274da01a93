# SPDX-License-Identifier: MIT
"""flash_attn.modules.block: a layer of a transformer, with the norm and the residual in one call if asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..._modules import FaceArgumentError
from ..ops.triton.layer_norm import RMSNorm, layer_norm_fn
from .mha import MHA
from .mlp import Mlp

__all__ = ["Block", "ParallelBlock"]


class _DropPath(nn.Module):
    """Stochastic depth by sequence: while training a part p of them is 0, the others are 1 / (1 - p) times as large."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def kept(self, x: Tensor) -> Tensor | None:
        """Factor of each sequence of x (batch, ...), (batch, 1, ...); None: all are 1."""
        if not self.training or self.p == 0.0:
            return None
        if self.p >= 1.0:
            return x.new_zeros(len(x), *[1] * (x.dim() - 1))
        return x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - self.p).div_(1 - self.p)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept(x)
        return x if kept is None else x * kept


def _mark(norms: list[nn.Module], sequence_parallel: bool, mark_shared_params: bool) -> None:
    """Tell utils.distributed of the norms' parameters, which every process has."""
    for norm in norms:
        for one in norm.parameters():
            if sequence_parallel:
                one._sequence_parallel = True  # type: ignore[attr-defined]
            if mark_shared_params:
                one._shared_params = True  # type: ignore[attr-defined]


class _Layer(nn.Module):
    """Common to both: mixer, mlp, norm1, and dropout before the residual is added."""

    mixer: Any
    norm1: Any
    fused_dropout_add_ln: bool
    residual_in_fp32: bool

    def _begin(self, dim: int, mixer_cls: Any, mlp_cls: Any, norm_cls: Any, dropout_cls: Any, p: float) -> None:
        self.mixer = (partial(MHA, num_heads=dim // 64) if mixer_cls is None else mixer_cls)(dim)
        self.dropout1, self.norm1 = dropout_cls(p), norm_cls(dim)
        self.mlp = (partial(Mlp, hidden_features=4 * dim) if mlp_cls is None else mlp_cls)(dim)
        if self.fused_dropout_add_ln:
            if not isinstance(self.norm1, (nn.LayerNorm, RMSNorm)):
                raise FaceArgumentError(
                    f"norm_cls: made a {type(self.norm1).__name__}, must make a LayerNorm or an RMSNorm of "
                    "ops.triton.layer_norm with fused_dropout_add_ln"
                )
            if not isinstance(self.dropout1, nn.Dropout):
                made = type(self.dropout1).__name__
                raise FaceArgumentError(
                    f"dropout_cls: made a {made}, must make an nn.Dropout with fused_dropout_add_ln"
                )

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """The mixer's."""
        return self.mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


class Block(_Layer):
    """A layer of mixer, attention say, and mlp; nn.Identity for mlp: none.

    prenorm: dropout, add, norm, then mixer or mlp, (hidden_states, residual) out; else mixer or mlp, then dropout,
    add, norm, hidden_states out. mixer_cls, mlp_cls, norm_cls: called with dim; dropout_cls: with resid_dropout1 and 2.
    drop_path1, 2: parts of the sequences that stochastic depth leaves out. fused_dropout_add_ln: dropout, add and norm
    are one call of layer_norm_fn. return_residual: mixer and mlp return what they took beside their result (postnorm).
    residual_in_fp32: the residual is kept in fp32 (prenorm). sequence_parallel, mark_shared_params: mark the
    norms' parameters for utils.distributed.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[..., nn.Module] | None = None,
        mlp_cls: Callable[..., nn.Module] | None = None,
        norm_cls: Callable[..., nn.Module] = nn.LayerNorm,
        dropout_cls: Callable[..., nn.Module] = nn.Dropout,
        prenorm: bool = True,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        drop_path1: float = 0.0,
        drop_path2: float = 0.0,
        fused_dropout_add_ln: bool = False,
        return_residual: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        if residual_in_fp32 and not prenorm:
            raise FaceArgumentError("residual_in_fp32: was True, must be False without prenorm")
        self.prenorm, self.fused_dropout_add_ln = prenorm, fused_dropout_add_ln
        self.return_residual, self.residual_in_fp32 = return_residual, residual_in_fp32
        self._begin(dim, mixer_cls, mlp_cls, norm_cls, dropout_cls, resid_dropout1)
        self.drop_path1 = _DropPath(drop_path1)
        if not isinstance(self.mlp, nn.Identity):
            self.dropout2, self.drop_path2, self.norm2 = (
                dropout_cls(resid_dropout2),
                _DropPath(drop_path2),
                norm_cls(dim),
            )
        norms = [self.norm1, *([self.norm2] if hasattr(self, "norm2") else [])]
        _mark(norms, sequence_parallel, mark_shared_params)

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        mixer_subset: Any = None,
        mixer_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """hidden_states (batch, seqlen, dim) or what the mixer takes; residual alike, with prenorm alone.

        mixer_subset: of a mixer that is cross attention, the tokens that ask; the others end here.
        """
        given = dict(mixer_kwargs or {})
        first, second = (self.norm1, self.dropout1, self.drop_path1), None
        if not isinstance(self.mlp, nn.Identity):
            second = self.norm2, self.dropout2, self.drop_path2
        if not self.prenorm:
            if residual is not None:
                raise FaceArgumentError("residual: was given, must be None without prenorm")
            for part, more, parts in ((self.mixer, given, first), (self.mlp, {}, second)):
                if parts is not None:
                    made = part(hidden_states, **more)
                    made, before = made if self.return_residual else (made, hidden_states)
                    hidden_states, _ = self._added(made, before, *parts)
            return hidden_states
        hidden_states, residual = self._added(hidden_states, residual, *first)
        if mixer_subset is not None:
            given["mixer_subset"] = mixer_subset
            residual = residual[:, mixer_subset]
        hidden_states = self.mixer(hidden_states, **given)
        if second is not None:
            hidden_states, residual = self._added(hidden_states, residual, *second)
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual

    def _added(
        self, x: Tensor, residual: Tensor | None, norm: Any, dropout: Any, path: _DropPath
    ) -> tuple[Tensor, Any]:
        """(the norm of dropout(x) + residual, that sum)."""
        if self.fused_dropout_add_ln:
            kept = path.kept(x)
            made: tuple[Tensor, Tensor] = layer_norm_fn(
                x, norm.weight, norm.bias, residual=residual, eps=norm.eps,
                dropout_p=dropout.p if self.training else 0.0,
                rowscale=None if kept is None else kept[..., 0].expand(x.shape[:-1]),
                prenorm=True, residual_in_fp32=self.residual_in_fp32, is_rms_norm=isinstance(norm, RMSNorm),
            )  # fmt: skip
            return made
        total = path(dropout(x))
        total = total if residual is None else total + residual
        return norm(total.to(norm.weight.dtype)), total.float() if self.residual_in_fp32 else total


class ParallelBlock(_Layer):
    """A layer whose mixer and mlp take the same sum, side by side, as those of GPT-J, GPT-NeoX and PaLM.

    Dropout, add, norm, then both. tied_norm: norm1 is the mlp's too, else it has norm2. The others as of Block.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: Callable[..., nn.Module] | None = None,
        mlp_cls: Callable[..., nn.Module] | None = None,
        norm_cls: Callable[..., nn.Module] = nn.LayerNorm,
        dropout_cls: Callable[..., nn.Module] = nn.Dropout,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        tied_norm: bool = False,
        fused_dropout_add_ln: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        self.tied_norm, self.fused_dropout_add_ln = tied_norm, fused_dropout_add_ln
        self.residual_in_fp32 = residual_in_fp32
        self._begin(dim, mixer_cls, mlp_cls, norm_cls, dropout_cls, resid_dropout1)
        self.dropout2 = dropout_cls(resid_dropout2)
        if not tied_norm:
            self.norm2: Any = norm_cls(dim)
        _mark([self.norm1, *([] if tied_norm else [self.norm2])], sequence_parallel, mark_shared_params)

    def forward(
        self,
        hidden_states1: Tensor,
        hidden_states2: Tensor | None = None,
        residual: Tensor | None = None,
        mixer_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(the mixer's result, the mlp's, the sum before both) of the layer's before; the first layer has one alone."""
        if self.fused_dropout_add_ln:
            weight, bias = (None, None) if self.tied_norm else (self.norm2.weight, self.norm2.bias)
            first, *others, residual = layer_norm_fn(
                hidden_states1, self.norm1.weight, self.norm1.bias, residual=residual, x1=hidden_states2,
                weight1=weight, bias1=bias, eps=self.norm1.eps, dropout_p=self.dropout1.p if self.training else 0.0,
                prenorm=True, residual_in_fp32=self.residual_in_fp32, is_rms_norm=isinstance(self.norm1, RMSNorm),
            )  # fmt: skip
            second = others[0] if others else first
        else:
            total = self.dropout1(hidden_states1)
            if hidden_states2 is not None:
                total = total + self.dropout2(hidden_states2)
            total = total if residual is None else residual + total
            first = self.norm1(total.to(self.norm1.weight.dtype))
            second = first if self.tied_norm else self.norm2(total.to(self.norm2.weight.dtype))
            residual = total.float() if self.residual_in_fp32 else total
        return self.mixer(first, **(mixer_kwargs or {})), self.mlp(second), residual
