# SPDX-License-Identifier: MIT
"""flash_attn's arguments in Tilekiln's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError, NoKernelError
from ...api.operators import _call
from ...torch import calls, operators
from ...torch.watchers import idle
from .._modules import FaceArgumentError, longest


def last_dense(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies of those whose last dimension is not contiguous."""
    for tensor in tensors:
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return tuple(x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous() for x in tensors)
    return tensors


UNBOUNDED = (-1, -1)
"""Default of window_size, by which `plainly` knows it."""


def bare(q: Tensor, k: Tensor, v: Tensor, dimensions: int) -> bool:
    """Is nothing to be done before the facade? Floats that nothing watches; the rest is for the binding to refuse."""
    if type(q) is not Tensor or type(k) is not Tensor or type(v) is not Tensor or q.dim() != dimensions:
        return False
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    return q.dtype in operators.FLOATS and idle()


def plainly(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None, causal: bool, window_size: Any, softcap: float,
    alibi_slopes: Tensor | None, return_lse: bool, given: dict[str, Any], dimensions: int = 4,
    seqlen_k: int | None = None,
) -> Any:  # fmt: skip
    """Attention of tensors that are `bare`, by the facade itself: out, or (out, lse). given: more of its arguments,
    none of them watched.

    None where something watches, and where it refuses: the longer way may take a copy, and has the words of errors.
    seqlen_k: of packed sequences, the longest, which a side of the window must not reach here.
    """
    if not bare(q, k, v, dimensions):
        return None
    if causal:
        given["causal"] = True
    if softmax_scale is not None:
        given["softmax_scale"] = softmax_scale
    if softcap:
        given["softcap"] = softcap
    if return_lse:
        given["return_lse"] = True
    if alibi_slopes is not None:
        if type(alibi_slopes) is not Tensor or alibi_slopes.requires_grad:
            return None
        given["alibi_slopes"] = alibi_slopes
    if window_size is not UNBOUNDED:
        if k.dim() != dimensions:
            return None
        keys = k.shape[1] if seqlen_k is None else seqlen_k
        if not bounded(given, window_size, causal, keys, seqlen_k is not None):
            return None
    try:
        return _call("fmha_fwd", (q, k, v), given)
    except (ArgumentError, NoKernelError, TypeError):
        return None


def bounded(given: dict[str, Any], window_size: Any, causal: bool, keys: int, reaches: bool = False) -> bool:
    """Writes `window` as `mask` does; False leaves it to `mask`, also, with reaches, where a side reaches keys."""
    if type(window_size) is not tuple or len(window_size) != 2:
        return False
    if window_size == UNBOUNDED:
        return True
    left, right = window_size
    if type(left) is not int or type(right) is not int or (reaches and max(left, right) >= keys):
        return False
    given["window"] = (left if 0 <= left < keys else -1, right if 0 <= right < keys and not causal else -1)
    return True


def packed_at(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: Any, max_seqlen_k: Any) -> dict[str, Any]:
    """Arguments that say where packed sequences lie; of a device's also their longest, so that they stay there."""
    if cu_seqlens_q.is_cpu:
        return {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    if type(max_seqlen_q) is not int or type(max_seqlen_k) is not int or max_seqlen_q < 1 or max_seqlen_k < 1:
        most = longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q)
        return {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, **most}
    return {
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }  # fmt: skip


def reads_vectors(tensor: Tensor) -> bool:
    """Do kernels of its device read eight elements of a headdim at once? Those of GPUs do."""
    return not tensor.is_cpu


def in_vectors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Of a GPU, whose kernels read eight elements at once: headdims filled with zeros up to a multiple of 8."""
    return filled(*tensors) if reads_vectors(tensors[0]) else tensors


def filled(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies, headdims a multiple of 8, of those whose headdim is none."""
    if not any(tensor.shape[-1] % 8 for tensor in tensors):
        return tensors
    pad = torch.nn.functional.pad
    return tuple(pad(tensor, (0, -tensor.shape[-1] % 8)) if tensor.shape[-1] % 8 else tensor for tensor in tensors)


