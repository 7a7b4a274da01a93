# SPDX-License-Identifier: MIT
"""The public functions of flash_attn 2.8, and the private ones that its callers import.

q (batch, seqlen_q, nheads, headdim), k and v (batch, seqlen_k, nheads_k, headdim), nheads a multiple of nheads_k; the
varlen forms (total, nheads, headdim) with int32 cu_seqlens (batch + 1). fp16, bf16 and fp32 (not on a GPU), head dims
up to 512, strides as they are (a tensor whose last dimension is not contiguous is copied; on a GPU one whose headdim is
no multiple of 8, too). Masks are bottom-right aligned.

Common arguments:
dropout_p: 0 to below 1; its random bits come from torch's default generator.
softmax_scale: None is 1 / sqrt(headdim).
causal, window_size: row i sees keys [i + seqlen_k - seqlen_q - left, i + seqlen_k - seqlen_q + right]; a negative side,
    or one of seqlen_k and more, is unbounded; causal means right = 0. A row that sees no key gives 0, its lse is -inf.
softcap: scores become softcap tanh(scores / softcap), before alibi; 0 is off.
alibi_slopes: fp32 (nheads) or (batch, nheads): adds -slope |i + seqlen_k - seqlen_q - j|.
deterministic: the backward gives the same bits every time. torch.use_deterministic_algorithms(True) asks for it too.
return_attn_probs: return (out, softmax_lse, S_dmask). softmax_lse fp32 (batch, nheads, seqlen_q), varlen (nheads,
    total_q), without gradient. S_dmask: what dropout did, see `attn_probs`; empty without dropout.

Wrong arguments raise an error that is a ValueError and a RuntimeError, a problem without a kernel one that is a
LookupError and a RuntimeError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...torch import calls
from .._modules import FaceArgumentError, errors_as_upstream, longest
from . import attn_probs
from ._applied import applied
from ._arguments import (
    UNBOUNDED,
    check_dimensions,
    in_vectors,
    keys_of_sequences,
    last_dense,
    mask,
    narrowed,
    packed_at,
    plainly,
    scale_of,
    two_sides,
)
from ._kvcache import flash_attn_with_kvcache, over_pages
from ._packed import apart, forward, split

__all__ = [
    "FlashAttnFunc",
    "FlashAttnKVPackedFunc",
    "FlashAttnQKVPackedFunc",
    "FlashAttnVarlenFunc",
    "FlashAttnVarlenKVPackedFunc",
    "FlashAttnVarlenQKVPackedFunc",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _attend(
    packed: tuple[Tensor, ...], seqlen_k: int | None, sequences: dict[str, Any], dropout_p: float,
    softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, alibi_slopes: Tensor | None,
    deterministic: bool, return_attn_probs: bool,
) -> Any:  # fmt: skip
    """packed: (q, k, v), (q, kv) or (qkv,). seqlen_k: of the longest sequence; sequences: what says where they
    lie. Without sequences each row is one, and seqlen_k is None.
    """
    check_dimensions(packed, bool(sequences))
    lengths = sequences["cu_seqlens_k"].diff if sequences else None
    seqlen_k = packed[-1].shape[1] if seqlen_k is None else seqlen_k
    packed, given = in_vectors(*last_dense(*packed)), packed
    arguments = {
        "softmax_scale": scale_of(softmax_scale, given[0], packed[0]), **mask(causal, window_size, seqlen_k, lengths),
        "softcap": softcap, "alibi_slopes": alibi_slopes, "dropout_p": dropout_p, **sequences,
    }  # fmt: skip
    wants_bits = return_attn_probs and isinstance(dropout_p, int | float) and dropout_p > 0
    out, lse, randval, _ = forward(packed, arguments, deterministic, return_attn_probs, wants_bits)
    out = narrowed(out, given[-1].shape[-1])
    if not return_attn_probs:
        return out
    q, k, _ = split(packed)
    return out, lse, attn_probs.s_dmask(q, k, lse, randval, arguments)


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended(q: Tensor, k: Tensor, v: Tensor, alibi_slopes: Tensor | None, **named: Any) -> Any:
    """named: further arguments of `_attend`."""
    return _attend((q, k, v), None, {}, alibi_slopes=alibi_slopes, **named)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Attention of q over k and v; arguments as the module says. Differentiable in q, k and v.

    Returns out, shape of q, or (out, softmax_lse, S_dmask) with return_attn_probs.
    """
    if dropout_p == 0:
        made = plainly(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, {})
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _attended(
        q, k, v, alibi_slopes, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        softcap=softcap, deterministic=deterministic, return_attn_probs=return_attn_probs,
    )  # fmt: skip


