# SPDX-License-Identifier: MIT
"""torch's scaled_dot_product_attention over Tilekiln's kernels: its shapes, masks and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilekiln._core.dropout import unbiased
from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api.operators import _call

from . import calls, derivatives, native, operators, recorded
from .watchers import TYPES

NUMBERS = (float, int)
"""Types of dropout_p that the direct ways look at."""
_records: Callable[[], bool] = torch.is_grad_enabled
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention with Tilekiln's kernels.

    query (..., heads, seqlen_q, hdim), key and value (..., heads_kv, seqlen_k, hdim), of at least 2 dimensions, all
    fp32, fp16 or bf16; leading dimensions broadcast. attn_mask: bool (True: takes part) or floating (added to the
    scores), of the dtype of query or fp32; broadcast to (..., heads, seqlen_q, seqlen_k). Terms in fp32 that the dtype
    of query would round are added in fp32 arithmetic on the CPU; a GPU rounds them. is_causal: row i sees keys 0 to i
    (aligned top left); with attn_mask both hold. dropout_p in [0, 1], from torch's default generator, not in the same
    bits as torch's own. scale: None is 1 / sqrt(hdim). enable_gqa: key and value may have fewer heads, a divisor. A row
    that sees no key is 0, and so is its gradient, as torch has it.

    Returns (..., heads, seqlen_q, hdim of value). Few queries are split-KV's, as in `tilekiln.attention`.
    Differentiable once, in attn_mask too. Raises RuntimeError and TypeError where torch does, NoKernelError when no
    available library has the kernel: `use` falls back then.
    """
    made = served(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, new=True)
    if made is not None:
        return made
    return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def served(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    new: bool = False,
) -> Tensor | None:
    """`sdpa` by kernels that are called without Python, of calls like which there were some; None where it is another.

    new: calls of a new kind are looked up too.
    """
    if (
        (
            attn_mask is None
            or (type(attn_mask) is Tensor and not attn_mask.requires_grad and _lies_as_bias(attn_mask, query, key))
        )
        and type(dropout_p) in NUMBERS
        and not dropout_p
        and type(enable_gqa) is bool
        and (
            type(query) is type(key) is type(value) is Tensor
            or (type(query) in TYPES and type(key) in TYPES and type(value) in TYPES)
        )
        and (query.is_cpu or query.is_cuda)
        and not isinstance(scale, Tensor)
        and forward_ad._current_level < 0
        and not _profiling()
    ):
        learns = _records() and (query.requires_grad or key.requires_grad or value.requires_grad)
        kernel = recorded.sdpa if learns else native.attention
        try:
            made: Tensor | None = (
                kernel(query, key, value, is_causal, scale, enable_gqa)
                if attn_mask is None
                else kernel(query, key, value, is_causal, scale, enable_gqa, attn_mask)
            )
            if made is None and new:
                made = recorded.sdpa_once_taught(kernel, query, key, value, is_causal, scale, enable_gqa, attn_mask)
            return made
        except (RuntimeError, TypeError, IndexError, AttributeError):
            pass  # said by `_sdpa`
    return None


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`sdpa` by way of Python."""
    if forward_ad._current_level >= 0:
        operators.check_tangents(query, key, value, attn_mask)
    try:
        if (
            type(dropout_p) in NUMBERS
            and not dropout_p
            and type(enable_gqa) is bool
            and query.dim() == 4
            and (query.shape[1] == key.shape[1] or enable_gqa)
            and calls.untouched(query, key, value, attn_mask)
            and (attn_mask is None or _lies_as_bias(attn_mask, query, key))
            and not torch.is_autocast_enabled("cuda" if query.is_cuda else "cpu")
        ):
            if attn_mask is not None:
                return _biased(query, key, value, attn_mask, is_causal, scale)
            arguments: dict[str, Any] = {"layout": "bhsd"}
            if is_causal:
                arguments["causal"], arguments["mask_origin"] = True, "top_left"
            if scale is not None:
                arguments["softmax_scale"] = scale
            keeps_order = query.stride(1) < query.stride(2) and query.shape[-1] == value.shape[-1]
            made: Tensor
            if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
                made = derivatives.record(query, key, value, arguments, keeps_order)
            else:
                if keeps_order:
                    arguments["out"] = torch.empty_like(query)
                made = _call("fmha_fwd", (query, key, value), arguments)
            return made
    except (ArgumentError, AttributeError, TypeError):
        pass  # said below in torch's words, or made right
    return _general(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _lies_as_bias(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether a kernel takes the mask as it is: (1 | batch, 1 | heads, seqlen_q, seqlen_k) of query's dtype."""
    shape = mask.shape
    return (
        mask.dtype == query.dtype
        and len(shape) == 4
        and shape[0] in (1, query.shape[0])
        and shape[1] in (1, query.shape[1])
        and shape[2] == query.shape[2]
        and shape[3] == key.shape[2]
        and mask.stride(3) == 1
    )