def scale_of(softmax_scale: float | None, given: Tensor, q: Tensor) -> float | None:
    """softmax_scale; where q is `given` filled, the one that None stands for, which goes by given's headdim."""
    filled_up = q.shape[-1] != given.shape[-1]
    return float(given.shape[-1] ** -0.5) if softmax_scale is None and filled_up else softmax_scale


def narrowed(out: Tensor, headdim: int) -> Tensor:
    """out without what v was filled with."""
    return out if out.shape[-1] == headdim else out[..., :headdim]


_PACKED = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}
_FORMS = {
    "qkv": ("batch, seqlen, 3, nheads, headdim", "total, 3, nheads, headdim"),
    "q": ("batch, seqlen_q, nheads, headdim", "total_q, nheads, headdim"),
    "kv": ("batch, seqlen_k, 2, nheads_k, headdim", "total_k, 2, nheads_k, headdim"),
    "k": ("batch, seqlen_k, nheads_k, headdim", "total_k, nheads_k, headdim"),
    "v": ("batch, seqlen_k, nheads_k, headdim", "total_k, nheads_k, headdim"),
}
"""The shapes of an argument: alone, and of sequences packed one after another."""


def check_dimensions(packed: tuple[Tensor, ...], varlen: bool) -> None:
    """Raises FaceArgumentError for one of other dimensions. packed: (q, k, v), (q, kv) or (qkv,)."""
    for name, tensor in zip(_PACKED[len(packed)], packed, strict=True):
        form = _FORMS[name][varlen]
        wanted = form.count(",") + 1
        if tensor.ndim != wanted:
            raise FaceArgumentError(f"{name}: had {tensor.ndim} dimensions, must have {wanted}: ({form})")


def two_sides(window_size: Any) -> tuple[int, int]:
    """window_size, two integers or a tensor of them, as two ints."""
    try:
        left, right = window_size
        return int(left), int(right)
    except (TypeError, ValueError, OverflowError) as error:
        raise FaceArgumentError(
            f"window_size: was {window_size!r}, must be (left, right), two integers, of which -1 is unbounded"
        ) from error


Lengths = Callable[[], Tensor | None]
"""Gives the number of keys of each sequence, (batch), when they are asked for."""


def _check_longest(lengths: Tensor | None, max_seqlen_k: int, sides: tuple[int, ...]) -> None:
    if lengths is None or not lengths.is_cpu or not lengths.numel() or not calls.untouched(lengths):
        return
    longest = int(lengths.max())
    for side in sides:
        if max_seqlen_k <= side < longest:
            raise FaceArgumentError(
                f"max_seqlen_k: was {max_seqlen_k}, must be at least {longest}, the keys of the longest sequence: "
                f"window_size has a side of {side}, and sides of max_seqlen_k and more are unbounded"
            )


def mask(causal: bool, window_size: Any, seqlen_k: int, lengths: Lengths | None = None) -> dict[str, Any]:
    """causal and window. window_size: two integers, or a tensor of them; sides of seqlen_k and more are unbounded.

    lengths: where seqlen_k is a caller's max_seqlen_k. One that is too small to keep a side of the window is an error
    where they are on the CPU; those of a device are not read.
    """
    left, right = two_sides(window_size)
    if lengths is not None and max(left, right) >= seqlen_k:
        _check_longest(lengths(), seqlen_k, (left, right)[: 1 if causal else 2])
    return {
        "causal": bool(causal),
        "window": (left if 0 <= left < seqlen_k else -1, right if 0 <= right < seqlen_k and not causal else -1),
    }


def keys_of_sequences(cu_seqlens_k: Tensor, used: Tensor | None, leftpad: Tensor | None) -> dict[str, Tensor]:
    """Rows of k of each sequence: all, or its first `used` ones without the first `leftpad`."""
    if used is None and leftpad is None:
        return {"cu_seqlens_k": cu_seqlens_k}
    starts, lengths = cu_seqlens_k, cu_seqlens_k.diff() if used is None else used
    if leftpad is not None:
        starts = cu_seqlens_k.clone()
        starts[:-1] += leftpad
        lengths = lengths - leftpad
    return {"seqstart_k": starts, "seqlen_k": lengths}
