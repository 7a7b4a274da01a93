"""The custom operators `torch.ops.tilekiln.*`: schemas, kernels for the CPU, shapes for tracing, derivatives.

An operator returns a tensor for each result that it may have, of no elements when that was not asked for. Arguments
are those of the Library function of the same name, with rng_state, int64 (2,) = (seed, offset), in place of rng, and
window_left and window_right in place of window. They name what people pass; `calls` is what people call.
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from tilekiln._native import ArgumentError
from tilekiln.operators import _call

NAMESPACE = "tilekiln"


def facade_arguments(**arguments: Any) -> dict[str, Any]:
    """What of an operator's arguments is not absent, in the facade's names."""
    state = arguments.pop("rng_state", None)
    if arguments.get("dropout_p") and state is not None:
        arguments["rng"] = tuple(state.tolist())
    window = arguments.pop("window_left", -1), arguments.pop("window_right", -1)
    if window != (-1, -1):
        arguments["window"] = window
    return {name: value for name, value in arguments.items() if value is not None}


def _group(q: Tensor) -> bool:
    return q.dim() == 3


def _tokens(layout: str, q: Tensor) -> tuple[int, int]:
    """Which dimensions of q count tokens and heads."""
    return (q.dim() - 3, q.dim() - 2) if layout == "bshd" else (q.dim() - 2, q.dim() - 3)


def _lse_shape(q: Tensor, layout: str) -> list[int]:
    tokens, heads = _tokens(layout, q)
    return [*q.shape[:-3], q.shape[heads], q.shape[tokens]]


def fmha_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    rng_state: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    mask_origin: str = "bottom_right",
    sink_size: int = 0,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    min_seqlen_q: int = 0,
    layout: str = "bshd",
    out_dtype: str | None = None,
    num_threads: int = 0,
    instance: str | None = None,
    return_lse: bool = True,
    return_randval: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, randval) of `Library.fmha_fwd`."""
    starts = cu_seqlens_k if seqstart_k is None else seqstart_k
    randval = new_randval(q, k, layout, starts) if return_randval else None
    arguments = facade_arguments(
        bias=bias, alibi_slopes=alibi_slopes, sink=sink, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        block_scale_seqstart_q=block_scale_seqstart_q, block_scale_seqstart_k=block_scale_seqstart_k,
        seqstart_q=seqstart_q, seqstart_k=seqstart_k, seqlen_q=seqlen_q, seqlen_k=seqlen_k, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, rng_state=rng_state, softmax_scale=softmax_scale, causal=causal,
        window_left=window_left, window_right=window_right, mask_origin=mask_origin, sink_size=sink_size,
        softcap=softcap, dropout_p=dropout_p, min_seqlen_q=min_seqlen_q, layout=layout, out_dtype=out_dtype,
        num_threads=num_threads, instance=instance, return_lse=return_lse or None, randval=randval,
    )  # fmt: skip
    made = _call("fmha_fwd", (q, k, v), arguments)
    out, lse = made if return_lse else (made, q.new_empty(0, dtype=torch.float32))
    return out, lse, q.new_empty(0, dtype=torch.uint8) if randval is None else randval


def new_randval(q: Tensor, k: Tensor, layout: str, starts_k: Tensor | None) -> Tensor:
    """Zeros (batch, nhead_q, seqlen_q, seqlen_k), group (nhead_q, total_q, max_seqlen_k)."""
    if not _group(q):
        keys = k.shape[_tokens(layout, k)[0]]
    else:
        keys = int(starts_k.diff().max()) if starts_k is not None and starts_k.numel() > 1 else 0
    return q.new_zeros([*_lse_shape(q, layout), keys], dtype=torch.uint8)


def fmha_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sink: Tensor | None = None,
    seqstart_q: Tensor | None = None,
    seqstart_k: Tensor | None = None,
    seqlen_q: Tensor | None = None,
    seqlen_k: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    rng_state: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    mask_origin: str = "bottom_right",
    sink_size: int = 0,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    layout: str = "bshd",
    num_threads: int = 0,
    deterministic: bool = False,
    dbias: bool = False,
    d_sink: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dbias, d_sink) of `Library.fmha_bwd`."""
    arguments = facade_arguments(
        bias=bias, alibi_slopes=alibi_slopes, sink=sink, seqstart_q=seqstart_q, seqstart_k=seqstart_k,
        seqlen_q=seqlen_q, seqlen_k=seqlen_k, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        rng_state=rng_state, softmax_scale=softmax_scale, causal=causal, window_left=window_left,
        window_right=window_right, mask_origin=mask_origin, sink_size=sink_size, softcap=softcap, dropout_p=dropout_p,
        layout=layout, num_threads=num_threads, deterministic=deterministic,
    )  # fmt: skip
    dq, dk, dv, made_dbias, made_d_sink = run_backward((dout, q, k, v, out, lse), arguments, dbias, d_sink)
    return (
        dq,
        dk,
        dv,
        q.new_empty(0) if made_dbias is None else made_dbias,
        q.new_empty(0, dtype=torch.float32) if made_d_sink is None else made_d_sink,
    )


def run_backward(
    arrays: tuple[Tensor, ...], arguments: dict[str, Any], dbias: bool, d_sink: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Through the facade, with its arguments."""
    dout, *others = arrays
    if dout.stride(-1) != 1 and dout.shape[-1] > 1:  # autograd expands gradients, such as that of sum()
        dout = dout.contiguous()
    if dbias:
        arguments["dbias"] = True
    if d_sink:
        arguments["d_sink"] = True
    dq, dk, dv, *more = _call("fmha_bwd", (dout, *others), arguments)
    return dq, dk, dv, more.pop(0) if dbias else None, more.pop(0) if d_sink else None


