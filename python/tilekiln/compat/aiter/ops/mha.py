# SPDX-License-Identifier: MIT
"""aiter.ops.mha: the public attention functions, and what they are made of.

q (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k, headdim_v),
nheads a multiple of nheads_k; the varlen forms (total, nheads, headdim) with int32 cu_seqlens (batch + 1). fp16 and
bf16 (fp32 where a library has it), strides as they are. Masks are bottom-right aligned.

Common arguments:
dropout_p: 0 to below 1; its random bits come from torch's default generator.
softmax_scale: None is 1 / sqrt(headdim).
causal, window_size: (left, right, sink): row i sees keys [i + seqlen_k - seqlen_q - left, i + seqlen_k - seqlen_q +
    right] and the first `sink` keys; a negative side, or one of seqlen_k and more, is unbounded; causal means right
    = 0. A row that sees no key gives 0, its lse is -inf.
logits_soft_cap: scores become cap tanh(scores / cap); 0 is off. Not with bias or alibi_slopes. The other form, which
    CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT=1 selects, is refused.
bias: dtype of q, (seqlen_q, seqlen_k), varlen (total_q, max_seqlen_k), added for every head; it gets a gradient.
alibi_slopes: fp32 (nheads) or (batch, nheads): adds -slope |i + seqlen_k - seqlen_q - j|. Not with bias.
sink_ptr: (nheads): one more logit per head, which takes part in the softmax and has no value; it gets a gradient.
deterministic: the backward gives the same bits every time. torch.use_deterministic_algorithms(True) asks for it too.
return_lse, return_attn_probs: also lse, fp32 (batch, nheads, seqlen_q), varlen (nheads, total_q), without gradient;
    also S_dmask, the random bytes of dropout, uint8 (batch, nheads, seqlen_q, seqlen_k), varlen (nheads, total_q,
    max_seqlen_k), empty without dropout: a probability is kept where its byte <= floor(255 (1 - dropout_p)).
    The result is out, or a tuple of what is wanted in the order out, lse, S_dmask.
how_v3_bf16_cvt: how other hardware rounds to bf16. Here always to nearest, ties to even.

Wrong arguments raise an error that is a ValueError and a RuntimeError, a problem without a kernel one that is a
LookupError and a RuntimeError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...._core.native import ArgumentError, NoKernelError
from ....api.operators import _call
from ....torch import calls
from ... import _absent
from ..._modules import errors_as_upstream, longest
from ...flash_attn._arguments import UNBOUNDED, bare, last_dense, packed_at, plainly
from ...flash_attn._kvcache import without_backward
from .._arguments import (
    attend,
    given,
    heads_of_bias,
    in_order,
    keys_of,
    keys_of_pages,
    logits,
    masks,
    s_dmask,
    sequences,
    softcap,
    softsign,
    unbounded,
)
from .._kernels import mha_bwd, mha_fwd, mha_varlen_bwd, mha_varlen_fwd, over_pages, over_splits
from .._other_names import (
    fmha_v3_bwd,
    fmha_v3_fwd,
    fmha_v3_varlen_bwd,
    fmha_v3_varlen_fwd,
    maybe_contiguous,
    mha_fwd_native_splitkv,
)
from .._rows import off

__all__ = [
    "FlashAttnFunc",
    "FlashAttnVarlenFunc",
    "flash_attn_fp8_pertensor_func",
    "flash_attn_func",
    "flash_attn_varlen_fp8_pertensor_func",
    "flash_attn_varlen_func",
    "fmha_v3_bwd",
    "fmha_v3_fwd",
    "fmha_v3_varlen_bwd",
    "fmha_v3_varlen_fwd",
    "maybe_contiguous",
    "mha_batch_prefill",
    "mha_batch_prefill_func",
    "mha_bwd",
    "mha_fwd",
    "mha_fwd_native_splitkv",
    "mha_varlen_bwd",
    "mha_varlen_fwd",
]

__getattr__ = _absent.sentences(__name__)


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = (-1, -1, 0), bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    deterministic: bool = True, return_lse: bool = False, return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None, sink_ptr: Tensor | None = None,
    num_splits: int = 0,
) -> Any:  # fmt: skip
    """Attention of q over k and v; arguments as the module says. Differentiable in q, k, v, bias and sink_ptr.

    cu_seqlens_q, cu_seqlens_kv: int32 (batch + 1): cumulative real lengths of the rows of a padded batch; what lies
    behind them is not read, and 0 in out. num_splits: above 1: the keys in so many parts side by side, for few queries;
    neither with dropout nor with gradients.
    """
    bare = bias is cu_seqlens_q is cu_seqlens_kv is sink_ptr is None
    if bare and unbounded(window_size) and not (dropout_p != 0 or return_attn_probs or num_splits > 1):
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, 0.0, alibi_slopes, return_lse, {})
        if made is not None:
            return made
    return _attended(
        q, k, v, dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, return_lse,
        return_attn_probs, cu_seqlens_q, cu_seqlens_kv, sink_ptr, num_splits,
    )  # fmt: skip


@errors_as_upstream(window="window_size", cu_seqlens_k="cu_seqlens_kv", sink="sink_ptr")
def _attended(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size: Any,
    bias: Tensor | None, alibi_slopes: Tensor | None, deterministic: bool, return_lse: bool, return_attn_probs: bool,
    cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, sink_ptr: Tensor | None, num_splits: int,
) -> Any:  # fmt: skip
    """flash_attn_func, the longer way."""
    q, k, v = last_dense(q, k, v)
    arguments = {
        "softmax_scale": softmax_scale, **masks(causal, window_size, k.shape[1]), "bias": heads_of_bias(bias, 2),
        "alibi_slopes": alibi_slopes, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_kv,
        "sink": logits(sink_ptr),
    }  # fmt: skip
    if num_splits > 1:
        out, lse = over_splits(q, k, v, arguments, dropout_p, num_splits)
        why = f"num_splits: was {num_splits}, must be 0 or 1 when gradients are wanted"
        watched = tuple(x for x in (q, k, v, bias, sink_ptr) if x is not None)
        return in_order(without_backward(out, watched, why), lse, s_dmask(None), return_lse, return_attn_probs)
    return attend(q, k, v, {**arguments, "dropout_p": dropout_p}, deterministic, return_lse, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    min_seqlen_q: int = 0, dropout_p: float = 0.0, softmax_scale: float | None = None, logits_soft_cap: float = 0.0,
    causal: bool = False, window_size: Any = (-1, -1, 0), bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None, deterministic: bool = False, return_lse: bool = False,
    return_attn_probs: bool = False, how_v3_bf16_cvt: int = 1, block_table: Tensor | None = None,
    out: Tensor | None = None, cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_k_padded: Tensor | None = None,
    sink_ptr: Tensor | None = None,
) -> Any:  # fmt: skip
    """Attention over sequences packed one after another; arguments as the module says.

    Differentiable in q, k, v, bias and sink_ptr.
    cu_seqlens_q, cu_seqlens_k: int32 (batch + 1), cumulative lengths, of which zero is one. cu_seqlens_q_padded,
    cu_seqlens_k_padded: where each sequence begins, when they do not lie close; out and lse lie as q does.
    max_seqlen_q, max_seqlen_k: no sequence is longer; on a device the lengths stay there. window_size is compared with
    max_seqlen_k; on the CPU one that is too small to keep a side of it is an error.
    min_seqlen_q: above 0: sequences of so many queries or fewer are left out: their rows of out are 0, or as they were
    when out is given. Not with gradients. out: where to write, (total_q, nheads, headdim_v); not with gradients.
    block_table: int32 (batch, max_blocks): k and v are then pages (blocks, page, nheads_k, headdim), cu_seqlens_k says
    how many keys each sequence has, and there is neither dropout nor a backward.
    """
    bare = bias is block_table is out is cu_seqlens_q_padded is cu_seqlens_k_padded is sink_ptr is None
    if (
        bare and type(cu_seqlens_q) is type(cu_seqlens_k) is Tensor and unbounded(window_size)
        and not (dropout_p != 0 or return_attn_probs or min_seqlen_q or (logits_soft_cap and softsign()))
    ):  # fmt: skip
        lengths = packed_at(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, logits_soft_cap, alibi_slopes, return_lse, lengths, 3)
        if made is not None:
            return made
    return _attended_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p, softmax_scale,
        logits_soft_cap, causal, window_size, bias, alibi_slopes, deterministic, return_lse, return_attn_probs,
        block_table, out, cu_seqlens_q_padded, cu_seqlens_k_padded, sink_ptr,
    )  # fmt: skip


@errors_as_upstream(
    window="window_size", softcap="logits_soft_cap", sink="sink_ptr",
    seqstart_q="cu_seqlens_q_padded", seqstart_k="cu_seqlens_k_padded",
)  # fmt: skip
def _attended_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int, min_seqlen_q: int, dropout_p: float, softmax_scale: float | None, logits_soft_cap: float,
    causal: bool, window_size: Any, bias: Tensor | None, alibi_slopes: Tensor | None, deterministic: bool,
    return_lse: bool, return_attn_probs: bool, block_table: Tensor | None, out: Tensor | None,
    cu_seqlens_q_padded: Tensor | None, cu_seqlens_k_padded: Tensor | None, sink_ptr: Tensor | None,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func, the longer way."""
    q, k, v = last_dense(q, k, v)
    arguments = {
        **sequences(
            cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k
        ),
        "softmax_scale": softmax_scale, "softcap": softcap(logits_soft_cap),
        **masks(causal, window_size, max_seqlen_k, keys_of(cu_seqlens_k)),
        "bias": heads_of_bias(bias, 1), "alibi_slopes": alibi_slopes, "out": out, "sink": logits(sink_ptr),
        "min_seqlen_q": min_seqlen_q,
    }  # fmt: skip
    if block_table is not None:
        made, lse = over_pages(q, k, v, block_table, arguments, dropout_p)
        why = "block_table: was given, must be absent when gradients are wanted: pages have no backward"
        watched = tuple(x for x in (q, k, v, bias, sink_ptr) if x is not None)
        return in_order(without_backward(made, watched, why), lse, s_dmask(None), return_lse, return_attn_probs)
    arguments["dropout_p"] = dropout_p
    return attend(q, k, v, arguments, deterministic, return_lse, return_attn_probs, max_seqlen_k)


