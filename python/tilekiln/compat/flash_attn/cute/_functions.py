# SPDX-License-Identifier: MIT
"""score_mod, mask_mod and block_sparse_tensors of FlashAttention 4, by functions that are compiled just in time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from tilekiln.api.functions import call
from tilekiln.api.functions import expression as ex
from tilekiln.torch.functions.flex import tiled
from tilekiln.torch.functions.trace import traced

from ..._modules import FaceArgumentError

TILE = 128, 128


def attend(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None, causal: bool, window: tuple[int, int],
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, aux: list[Tensor] | None, sparse: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(out, lse) of functions score_mod(score, b, h, q, k, seqlen_info, aux_tensors) and mask_mod(b, h, q, k, ...).

    With mask_mod, causal and window are not looked at, as in upstream.
    """
    lengths = SimpleNamespace(seqlen_q=q.shape[1], seqlen_k=k.shape[1], offset_q=0, offset_k=0)
    score = mask = None
    if score_mod is not None:
        score = call.ScoreFunction.of(*traced("score_mod", _plain(score_mod, lengths, aux), call.NAMES))
    if sparse is not None:
        if sparse.cu_total_m_blocks is not None:
            raise FaceArgumentError("block_sparse_tensors: had cu_total_m_blocks, must have None: no packed sequences")
        plain = (lambda b, h, q, k: True) if mask_mod is None else _plain(mask_mod, lengths, aux)
        some = sparse.mask_block_cnt, sparse.mask_block_idx
        whole = sparse.full_block_cnt, sparse.full_block_idx
        node = traced("mask_mod", plain, call.NAMES[:-1])
        mask = tiled(sparse.block_size or TILE, some, whole, *node)
    elif mask_mod is not None:
        node = traced("mask_mod", _plain(mask_mod, lengths, aux), call.NAMES[:-1])
        if node[0].kind != "truth":
            raise FaceArgumentError("mask_mod: gave a number, must give a comparison, as in k <= q")
        mask = call.MaskFunction.of(*node)
    arguments: dict[str, Any] = {} if softmax_scale is None else {"softmax_scale": softmax_scale}
    if mask_mod is None:
        arguments |= {"causal": causal, "window": window}
    if score is None and mask is None:
        score = call.ScoreFunction.of(ex.name("score"), {}, {})
    made: tuple[Tensor, Tensor] = call.function_attention(q, k, v, score=score, mask=mask, return_lse=True, **arguments)
    return made


def _plain(function: Callable[..., Any], lengths: Any, aux: list[Tensor] | None) -> Callable[..., Any]:
    def plain(*places: Any) -> Any:
        return function(*places, lengths, aux)

    plain.__name__ = getattr(function, "__name__", type(function).__name__)
    return plain