def _with_mask(made: Any, q: Tensor, return_attn_probs: bool) -> Any:
    """The result of `plainly`, with S_dmask without dropout if it is wanted."""
    return (*made, attn_probs.empty(q)) if return_attn_probs else made


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended_pairs(q: Tensor, kv: Tensor, *given: Any) -> Any:
    """given: as `_attend` takes them behind its sequences."""
    return _attend((q, kv), None, {}, *given)


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _attended_one(qkv: Tensor, *given: Any) -> Any:
    """`_attended_pairs` of one tensor."""
    return _attend((qkv,), None, {}, *given)


def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_func with k and v in kv (batch, seqlen_k, 2, nheads_k, headdim), whose gradient is one tensor too."""
    if dropout_p == 0 and apart(kv, 5, 2):
        k, v = kv.unbind(2)
        made = plainly(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, {})
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _attended_pairs(
        q, kv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_func with q, k and v in qkv (batch, seqlen, 3, nheads, headdim), whose gradient is one tensor too."""
    if dropout_p == 0 and apart(qkv, 5, 3):
        q, k, v = qkv.unbind(2)
        made = plainly(q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, {})
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _attended_one(
        qkv, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    block_table: Tensor | None, *given: Any,
) -> Any:  # fmt: skip
    """given: as `_attend` takes them behind its sequences."""
    if block_table is not None:
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, _, return_attn_probs = given
        out, lse = over_pages(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
            window_size, softcap, alibi_slopes, block_table,
        )  # fmt: skip
        return (out, lse, attn_probs.empty(q)) if return_attn_probs else out
    lengths = packed_at(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _attend((q, k, v), max_seqlen_k, lengths, *given)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Any = UNBOUNDED,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention over sequences packed one after another; arguments as the module says. Differentiable in q, k and v.

    q (total_q, nheads, headdim), k and v (total_k, nheads_k, headdim). cu_seqlens_q, cu_seqlens_k: int32 (batch + 1),
    cumulative lengths, of which zero is one. max_seqlen_q, max_seqlen_k: no sequence is
    longer; on a device the lengths stay there. window_size is compared with max_seqlen_k; on the CPU one that is too
    small to keep a side of it is an error.
    block_table: int32 (batch, max_blocks): k and v are then pages (blocks, page, nheads_k, headdim), cu_seqlens_k says
    how many keys each sequence has, and there is neither dropout nor a backward.
    Returns out, shape of q, or (out, softmax_lse, S_dmask) with return_attn_probs.
    """
    if block_table is None and dropout_p == 0 and type(cu_seqlens_q) is type(cu_seqlens_k) is Tensor:
        lengths = packed_at(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        made = plainly(
            q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, lengths, 3,
            max_seqlen_k,
        )  # fmt: skip
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@errors_as_upstream(window="window_size", lse="softmax_lse")
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False, window_size: Any = UNBOUNDED,
    softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func with k and v in kv (total_k, 2, nheads_k, headdim), whose gradient is one tensor too."""
    lengths = packed_at(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if dropout_p == 0 and apart(kv, 4, 2):
        k, v = kv.unbind(1)
        made = plainly(
            q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, {**lengths}, 3,
            max_seqlen_k,
        )  # fmt: skip
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _attend(
        (q, kv), max_seqlen_k, lengths,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@errors_as_upstream(window="window_size", lse="softmax_lse")
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Any = UNBOUNDED, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func with q, k and v in qkv (total, 3, nheads, headdim), whose gradient is one tensor too."""
    lengths = packed_at(cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    if dropout_p == 0 and apart(qkv, 4, 3):
        q, k, v = qkv.unbind(1)
        made = plainly(
            q, k, v, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs, {**lengths}, 3,
            max_seqlen,
        )  # fmt: skip
        if made is not None:
            return _with_mask(made, q, return_attn_probs)
    return _attend(
        (qkv,), max_seqlen, lengths,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def _private_forward(q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any], return_softmax: bool) -> Any:
    wants_bits = return_softmax and arguments["dropout_p"] > 0
    given_q, headdim_v = q, v.shape[-1]
    with torch.no_grad():
        q, k, v = in_vectors(*last_dense(q, k, v))
        arguments = {**arguments, "softmax_scale": scale_of(arguments["softmax_scale"], given_q, q)}
        out, lse, randval, rng_state = calls.forward(q, k, v, **arguments, return_randval=wants_bits)
    assert lse is not None
    s_dmask = attn_probs.s_dmask(q, k, lse, randval, arguments)
    return narrowed(out, headdim_v), lse, s_dmask, torch.zeros(2, dtype=torch.int64) if rng_state is None else rng_state


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward of flash_attn_func without autograd: (out, softmax_lse, S_dmask, rng_state).

    rng_state, int64 (2,), is what _flash_attn_backward wants for dropout.
    """
    arguments = {
        "softmax_scale": softmax_scale, **mask(causal, (window_size_left, window_size_right), k.shape[1]),
        "softcap": softcap, "alibi_slopes": alibi_slopes, "dropout_p": dropout_p,
    }  # fmt: skip
    return _private_forward(q, k, v, arguments, return_softmax)  # type: ignore[no-any-return]


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
    block_table: Tensor | None = None, leftpad_k: Tensor | None = None, seqused_k: Tensor | None = None,
    zero_tensors: bool = False, num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward of flash_attn_varlen_func without autograd: (out, softmax_lse, S_dmask, rng_state).

    leftpad_k, seqused_k: int32 (batch): the first key of each sequence that is attended to, and how many keys from the
    start of the sequence are in use. zero_tensors: new tensors are zero here anyway. num_splits: with block_table.
    """
    window_size = (window_size_left, window_size_right)
    if block_table is not None:
        if leftpad_k is not None:
            raise FaceArgumentError("leftpad_k: was given, must be absent with block_table")
        out, lse = over_pages(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
            window_size, softcap, alibi_slopes, block_table, seqused_k=seqused_k, num_splits=num_splits,
        )  # fmt: skip
        return out, lse, attn_probs.empty(q), torch.zeros(2, dtype=torch.int64)
    keys = keys_of_sequences(cu_seqlens_k, seqused_k, leftpad_k)
    arguments = {
        "softmax_scale": softmax_scale, "softcap": softcap,
        **mask(causal, window_size, max_seqlen_k, lambda: keys.get("seqlen_k", cu_seqlens_k.diff())),
        "alibi_slopes": alibi_slopes, "dropout_p": dropout_p, "cu_seqlens_q": cu_seqlens_q, **keys,
        **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
    }  # fmt: skip
    return _private_forward(q, k, v, arguments, return_softmax)  # type: ignore[no-any-return]


def _private_backward(
    dout: Tensor, tensors: tuple[Tensor, ...], gradients: dict[str, Any], deterministic: bool, rng_state: Tensor | None,
    arguments: dict[str, Any],
) -> Tensor:  # fmt: skip
    if arguments["dropout_p"] > 0 and rng_state is None:
        raise FaceArgumentError("rng_state: was None, must be with dropout_p what the forward returned")
    with torch.no_grad():
        *given, lse = tensors
        dense = last_dense(*given)
        q, k, v, out = in_vectors(*dense)
        [wide] = in_vectors(dout)
        arguments = {**arguments, "softmax_scale": scale_of(arguments["softmax_scale"], given[0], q)}
        places: dict[str, Any] = {name: one if one is None else in_vectors(one)[0] for name, one in gradients.items()}
        calls.backward(
            wide, q, k, v, out, lse, **places, deterministic=deterministic or None, rng_state=rng_state, **arguments
        )
        for given_one, place in zip(gradients.values(), places.values(), strict=True):
            if place is not given_one:
                given_one.copy_(narrowed(place, given_one.shape[-1]))
        return torch.einsum("...hd,...hd->...h", dout.float(), dense[3].float()).mT.contiguous()


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float | None, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The backward of _flash_attn_forward, written to dq, dk and dv.

    Returns softmax_d, fp32 (batch, nheads, seqlen_q): the sums of dout out over the head dim.
    """
    arguments = {
        "softmax_scale": softmax_scale, **mask(causal, (window_size_left, window_size_right), k.shape[1]),
        "softcap": softcap, "alibi_slopes": alibi_slopes, "dropout_p": dropout_p,
    }  # fmt: skip
    gradients: dict[str, Any] = {"dq": dq, "dk": dk, "dv": dv}
    return _private_backward(dout, (q, k, v, out, softmax_lse), gradients, deterministic, rng_state, arguments)


@errors_as_upstream(window="window_size", lse="softmax_lse")
def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
    rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Tensor:  # fmt: skip
    """The backward of _flash_attn_varlen_forward, written to dq, dk and dv; softmax_d is (nheads, total_q).

    zero_tensors: rows of dq, dk and dv past the last sequence become 0; else they are left as they were.
    """
    arguments = {
        "softmax_scale": softmax_scale,
        **mask(causal, (window_size_left, window_size_right), max_seqlen_k, cu_seqlens_k.diff),
        "softcap": softcap, "alibi_slopes": alibi_slopes, "dropout_p": dropout_p, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k, **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
    }  # fmt: skip
    gradients: dict[str, Any] = {"dq": dq, "dk": dk, "dv": dv}
    if zero_tensors:
        for gradient in gradients.values():
            if gradient is not None:
                gradient.zero_()
    return _private_backward(dout, (q, k, v, out, softmax_lse), gradients, deterministic, rng_state, arguments)


USE_TRITON_ROCM = False
"""Upstream's word for its Triton kernels on AMD GPUs, which are not here."""


def _get_block_size_n(device: torch.device | str, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """Keys that a kernel takes at once; upstream's tests ask, to undo how its kernels scale S_dmask by such blocks.

    Here nothing is scaled by blocks: S_dmask is what `attn_probs` says, and one block holds every key.
    """
    return torch.iinfo(torch.int32).max


_wrapped_flash_attn_forward = _flash_attn_forward
"""Upstream's name for _flash_attn_forward behind torch.library; torch.compile traces this one as it is."""
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    """x, copied if its last dimension is not contiguous; None stays None."""
    return None if x is None else last_dense(x)[0]


class FlashAttnFunc(torch.autograd.Function):
    """flash_attn_func as upstream's autograd function, for callers of `FlashAttnFunc.apply`.

    The arguments are those of flash_attn_func in their order; return_softmax is its return_attn_probs, and with
    is_grad_enabled False nothing is kept for a backward.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
        window_size: Any, softcap: float, alibi_slopes: Tensor | None, deterministic: bool, return_softmax: bool,
        is_grad_enabled: bool,
    ) -> Any:  # fmt: skip
        options = softmax_scale, causal, *two_sides(window_size), softcap, alibi_slopes
        out, lse, s_dmask, rng_state = _flash_attn_forward(q, k, v, dropout_p, *options, return_softmax)
        ctx.mark_non_differentiable(lse, s_dmask)
        if is_grad_enabled and any(ctx.needs_input_grad[:3]):
            ctx.save_for_backward(q, k, v, out, lse, rng_state)
            ctx.options = dropout_p, *options, deterministic
        return (out, lse, s_dmask) if return_softmax else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, *_others: Any) -> Any:
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        options: tuple[Any, ...] = *ctx.options, rng_state
        _flash_attn_backward(dout, q, k, v, out, lse, dq, dk, dv, *options)
        return dq, dk, dv, *(None,) * 9


def round_multiple(x: int, m: int) -> int:
    """The least multiple of m that is x or more."""
    return -(-x // m) * m


class FlashAttnQKVPackedFunc:
    """flash_attn_qkvpacked_func for callers of upstream's autograd function: `FlashAttnQKVPackedFunc.apply`."""

    apply = applied(flash_attn_qkvpacked_func)


class FlashAttnKVPackedFunc:
    """flash_attn_kvpacked_func for callers of upstream's autograd function."""

    apply = applied(flash_attn_kvpacked_func)


class FlashAttnVarlenFunc:
    """flash_attn_varlen_func for callers of upstream's autograd function."""

    apply = applied(flash_attn_varlen_func)


class FlashAttnVarlenQKVPackedFunc:
    """flash_attn_varlen_qkvpacked_func for callers of upstream's autograd function."""

    apply = applied(flash_attn_varlen_qkvpacked_func)


class FlashAttnVarlenKVPackedFunc:
    """flash_attn_varlen_kvpacked_func for callers of upstream's autograd function."""

    apply = applied(flash_attn_varlen_kvpacked_func)