def _over_listed_pages(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float | None, return_lse: bool, out: Tensor | None,
    most: tuple[int, int], given: dict[str, Any],
) -> Any:  # fmt: skip
    """mha_batch_prefill_func of tensors that nothing watches; None leaves it to the longer way. given: the pages."""
    if not bare(q, k, v, 3):
        return None
    if not q.is_cpu:
        given |= longest(*most, given["cu_seqlens_q"])
    if causal:
        given["causal"] = True
    if softmax_scale is not None:
        given["softmax_scale"] = softmax_scale
    if return_lse:
        given["return_lse"] = True
    if out is not None:
        given["out"] = out
    try:
        return _call("fmha_batch_prefill", (q, k, v), given)
    except (ArgumentError, NoKernelError, TypeError):
        return None


@errors_as_upstream(window="window_size", softcap="logits_soft_cap", sink="sink_ptr")
def mha_batch_prefill_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, kv_indptr: Tensor | None, kv_page_indices: Tensor | None,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    logits_soft_cap: float = 0.0, causal: bool = False, window_size: Any = (-1, -1), alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_lse: bool = False, return_attn_probs: bool = False, out: Tensor | None = None,
    kv_last_page_lens: Tensor | None = None, block_table: Tensor | None = None, seqlen_k: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    kv_block_descale: Tensor | None = None, sink_ptr: Tensor | None = None, sink_size: int = 0,
) -> Any:  # fmt: skip
    """Attention of packed queries over pages of keys as serving engines keep them. No autograd.

    q (total_q, nheads, headdim): fp16, bf16, or e4m3, whose out is bf16. k and v, dtype of q, or e4m3, e5m2 under bf16:
    linear (pages, page, nheads_k, headdim), or (tokens, nheads_k, headdim) for pages of one key; vectorized, with vec =
    16 bytes of elements: k (pages, nheads_k, headdim / vec, page, vec), v (pages, nheads_k, page / vec, headdim, vec).
    kv_indptr (batch + 1), kv_page_indices, kv_last_page_lens (batch), int32: as sglang keeps them. With block_table,
    int32 (batch, max_blocks), and seqlen_k, int32 (batch), as vllm does, these three are not looked at.
    q_descale, k_descale, v_descale: fp32 of one element, for fp8. kv_block_descale: fp32 (pages, nheads_k, 2), of e4m3
    k and v, in place of the last two; page is then a multiple of 64. out: where to write.
    sink_size: the first keys, which every row sees. max_seqlen_q, max_seqlen_k: no sequence is longer; on a device the
    lengths stay there. window_size is compared with max_seqlen_k, the width of S_dmask too.
    deterministic: concerns a backward, and there is none.
    """
    plain = unbounded(window_size) and not (dropout_p != 0 or return_attn_probs or logits_soft_cap or sink_size)
    if plain and sink_ptr is alibi_slopes is q_descale is k_descale is v_descale is kv_block_descale is None:
        made = _over_listed_pages(
            q, k, v, causal, softmax_scale, return_lse, out, (max_seqlen_q, max_seqlen_k),
            {"cu_seqlens_q": cu_seqlens_q, "block_table": block_table, "seqlen_k": seqlen_k}
            if block_table is not None else {
                "cu_seqlens_q": cu_seqlens_q, "kv_indptr": kv_indptr, "kv_page_indices": kv_page_indices,
                "kv_last_page_lens": kv_last_page_lens,
            },
        )  # fmt: skip
        if made is not None:
            return made
    [q] = last_dense(q)

    def keys() -> Tensor | None:
        return seqlen_k if block_table is not None else keys_of_pages(k, kv_indptr, kv_last_page_lens)

    arguments = {
        "cu_seqlens_q": cu_seqlens_q, "dropout_p": dropout_p, "softmax_scale": softmax_scale,
        "softcap": softcap(logits_soft_cap), **masks(causal, window_size, max_seqlen_k, keys),
        "alibi_slopes": alibi_slopes, "out": out, "q_descale": q_descale, "k_descale": k_descale,
        "v_descale": v_descale, "kv_block_descale": kv_block_descale, "sink": logits(sink_ptr), "seqlen_k": seqlen_k,
        **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q),
    }  # fmt: skip
    if sink_size:
        arguments["sink_size"] = sink_size
    if block_table is not None:
        arguments["block_table"] = block_table
    else:
        arguments |= {
            "kv_indptr": kv_indptr, "kv_page_indices": kv_page_indices, "kv_last_page_lens": kv_last_page_lens,
        }  # fmt: skip
    bits = None
    if return_attn_probs and dropout_p:
        bits = arguments["randval"] = q.new_zeros(q.shape[1], q.shape[0], max_seqlen_k, dtype=torch.uint8)
    with torch.no_grad():
        made = calls.batch_prefill(q, k, v, **given(arguments), return_lse=return_lse)
    result, lse = made if return_lse else (made, None)
    result = without_backward(result, (q, k, v), "q: requires grad, must not: mha_batch_prefill_func has no backward")
    return in_order(result, lse, s_dmask(bits), return_lse, return_attn_probs)


