# SPDX-License-Identifier: MIT
"""Arguments of FlashAttention 3 that change no result, or that only some calls take, checked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._modules import FaceArgumentError
from ..flash_attn._arguments import two_sides
from ..flash_attn._sequences import Window

MOST_SPLITS = 128
SCALE_BLOCK = 128
"""Rows that share a scale in a call of fmha_fwd whose scales are not one number each."""


def window_of(window_size: Any) -> Window:
    """window_size, where any negative side is unbounded."""
    left, right = two_sides(window_size)
    return max(left, -1), max(right, -1)


def check_hints(num_splits: int, pack_gqa: Any, sm_margin: int, qv: Tensor | None) -> None:
    """The arguments by which a caller tunes GPUs; which keys go together is chosen here by the kernels themselves."""
    if not 0 <= num_splits <= MOST_SPLITS:
        raise FaceArgumentError(f"num_splits: was {num_splits}, must be from 0 (chosen here) to {MOST_SPLITS}")
    if pack_gqa not in (None, True, False):
        raise FaceArgumentError(f"pack_gqa: was {pack_gqa!r}, must be None, True or False")
    if sm_margin < 0:
        raise FaceArgumentError(f"sm_margin: was {sm_margin}, must be 0 or more")
    if qv is not None:
        raise FaceArgumentError(
            "qv: was given, must be None: for latent attention take tilekiln.fmha_mla_decode, or give "
            "q = torch.cat((q, qv), -1) and k = torch.cat((k, v), -1), whose head dim is at most 512"
        )


def check_chunk(attention_chunk: int) -> None:
    if attention_chunk < 0:
        raise FaceArgumentError(f"attention_chunk: was {attention_chunk}, must be 0 (off) or more")


def check_metadata(scheduler_metadata: Any) -> None:
    """Result of get_scheduler_metadata; kernels choose by the same sizes, so a call with it is a call without."""
    if scheduler_metadata is None:
        return
    if not isinstance(scheduler_metadata, Tensor) or scheduler_metadata.dtype is not torch.int32:
        raise FaceArgumentError(
            f"scheduler_metadata: was {getattr(scheduler_metadata, 'dtype', type(scheduler_metadata))}, must be int32, "
            "what get_scheduler_metadata returns, or None"
        )


Descales = tuple[Tensor | None, Tensor | None, Tensor | None]
"""q_descale, k_descale and v_descale: fp32 (batch, nheads_k), by which fp8 tensors are multiplied; None: 1."""


def _one(scale: Tensor | None) -> bool:
    """Is it one number, spread over sequences and heads or not?"""
    return scale is None or scale.numel() == 1 or not any(scale.stride())


def one_of_each(q: Tensor, descales: Descales) -> dict[str, Tensor] | None:
    """The three scales as tensors of one element; None where one of them has several."""
    if not all(map(_one, descales)):
        return None
    names = ("q_descale", "k_descale", "v_descale")
    ones = torch.ones(1, device=q.device)
    return {
        name: ones if one is None else one.as_strided((1,), (1,)).float()
        for name, one in zip(names, descales, strict=True)
    }


def scales(q: Tensor, k: Tensor, batch: int, descales: Descales, blocks_q: Any, blocks_k: Any) -> dict[str, Tensor]:
    """The scales of a call of fmha_fwd; {} for tensors that are no fp8. blocks: how many there are of each sequence.

    blocks: an int, the same of every sequence, or of packed ones int64 (batch).
    """
    if q.dtype is not torch.float8_e4m3fn:
        for name, one in zip(("q_descale", "k_descale", "v_descale"), descales, strict=True):
            if one is not None:
                raise FaceArgumentError(f"{name}: was given, must be None: q is {q.dtype}, and fp8 alone is scaled")
        return {}
    alike = one_of_each(q, descales)
    if alike is not None:
        return alike
    nheads_k = k.shape[-2]
    made = {}
    for name, one, blocks in zip(
        ("q_descale", "k_descale", "v_descale"), descales, (blocks_q, blocks_k, blocks_k), strict=True
    ):
        given = torch.ones(batch, nheads_k, device=q.device) if one is None else one.float()
        if given.shape != (batch, nheads_k):
            raise FaceArgumentError(
                f"{name}: shape was {tuple(given.shape)}, must be {(batch, nheads_k)}: (batch, nheads_k)"
            )
        heads = given.repeat_interleave(q.shape[-2] // nheads_k, 1) if name == "q_descale" else given
        if isinstance(blocks, int):
            made[name] = heads[..., None].expand(*heads.shape, blocks).contiguous()
        else:
            made[name] = heads.repeat_interleave(blocks, 0).mT.contiguous()
    if not isinstance(blocks_q, int):
        for name, blocks in (("block_scale_seqstart_q", blocks_q), ("block_scale_seqstart_k", blocks_k)):
            made[name] = torch.nn.functional.pad(blocks.cumsum(0), (1, 0)).to(torch.int32)
    return made


def blocks_of(lengths: Any) -> Any:
    """Blocks of rows that share a scale, of an int or of lengths (batch)."""
    return (lengths + SCALE_BLOCK - 1) // SCALE_BLOCK