def _biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    """Attention with such a mask; results lie as q does."""
    inner = q.stride(1) < q.stride(2)
    if inner:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    arguments: dict[str, Any] = {"bias": bias, "layout": "bshd" if inner else "bhsd"}
    if is_causal:
        arguments["causal"], arguments["mask_origin"] = True, "top_left"
    if scale is not None:
        arguments["softmax_scale"] = scale
    made: Tensor
    if torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v, bias)):
        made = calls.watched(q, k, v, arguments, None, False)[0]
    else:
        made = _call("fmha_fwd", (q, k, v), arguments)
    return made.transpose(1, 2) if inner else made


sdpa._torchdynamo_inline = _sdpa  # type: ignore[attr-defined]  # what is traced in place of it
served._torchdynamo_inline = lambda *_, **__: None  # type: ignore[attr-defined]


def _general(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    _check_tensors(query, key, value)
    if torch.is_autocast_enabled("cuda" if query.is_cuda else "cpu"):
        query, key, value = calls.autocast(query, key, value)
    _check(query, key, value, attn_mask, dropout_p, scale, enable_gqa)
    if attn_mask is not None and not may_round(attn_mask, query.dtype):  # fp32 arithmetic, as torch has it
        q, k, v = query.float(), key.float(), value.float()
        return _general(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa).to(query.dtype)
    shape = _broadcast("batch dimensions", query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q, k, v = (_four(x, shape) for x in (query, key, value))
    q, k, v = (x if x.stride(-1) == 1 or x.shape[-1] < 2 else x.contiguous() for x in _heads(q, k, v, enable_gqa))
    bias = None if attn_mask is None else additive(attn_mask, shape, q, k)
    if dropout_p == 1.0:  # nothing is kept; a call, for the shape and the zero gradients
        return sdpa(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa) * 0
    inner = q.stride(1) < q.stride(2)
    if inner:  # heads inside tokens, as projections make them: results likewise, as torch's own
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    try:
        out: Tensor = calls.forward(
            q,
            k,
            v,
            bias=bias,
            softmax_scale=scale,
            causal=bool(is_causal),
            mask_origin="top_left",
            dropout_p=unbiased(dropout_p),
            layout="bshd" if inner else "bhsd",
            return_lse=False,
        )[0]
    except ArgumentError as refusal:  # right for torch, and beyond the kernels
        raise NoKernelError(str(refusal)) from refusal
    if inner:
        out = out.transpose(1, 2)
    dims = max(query.dim(), key.dim(), value.dim())
    if dims > 4:
        out = out.unflatten(0, shape)
    return out if dims >= 4 else out[0] if dims == 3 else out[0, 0]


def _check_tensors(query: Any, key: Any, value: Any) -> None:
    for place, (name, tensor) in enumerate((("query", query), ("key", key), ("value", value)), 1):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"scaled_dot_product_attention(): argument '{name}' (position {place}) must be Tensor, "
                f"not {type(tensor).__name__}"
            )


def may_round(mask: Tensor, dtype: torch.dtype) -> bool:
    """May the terms of a mask be rounded to a dtype? On the CPU those that keep their values; traced ones are unknown.

    A GPU has no kernels of fp32, and its masks are not read: theirs may.
    """
    if mask.dtype in (torch.bool, dtype) or not mask.is_cpu:
        return True
    if not calls.untouched(mask):
        return False
    part = _unexpanded(mask.detach())
    return torch.equal(part.to(dtype).to(part.dtype), part)


def _unexpanded(x: Tensor) -> Tensor:
    """The part of a tensor that `expand` has repeated: length 1 along those dimensions."""
    repeated = [n for n in range(x.dim()) if x.stride(n) == 0 and x.shape[n] > 1]
    for n in repeated:
        x = x.narrow(n, 0, 1)
    return x


def _check(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, scale: float | None,
    enable_gqa: bool,
) -> None:  # fmt: skip
    if type(enable_gqa) is not bool:
        raise TypeError(
            f"scaled_dot_product_attention(): argument 'enable_gqa' must be bool, not {type(enable_gqa).__name__}"
        )
    if not hasattr(dropout_p, "__float__"):
        raise TypeError(
            f"scaled_dot_product_attention(): argument 'dropout_p' must be float, not {type(dropout_p).__name__}"
        )
    if isinstance(scale, Tensor):
        raise TypeError(
            f"scaled_dot_product_attention(): argument 'scale' must be float, not {type(scale).__name__}: it has no "
            "gradient; multiply query by it"
        )
    if attn_mask is not None and not isinstance(attn_mask, Tensor):
        raise TypeError(
            "scaled_dot_product_attention(): argument 'attn_mask' (position 4) must be Tensor, "
            f"not {type(attn_mask).__name__}"
        )
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if query.dtype not in operators.FLOATS:
        raise NoKernelError(f"query: dtype was {query.dtype}, must be torch.float32, torch.float16 or torch.bfloat16")
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(
            f"Expected query and key to have the same last dimension, but got {query.shape[-1]} and {key.shape[-1]}."
        )
    if key.shape[-2] != value.shape[-2]:
        raise RuntimeError(
            f"Expected key and value to have the same sequence length, but got {key.shape[-2]} and {value.shape[-2]}."
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{attn_mask.dtype} and  query.dtype: {query.dtype} instead."
        )


def _broadcast(what: str, *shapes: Any) -> tuple[int, ...]:
    if all(shape == shapes[0] for shape in shapes):  # 20 us less than torch's own, which is Python
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        listed = ", ".join(str(tuple(shape)) for shape in shapes)
        raise RuntimeError(f"Expected {what} that broadcast, but got {listed}.") from error


def _four(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(batch, heads, seqlen, hdim), leading dimensions broadcast to `batch` and made one."""
    if x.dim() == 2:
        x = x[None]
    if x.dim() == 3 and not batch:
        return x[None]
    if tuple(x.shape[:-3]) != batch:
        x = x.expand(*batch, *x.shape[-3:])
    return x if len(batch) == 1 else x.flatten(0, len(batch) - 1)


def _heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Heads that the kernels take: k and v with as many as one another, dividing those of q."""
    heads, of_k, of_v = q.shape[1], k.shape[1], v.shape[1]
    if enable_gqa:
        if not of_k or not of_v or heads % of_k or heads % of_v:
            raise RuntimeError(
                "Number of heads in key and value must divide the number of heads in query, "
                f"but got {of_k}, {of_v} and {heads}."
            )
        if of_k != of_v:
            common = math.lcm(of_k, of_v)
            k, v = (x.repeat_interleave(common // x.shape[1], 1) for x in (k, v))
        return q, k, v
    [common] = _broadcast("numbers of heads", (heads,), (of_k,), (of_v,))
    q = q if heads == common else q.expand(-1, common, -1, -1)
    if of_k != of_v:
        k, v = (x if x.shape[1] == common else x.expand(-1, common, -1, -1) for x in (k, v))
    return q, k, v


def additive(mask: Tensor, batch: tuple[int, ...], q: Tensor, k: Tensor) -> Tensor:
    """The mask as terms added to the scores: (1 | batch, 1 | heads, seqlen_q, seqlen_k) of q's dtype."""
    heads, seqlen_q, seqlen_k = q.shape[1], q.shape[2], k.shape[2]
    whole = (*batch, heads, seqlen_q, seqlen_k)
    fits = mask.dim() <= len(whole) and all(
        have in (1, want) for have, want in zip(reversed(mask.shape), reversed(whole), strict=False)
    )
    if not fits and _broadcast("an attn_mask that fits the scores", mask.shape, whole) != whole:
        raise RuntimeError(f"Expected an attn_mask that broadcasts to {whole}, but got {tuple(mask.shape)}.")
    if mask.dtype != q.dtype:
        part, given = _unexpanded(mask), mask.shape
        if mask.dtype == torch.bool:
            part = torch.zeros_like(part, dtype=q.dtype).masked_fill_(~part, -math.inf)
        mask = part.to(q.dtype).expand(given)
    if mask.dim() > 3 and len(batch) > 1:
        mask = mask.expand(*batch, *mask.shape[-3:]).flatten(0, len(batch) - 1)
    while mask.dim() < 4:
        mask = mask[None]
    mask = mask.expand(*mask.shape[:2], seqlen_q, seqlen_k)
    return mask if mask.stride(-1) == 1 or seqlen_k < 2 else mask.contiguous()