@errors_as_upstream(window="window_size", sink="sink_ptr")
def flash_attn_fp8_pertensor_func(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
    causal: bool = False, window_size: Any = (-1, -1, 0), softmax_scale: float | None = None,
    sink_ptr: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """flash_attn_func of fp8 e4m3 tensors: q is q_descale times what its fp8 numbers say, and so on. No autograd.

    q_descale, k_descale, v_descale: fp32 of one element. Returns out, bf16.
    """
    q, k, v = last_dense(q, k, v)
    arguments = {
        "softmax_scale": softmax_scale, **masks(causal, window_size, k.shape[1]), "sink": logits(sink_ptr),
        "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
    }  # fmt: skip
    with torch.no_grad():
        return calls.forward(q, k, v, **given(arguments), return_lse=False)[0]


@errors_as_upstream(window="window_size", softcap="logits_soft_cap", sink="sink_ptr")
def flash_attn_varlen_fp8_pertensor_func(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor | None, k_descale: Tensor | None, v_descale: Tensor | None,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, min_seqlen_q: int = 0,
    logits_soft_cap: float = 0.0, causal: bool = False, window_size: Any = (-1, -1, 0),
    softmax_scale: float | None = None, sink_ptr: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """flash_attn_varlen_func of fp8 e4m3 tensors, with the scales of flash_attn_fp8_pertensor_func. Returns bf16."""
    q, k, v = last_dense(q, k, v)
    arguments = {
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "min_seqlen_q": min_seqlen_q,
        **longest(max_seqlen_q, max_seqlen_k, cu_seqlens_q), "softcap": softcap(logits_soft_cap),
        "softmax_scale": softmax_scale, **masks(causal, window_size, max_seqlen_k, keys_of(cu_seqlens_k)),
        "sink": logits(sink_ptr), "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
    }  # fmt: skip
    with torch.no_grad():
        return calls.forward(q, k, v, **given(arguments), return_lse=False)[0]


@errors_as_upstream(window="window_size", cu_seqlens_k="cu_seqlens_kv", sink="sink_ptr")
def _flash_attn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, sink_size: int, bias: Tensor | None, alibi_slopes: Tensor | None, q_descale: Tensor | None,
    k_descale: Tensor | None, v_descale: Tensor | None, return_lse: bool, return_softmax: bool,
    how_v3_bf16_cvt: int = 1, cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
    sink_ptr: Tensor | None = None, out: Tensor | None = None, num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward of flash_attn_func without autograd: (out, lse, S_dmask, rng_state). out: where to write.

    Results that are not wanted are empty. rng_state, int64 (2,), is what _flash_attn_backward wants for dropout.
    """
    if num_splits <= 1:
        return mha_fwd(
            q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, sink_size, return_lse,
            return_softmax, cu_seqlens_q, cu_seqlens_kv, out, bias, alibi_slopes, q_descale, k_descale, v_descale,
            sink_ptr,
        )  # fmt: skip
    arguments = {
        "softmax_scale": softmax_scale,
        **masks(causal, (window_size_left, window_size_right, sink_size), k.shape[1]),
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_kv, "out": out, "bias": heads_of_bias(bias, 2),
        "alibi_slopes": alibi_slopes, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
        "sink": logits(sink_ptr),
    }  # fmt: skip
    made, lse = over_splits(q, k, v, arguments, dropout_p, num_splits)
    return made, lse if return_lse else torch.empty(0), s_dmask(None), torch.zeros(2, dtype=torch.int64)


def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dbias: Tensor | None, dropout_p: float, softmax_scale: float | None,
    causal: bool, window_size_left: int, window_size_right: int, bias: Tensor | None, alibi_slopes: Tensor | None,
    deterministic: bool, rng_state: Tensor | None = None, is_v3_atomic_fp32: bool = True, how_v3_bf16_cvt: int = 1,
    sink: Tensor | None = None, d_sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The backward of _flash_attn_forward, written to dq, dk, dv and dbias; d_sink as mha_bwd says.

    is_v3_atomic_fp32: how other hardware adds up dq. Returns softmax_d, fp32 (batch, nheads, seqlen_q).
    """
    return mha_bwd(
        dout, q, k, v, out, softmax_lse, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        deterministic, dq, dk, dv, dbias, bias, alibi_slopes, rng_state, None, sink, d_sink,
    )[3]  # fmt: skip


def _flash_attn_varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, cu_seqlens_q_padded: Tensor | None,
    cu_seqlens_k_padded: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, min_seqlen_q: int, dropout_p: float,
    softmax_scale: float | None, causal: bool, logits_soft_cap: float = 0.0, window_size_left: int = -1,
    window_size_right: int = -1, sink_size: int = 0, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None, k_descale: Tensor | None = None, v_descale: Tensor | None = None,
    return_lse: bool = False, return_softmax: bool = False, how_v3_bf16_cvt: int = 1, block_table: Tensor | None = None,
    out: Tensor | None = None, zero_tensors: bool = False, sink_ptr: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The forward of flash_attn_varlen_func without autograd: (out, lse, S_dmask, rng_state), as _flash_attn_forward.

    zero_tensors: out is made 0 first.
    """
    return mha_varlen_fwd(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p, softmax_scale,
        logits_soft_cap, zero_tensors, causal, window_size_left, window_size_right, sink_size, return_lse,
        return_softmax, out, block_table, bias, alibi_slopes, q_descale, k_descale, v_descale, None,
        cu_seqlens_q_padded, cu_seqlens_k_padded, sink_ptr,
    )  # fmt: skip


def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float | None, causal: bool, window_size_left: int,
    window_size_right: int, alibi_slopes: Tensor | None, deterministic: bool, rng_state: Tensor | None = None,
    is_v3_atomic_fp32: bool = True, how_v3_bf16_cvt: int = 1, zero_tensors: bool = False,
    cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_k_padded: Tensor | None = None, sink: Tensor | None = None,
    d_sink: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The backward of _flash_attn_varlen_forward, as _flash_attn_backward; softmax_d is (nheads, total_q)."""
    return mha_varlen_bwd(
        dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, zero_tensors, causal, window_size_left, window_size_right, deterministic, dq, dk, dv,
        alibi_slopes, rng_state, None, cu_seqlens_q_padded, cu_seqlens_k_padded, sink, d_sink,
    )[3]  # fmt: skip


def mha_batch_prefill(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, kv_indptr: Tensor, kv_page_indices: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, logits_soft_cap: float,
    zero_tensors: bool, is_causal: bool, window_size_left: int, window_size_right: int, sink_size: int,
    return_softmax_lse: bool, return_dropout_randval: bool, out: Tensor | None = None, bias: Tensor | None =
    None, alibi_slopes: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
    v_descale: Tensor | None = None, kv_block_descale: Tensor | None = None, kv_last_page_lens: Tensor | None =
    None, block_table: Tensor | None = None, seqlen_k: Tensor | None = None, sink_ptr: Tensor | None = None,
    gen: Any = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(out, lse, S_dmask, rng_state) of mha_batch_prefill_func; results that are not wanted are empty.

    bias and gen must be None: bits of dropout come from PyTorch's default generator, and rng_state is not kept.
    zero_tensors changes nothing: every row of out is written.
    """
    off("bias", bias, "flash_attn_varlen_func has one")
    off("gen", gen, "seed PyTorch's default generator, torch.manual_seed")
    made, *others = mha_batch_prefill_func(
        q, k, v, cu_seqlens_q, kv_indptr, kv_page_indices, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        logits_soft_cap, is_causal, (window_size_left, window_size_right), alibi_slopes, False, True,
        return_dropout_randval, out, kv_last_page_lens, block_table, seqlen_k, q_descale, k_descale, v_descale,
        kv_block_descale, sink_ptr, sink_size,
    )  # fmt: skip
    lse = others[0] if return_softmax_lse else torch.empty(0)
    mask = others[1] if return_dropout_randval else s_dmask(None)
    return made, lse, mask, torch.zeros(2, dtype=torch.int64)


class FlashAttnFunc:
    """`FlashAttnFunc.apply(...)` is flash_attn_func; is_v3_atomic_fp32 changes nothing."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
        window_size: Any, bias: Tensor | None, alibi_slopes: Tensor | None, deterministic: bool, return_lse:
        bool, return_softmax: bool, is_grad_enabled: bool, is_v3_atomic_fp32: bool | None = True,
        how_v3_bf16_cvt: int = 1, cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
        sink_ptr: Tensor | None = None, num_splits: int = 0,
    ) -> Any:  # fmt: skip
        """With is_grad_enabled False nothing is kept for a backward."""
        with torch.set_grad_enabled(is_grad_enabled and torch.is_grad_enabled()):
            return flash_attn_func(
                q, k, v, dropout_p, softmax_scale, causal, window_size, bias, alibi_slopes, deterministic, return_lse,
                return_softmax, how_v3_bf16_cvt, cu_seqlens_q, cu_seqlens_kv, sink_ptr, num_splits,
            )  # fmt: skip


class FlashAttnVarlenFunc:
    """`FlashAttnVarlenFunc.apply(...)` is flash_attn_varlen_func; is_v3_atomic_fp32 changes nothing."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
        max_seqlen_k: int, min_seqlen_q: int, dropout_p: float, softmax_scale: float | None, logits_soft_cap:
        float, causal: bool, window_size: Any, bias: Tensor | None, alibi_slopes: Tensor | None, deterministic:
        bool, return_lse: bool, return_softmax: bool, block_table: Tensor | None, out: Tensor | None,
        is_grad_enabled: bool, cu_seqlens_q_padded: Tensor | None = None, cu_seqlens_k_padded: Tensor | None =
        None, is_v3_atomic_fp32: bool | None = True, how_v3_bf16_cvt: int = 1, sink_ptr: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """With is_grad_enabled False nothing is kept for a backward."""
        with torch.set_grad_enabled(is_grad_enabled and torch.is_grad_enabled()):
            return flash_attn_varlen_func(
                q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_q, dropout_p,
                softmax_scale, logits_soft_cap, causal, window_size, bias, alibi_slopes, deterministic, return_lse,
                return_softmax, how_v3_bf16_cvt, block_table, out, cu_seqlens_q_padded, cu_seqlens_k_padded, sink_ptr,
            )  # fmt: skip
