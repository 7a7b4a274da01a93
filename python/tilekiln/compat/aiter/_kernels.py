# SPDX-License-Identifier: MIT
"""aiter's functions below autograd: mha_fwd, mha_bwd, mha_varlen_fwd, mha_varlen_bwd. Arguments are those of upstream.

They mean what they mean in `ops.mha`. Forward: (out, softmax_lse, S_dmask, rng_state), those not wanted empty.
Backward: (dq, dk, dv, softmax_d), softmax_d being rowsum(dout out), fp32, of the shape of softmax_lse.
rng_state: int64 (2,), the seed and offset that dropout used. gen: a torch.Generator to draw one from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ...torch import calls
from .._modules import errors_as_upstream
from ..flash_attn._arguments import last_dense
from ._arguments import given, heads_of_bias, keys_of, logits, masks, s_dmask, sequences, softcap

_NAMES = {
    "window": "window_size", "softcap": "logits_soft_cap", "lse": "softmax_lse", "seqstart_q": "cu_seqlens_q_padded",
    "seqstart_k": "cu_seqlens_k_padded",
}  # fmt: skip


def _drawn(dropout_p: float, gen: torch.Generator | None) -> Tensor:
    if not dropout_p:
        return torch.zeros(2, dtype=torch.int64)
    return calls.draw_rng_state() if gen is None else torch.randint(0, 2**63 - 1, (2,), generator=gen)


def _forward(
    tensors: tuple[Tensor, ...],
    arguments: dict[str, Any],
    dropout_p: float,
    gen: torch.Generator | None,
    return_softmax_lse: bool,
    return_dropout_randval: bool,
    max_seqlen_k: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng_state = _drawn(dropout_p, gen)
    q, k, v = last_dense(*tensors)
    with torch.no_grad():
        out, lse, randval, _ = calls.forward(
            q, k, v, **given(arguments), dropout_p=dropout_p, rng_state=rng_state, return_lse=return_softmax_lse,
            return_randval=return_dropout_randval and dropout_p > 0,
        )  # fmt: skip
    return out, torch.empty(0) if lse is None else lse, s_dmask(randval, max_seqlen_k), rng_state


def _backward(
    dout: Tensor,
    tensors: tuple[Tensor, ...],
    lse: Tensor,
    places: dict[str, Tensor | None],
    arguments: dict[str, Any],
    dropout_p: float,
    deterministic: bool,
    rng_state: Tensor | None,
    gen: torch.Generator | None,
    dbias: Tensor | None,
    sink: Tensor | None,
    d_sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if dropout_p and rng_state is None and gen is None:
        raise ArgumentError("rng_state: was None, must be with dropout_p what the forward returned")
    for name, gradient, argument in (("dbias", dbias, "bias"), ("d_sink", d_sink, "sink")):
        if gradient is not None and (sink if argument == "sink" else arguments[argument]) is None:
            raise ArgumentError(f"{name}: was given, must be absent without {argument}")
    q, k, v, out = last_dense(*tensors)
    [dout] = last_dense(dout)
    starts, batch = arguments.get("cu_seqlens_q"), q.shape[0]
    batch = batch if starts is None else starts.shape[0] - 1
    _check_sinks(sink, d_sink, batch, q.shape[-2])
    with torch.no_grad():
        dq, dk, dv, full, _ = calls.backward(
            dout, q, k, v, out, lse, **given(places), **given(arguments), dropout_p=dropout_p,
            rng_state=_drawn(dropout_p, gen) if rng_state is None else rng_state, deterministic=deterministic or None,
            dbias=dbias is not None,
        )  # fmt: skip
        if dbias is not None and full is not None:
            dbias.copy_(full.sum_to_size(arguments["bias"].shape).view(arguments["bias"].shape[-2:]))
        softmax_d = torch.einsum("...hd,...hd->...h", dout.float(), out.float()).mT.contiguous()
        if sink is not None and d_sink is not None:
            d_sink += _gradient_of_sinks(sink.float().expand(batch, q.shape[-2]), lse, softmax_d, arguments)
        return dq, dk, dv, softmax_d


def _check_sinks(sink: Tensor | None, d_sink: Tensor | None, batch: int, nheads: int) -> None:
    if sink is not None and tuple(sink.shape) not in ((batch, nheads), (nheads,)):
        raise ArgumentError(
            f"sink: was of shape {tuple(sink.shape)}, must be ({batch}, {nheads}), (batch, nheads), or ({nheads},)"
        )
    if d_sink is not None and tuple(d_sink.shape) != (nheads,):
        raise ArgumentError(f"d_sink: was of shape {tuple(d_sink.shape)}, must be ({nheads},), (nheads)")


def _gradient_of_sinks(sink: Tensor, lse: Tensor, softmax_d: Tensor, arguments: dict[str, Any]) -> Tensor:
    """(nheads) of sink (batch, nheads): the sum over rows of -exp(sink - lse) softmax_d.

    A sink is a logit without a value, so its probability is exp(sink - lse) and what it takes from out is softmax_d.
    """
    starts = arguments.get("cu_seqlens_q")
    if starts is None:
        rows = list(zip(sink, lse, softmax_d, strict=True))
    else:
        places = arguments.get("seqstart_q")
        begins = (starts if places is None else places).tolist()
        rows = [
            (one, lse[:, begin : begin + length], softmax_d[:, begin : begin + length])
            for one, begin, length in zip(sink, begins, starts.diff().tolist(), strict=False)
        ]
    gradient = sink.new_zeros(sink.shape[1])
    for one, lse_of_one, d in rows:
        share = (one[:, None] - lse_of_one).exp().masked_fill(lse_of_one.isneginf(), 0)  # neither keys nor a sink
        gradient -= (share * d).sum(1)
    return gradient


@errors_as_upstream(**_NAMES, sink="sink_ptr", cu_seqlens_k="cu_seqlens_kv")
def mha_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    sink_size: int,
    return_softmax_lse: bool,
    return_dropout_randval: bool,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_kv: Tensor | None = None,
    out: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    sink_ptr: Tensor | None = None,
    gen: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """flash_attn_func below autograd; out: where to write, fp8 with descales too. Results as the module says."""
    arguments = {
        "softmax_scale": softmax_scale,
        **masks(is_causal, (window_size_left, window_size_right, sink_size), k.shape[1]),
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_kv, "out": out, "bias": heads_of_bias(bias, 2),
        "alibi_slopes": alibi_slopes, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
        "sink": logits(sink_ptr),
    }  # fmt: skip
    return _forward((q, k, v), arguments, dropout_p, gen, return_softmax_lse, return_dropout_randval)


@errors_as_upstream(**_NAMES, sink="sink_ptr")
def mha_varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    min_seqlen_q: int,
    dropout_p: float,
    softmax_scale: float | None,
    logits_soft_cap: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    sink_size: int,
    return_softmax_lse: bool,
    return_dropout_randval: bool,
    out: Tensor | None = None,
    block_table: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    gen: torch.Generator | None = None,
    cu_seqlens_q_padded: Tensor | None = None,
    cu_seqlens_k_padded: Tensor | None = None,
    sink_ptr: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """flash_attn_varlen_func below autograd, fp8 with descales too. zero_tensors: out is made 0 first."""
    if zero_tensors and out is not None:
        out.zero_()
    arguments = {
        **sequences(
            cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k
        ),
        "softmax_scale": softmax_scale, "softcap": softcap(logits_soft_cap), "min_seqlen_q": min_seqlen_q,
        **masks(is_causal, (window_size_left, window_size_right, sink_size), max_seqlen_k, keys_of(cu_seqlens_k)),
        "out": out, "bias": heads_of_bias(bias, 1), "alibi_slopes": alibi_slopes, "q_descale": q_descale,
        "k_descale": k_descale, "v_descale": v_descale, "sink": logits(sink_ptr),
    }  # fmt: skip
    if block_table is None:
        return _forward((q, k, v), arguments, dropout_p, gen, return_softmax_lse, return_dropout_randval, max_seqlen_k)
    out, lse = over_pages(q, k, v, block_table, arguments, dropout_p)
    return out, lse if return_softmax_lse else torch.empty(0), s_dmask(None), _drawn(0.0, None)


def over_splits(
    q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any], dropout_p: float, num_splits: int
) -> tuple[Tensor, Tensor]:
    """(out, lse), the keys in num_splits parts."""
    if dropout_p:
        raise ArgumentError(f"num_splits: was {num_splits}, must be 0 or 1 with dropout_p")
    q, k, v = last_dense(q, k, v)
    with torch.no_grad():
        out, lse = calls.splitkv(q, k, v, **given(arguments), num_splits=num_splits, return_lse=True)
    return out, lse


def over_pages(
    q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, arguments: dict[str, Any], dropout_p: float
) -> tuple[Tensor, Tensor]:
    """(out, lse) over pages of keys."""
    if dropout_p:
        raise ArgumentError(f"dropout_p: was {dropout_p}, must be 0 with block_table")
    arguments = given(arguments)
    if "seqstart_k" in arguments:
        raise ArgumentError(
            "cu_seqlens_k_padded: was given, must be absent with block_table, which says where keys are"
        )
    shortest = arguments.pop("min_seqlen_q")
    if shortest:
        raise ArgumentError(f"min_seqlen_q: was {shortest}, must be 0 with block_table")
    [q] = last_dense(q)
    with torch.no_grad():
        out, lse = calls.splitkv(q, k, v, **arguments, block_table=block_table, return_lse=True)
    return out, lse


@errors_as_upstream(**_NAMES)
def mha_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    deterministic: bool,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    dbias: Tensor | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    rng_state: Tensor | None = None,
    gen: torch.Generator | None = None,
    sink: Tensor | None = None,
    d_sink: Tensor | None = None,
    *,
    sink_size: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward of mha_fwd. dq, dk, dv: where to write. dbias, shape of bias: written if given.

    sink: the sink logits of the forward, (batch, nheads), or (nheads) for all sequences the same. d_sink, fp32
    (nheads), if given: their gradient, summed over the batch, is added to it.
    sink_size: the sink tokens of the forward; upstream has no such argument.
    """
    arguments = {
        "softmax_scale": softmax_scale,
        **masks(is_causal, (window_size_left, window_size_right, sink_size), k.shape[1]),
        "bias": heads_of_bias(bias, 2), "alibi_slopes": alibi_slopes,
    }  # fmt: skip
    return _backward(
        dout, (q, k, v, out), softmax_lse, {"dq": dq, "dk": dk, "dv": dv}, arguments, dropout_p, deterministic,
        rng_state, gen, dbias, sink, d_sink,
    )  # fmt: skip


@errors_as_upstream(**_NAMES)
def mha_varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    deterministic: bool,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    rng_state: Tensor | None = None,
    gen: torch.Generator | None = None,
    cu_seqlens_q_padded: Tensor | None = None,
    cu_seqlens_k_padded: Tensor | None = None,
    sink: Tensor | None = None,
    d_sink: Tensor | None = None,
    *,
    sink_size: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backward of mha_varlen_fwd; sinks as for mha_bwd. zero_tensors: dq, dk, dv, where given, are made 0 first."""
    places = {"dq": dq, "dk": dk, "dv": dv}
    if zero_tensors:
        for gradient in given(places).values():
            gradient.zero_()
    arguments = {
        **sequences(
            cu_seqlens_q, cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen_q, max_seqlen_k
        ),
        "softmax_scale": softmax_scale,
        **masks(is_causal, (window_size_left, window_size_right, sink_size), max_seqlen_k, keys_of(cu_seqlens_k)),
        "alibi_slopes": alibi_slopes,
    }  # fmt: skip
    return _backward(
        dout, (q, k, v, out), softmax_lse, places, arguments, dropout_p, deterministic, rng_state, gen, None, sink,
        d_sink,
    )  # fmt: skip
