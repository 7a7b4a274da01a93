"""Calls of the kernels with torch tensors, differentiable, also under torch.compile. What the faces stand on.

Arguments have the names and meanings of the Library functions; rng_state, an int64 tensor (2,) = (seed, offset), is in
place of rng. A call that nothing watches (no grad, no transform, no tracing, no autocast) goes straight to the facade,
any other through the custom operator.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tilekiln._native import ArgumentError
from tilekiln.operators import _call

from . import operators

_keys = torch._C._dispatch_keys
_modes = torch._C._dispatch_tls_local_include_set


def _look() -> tuple[int, int]:
    return _keys(torch.empty(0)).raw_repr(), _modes().raw_repr()


with torch.inference_mode():
    _INFERENCE = _look()
with torch.inference_mode(False):
    _NORMAL = _look()
_TENSORS = frozenset((_NORMAL[0], _INFERENCE[0]))
"""What the dispatcher sees in a tensor of the CPU that no transform wraps."""
_MODES = frozenset((_NORMAL[1], _INFERENCE[1]))
"""What it sees in a thread that runs no transform and traces nothing."""


def plain(*tensors: Tensor | None) -> bool:
    """May a kernel read and write these tensors here and now, with nobody watching?"""
    if _modes().raw_repr() not in _MODES or torch.is_autocast_enabled("cpu"):
        return False
    recording = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (_keys(tensor).raw_repr() not in _TENSORS or (recording and tensor.requires_grad)):
            return False
    return True


def draw_rng_state() -> Tensor:
    """int64 (2,): a seed and an offset from torch's default generator."""
    return torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sink: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    block_scale_seqstart_q: Tensor | None = None,
    block_scale_seqstart_k: Tensor | None = None,
    seqstart_q: Tensor | None = None,
    seqstart_k: Tensor | None = None,
    seqlen_q: Tensor | None = None,
    seqlen_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    mask_origin: Literal["bottom_right", "top_left"] = "bottom_right",
    sink_size: int = 0,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
    min_seqlen_q: int = 0,
    layout: Literal["bshd", "bhsd"] = "bshd",
    out: Tensor | None = None,
    out_dtype: Literal["bf16", "fp32"] | None = None,
    num_threads: int = 0,
    instance: str | None = None,
    return_lse: bool = True,
    return_randval: bool = False,
    deterministic: bool | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(out, lse, randval, rng_state) of `Library.fmha_fwd`, differentiable in q, k, v, bias and sink.

    lse is None without return_lse, randval, uint8, without return_randval. rng_state: with dropout_p and None a new one
    is drawn from torch's default generator; it is returned (None without dropout_p). deterministic is for the backward;
    None is what torch.are_deterministic_algorithms_enabled() says. out: where to write; not when an input requires
    grad.
    """
    if dropout_p and rng_state is None:
        rng_state = draw_rng_state()
    arguments = {
        "bias": bias, "alibi_slopes": alibi_slopes, "sink": sink, "q_descale": q_descale, "k_descale": k_descale,
        "v_descale": v_descale, "block_scale_seqstart_q": block_scale_seqstart_q,
        "block_scale_seqstart_k": block_scale_seqstart_k, "seqstart_q": seqstart_q, "seqstart_k": seqstart_k,
        "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        "rng_state": rng_state, "softmax_scale": softmax_scale, "causal": causal, "window_left": int(window[0]),
        "window_right": int(window[1]), "mask_origin": mask_origin, "sink_size": sink_size, "softcap": softcap,
        "dropout_p": dropout_p, "min_seqlen_q": min_seqlen_q, "layout": layout, "out_dtype": out_dtype,
        "num_threads": num_threads, "instance": instance,
    }  # fmt: skip
    state = rng_state if dropout_p else None
    if not torch.compiler.is_compiling() and plain(q, k, v, bias, sink, out):
        given = operators.facade_arguments(**arguments)
        if out is not None:
            given["out"] = out
        randval = None
        if return_randval:
            randval = given["randval"] = operators.new_randval(
                q, k, layout, seqstart_k if seqstart_k is not None else cu_seqlens_k
            )
        if return_lse:
            made, lse = _call("fmha_fwd", (q, k, v), {**given, "return_lse": True})
            return made, lse, randval, state
        return _call("fmha_fwd", (q, k, v), given), None, randval, state
    if out is not None:
        raise ArgumentError(
            "out: was given, must be absent when an input requires grad or the call is traced: call it under "
            "torch.no_grad(), or detach the inputs; autograd needs results of its own"
        )
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    needs_lse = return_lse or torch.is_grad_enabled()
    made, lse, randval = torch.ops.tilekiln.fmha_fwd(
        q, k, v, return_lse=needs_lse, return_randval=return_randval, deterministic=deterministic, **arguments
    )
    return made, lse if return_lse else None, randval if return_randval else None, state


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    dbias: bool = False,
    d_sink: bool = False,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sink: Tensor | None = None,
    seqstart_q: Tensor | None = None,
    seqstart_k: Tensor | None = None,
    seqlen_q: Tensor | None = None,
    seqlen_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    mask_origin: Literal["bottom_right", "top_left"] = "bottom_right",
    sink_size: int = 0,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
    layout: Literal["bshd", "bhsd"] = "bshd",
    num_threads: int = 0,
    deterministic: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """(dq, dk, dv, dbias, d_sink) of `Library.fmha_bwd`; the last two are None unless asked for with True.

    dq, dk, dv: where to write, shapes and dtypes of q, k and v. dbias has the full shape (batch, nhead_q, seqlen_q,
    seqlen_k), group (nhead_q, total_q, max_seqlen_k), also when bias is broadcast. Give rng_state as the forward
    returned it. deterministic: None is what torch.are_deterministic_algorithms_enabled() says.
    """
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    arguments = {
        "bias": bias, "alibi_slopes": alibi_slopes, "sink": sink, "seqstart_q": seqstart_q, "seqstart_k": seqstart_k,
        "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        "softmax_scale": softmax_scale, "causal": causal, "window_left": int(window[0]), "window_right": int(window[1]),
        "mask_origin": mask_origin, "sink_size": sink_size, "softcap": softcap, "dropout_p": dropout_p,
        "rng_state": rng_state, "layout": layout, "num_threads": num_threads, "deterministic": deterministic,
    }  # fmt: skip
    places = {"dq": dq, "dk": dk, "dv": dv}
    if not torch.compiler.is_compiling() and plain(dout, q, k, v, out, lse, bias, sink, dq, dk, dv):
        given = operators.facade_arguments(**arguments)
        given.update({name: place for name, place in places.items() if place is not None})
        return operators.run_backward((dout, q, k, v, out, lse), given, dbias, d_sink)
    made = torch.ops.tilekiln.fmha_bwd(dout, q, k, v, out, lse, dbias=dbias, d_sink=d_sink, **arguments)
    written = [made[i] if place is None else place.copy_(made[i]) for i, place in enumerate(places.values())]
    return written[0], written[1], written[2], made[3] if dbias else None, made[4] if d_sink else None