def _define(function: Any) -> None:
    schema = torch.library.infer_schema(function, mutates_args=())
    name = f"{NAMESPACE}::{function.__name__}"
    torch.library.define(name, schema)
    torch.library.impl(name, "CPU")(function)


_define(fmha_fwd)
_define(fmha_bwd)

FORWARD = tuple(inspect.signature(fmha_fwd).parameters)
BACKWARD = tuple(inspect.signature(fmha_bwd).parameters)
SHARED = tuple(name for name in BACKWARD if name in FORWARD and name not in ("q", "k", "v", "bias", "sink"))
"""What the backward takes as the forward was given it, past the arrays it saves."""


@torch.library.register_fake(f"{NAMESPACE}::fmha_fwd")
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor]:
    given = dict(zip(FORWARD[3:], rest, strict=False)) | named
    layout = given.get("layout", "bshd")
    dtype = q.dtype
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        dtype = torch.float32 if given.get("out_dtype") == "fp32" else torch.bfloat16
    out = q.new_empty([*q.shape[:-1], v.shape[-1]], dtype=dtype)
    lse = q.new_empty(_lse_shape(q, layout) if given.get("return_lse", True) else [0], dtype=torch.float32)
    if not given.get("return_randval", False):
        return out, lse, q.new_empty([0], dtype=torch.uint8)
    keys = torch.library.get_ctx().new_dynamic_size() if _group(q) else k.shape[_tokens(layout, k)[0]]
    return out, lse, q.new_empty([*_lse_shape(q, layout), keys], dtype=torch.uint8)


@torch.library.register_fake(f"{NAMESPACE}::fmha_bwd")
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any, **named: Any) -> Any:
    given = dict(zip(BACKWARD[6:], rest, strict=False)) | named
    bias = given.get("bias")
    dbias = q.new_empty([0])
    if given.get("dbias", False) and bias is not None:
        dbias = q.new_empty([*lse.shape, bias.shape[-1]])
    d_sink = q.new_empty(lse.shape[-2:-1] if given.get("d_sink", False) else [0], dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dbias, d_sink


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    given = dict(zip(FORWARD, inputs, strict=True))
    _check_differentiable(given)
    out, lse, randval = output
    ctx.mark_non_differentiable(lse, randval)
    ctx.set_materialize_grads(False)
    arrays = {name: given[name] for name in SHARED if isinstance(given[name], Tensor)}
    ctx.names = tuple(arrays)
    ctx.plain = {name: given[name] for name in SHARED if name not in arrays}
    ctx.save_for_backward(given["q"], given["k"], given["v"], given["bias"], given["sink"], out, lse, *arrays.values())


def _check_differentiable(given: dict[str, Any]) -> None:
    because = "when an input requires grad: call it under torch.no_grad(), or detach the inputs"
    for name in ("q_descale", "k_descale", "v_descale"):
        if given[name] is not None:
            raise ArgumentError(f"{name}: was given, must be absent {because}; fp8 has no backward")
    if given["min_seqlen_q"]:
        raise ArgumentError(
            f"min_seqlen_q: was {given['min_seqlen_q']}, must be 0 {because}; the backward skips no sequence"
        )
    if not given["return_lse"]:
        raise ArgumentError(f"return_lse: was False, must be True {because}; the backward reads it")


def _differentiate(ctx: Any, dout: Tensor | None, *_: None) -> tuple[Any, ...]:
    nothing = (None,) * len(FORWARD)
    if dout is None:
        return nothing
    q, k, v, bias, sink, out, lse, *arrays = ctx.saved_tensors
    wants_bias = bias is not None and ctx.needs_input_grad[FORWARD.index("bias")]
    wants_sink = sink is not None and ctx.needs_input_grad[FORWARD.index("sink")]
    dq, dk, dv, dbias, d_sink = torch.ops.tilekiln.fmha_bwd(
        dout, q, k, v, out, lse, bias=bias, sink=sink, dbias=wants_bias, d_sink=wants_sink,
        **dict(zip(ctx.names, arrays, strict=True)), **ctx.plain,
    )  # fmt: skip
    gradients = {
        "q": dq, "k": dk, "v": dv,
        "bias": dbias.sum_to_size(bias.shape) if wants_bias else None,
        "sink": d_sink if wants_sink else None,
    }  # fmt: skip
    return tuple(gradients.get(name) for name in FORWARD)


torch.library.register_autograd(f"{NAMESPACE}::fmha_fwd", _differentiate, setup_context=_save)


def _no_second_derivative(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "tilekiln.attention has no second derivative: its gradients cannot be differentiated again. Use "
        "torch.nn.functional.scaled_dot_product_attention with the math backend for that"
    )


torch.library.register_autograd(f"{NAMESPACE}::fmha_bwd", _no_second_derivative)
