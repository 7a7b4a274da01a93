"""The arguments of attention past q, k and v, for type checkers."""

from __future__ import annotations

from typing import Literal, TypedDict

from ._declared import Array
from ._declared import FmhaBwdArguments as BackwardArguments
from ._declared import FmhaFwdArguments as AttentionArguments
from ._native import Stream

__all__ = ["Array", "AttentionArguments", "BackwardArguments", "DecodeArguments"]


class DecodeArguments(TypedDict, total=False):
    """Everything that `decode` takes by name; `Library.fmha_fwd_splitkv` says what each one is."""

    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sink: Array | None
    q_descale: Array | None
    k_descale: Array | None
    v_descale: Array | None
    out_scale: Array | None
    cache_leftpad: Array | None
    softmax_scale: float | None
    causal: bool
    window: tuple[int, int]
    mask_origin: Literal["bottom_right", "top_left"]
    sink_size: int
    softcap: float
    num_splits: int
    stream: Stream | None
    num_threads: int
    instance: int | str
    return_lse: bool
