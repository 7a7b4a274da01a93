# SPDX-License-Identifier: MIT
"""Attention and norms for JAX on the CPU and CUDA devices: compiled calls through jax.ffi, with gradients.

`attention`; `rms_norm`, `layer_norm`, `silu_and_mul` and `gelu_and_mul` where an available library has them
(norm_default). `ops`: every operator of the available libraries, without gradients.

Nothing imports this but its users. Its handlers are built by `tools/dev --with jax scons jax`.
"""

from __future__ import annotations

from typing import Any, Literal

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"tilekiln.jax computes with JAX's arrays, and JAX is not there ({error}): pip install jax, or in this tree "
        "tools/dev --with jax. NumPy arrays need no framework: tilekiln.attention takes those",
        name=error.name,
    ) from None

from .._core.native import ArgumentError
from . import _calls, ops
from .norms import gelu_and_mul, layer_norm, rms_norm, silu_and_mul

__all__ = ["attention", "gelu_and_mul", "layer_norm", "ops", "rms_norm", "silu_and_mul"]

Array = Any
"""A JAX array, traced or not, or what jax.numpy.asarray takes."""


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    seqstart_q: Array | None = None,
    seqstart_k: Array | None = None,
    seqlen_q: Array | None = None,
    seqlen_k: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    mask_origin: Literal["bottom_right", "top_left"] = "bottom_right",
    sink_size: int = 0,
    softcap: float = 0.0,
    dropout_p: float = 0.0,
    rng: Array | None = None,
    layout: Literal["bshd", "bhsd"] = "bshd",
    return_lse: bool = False,
    deterministic: bool = True,
) -> Any:
    """Attention forward on the CPU or a CUDA device with the best kernel of whatever libraries are built or installed.

    Works under jit, grad, vjp, checkpoint, scan, shard_map and vmap (one call after the other). Gradients are those of
    q, k, v, bias and sink; there is no forward-mode derivative and no second one (JAX says so).

    q, k, v: fp32, fp16 or bf16, all alike: (batch, seqlen_q, nhead_q, hdim_q), (batch, seqlen_k, nhead_k, hdim_q) and
        (batch, seqlen_k, nhead_k, hdim_v), or of 3 dimensions, (total, nhead, hdim), with cu_seqlens or seqstart for
        both sides. layout='bhsd': heads before sequence.
    bias, alibi_slopes, sink, seqstart_q, seqstart_k, seqlen_q, seqlen_k, cu_seqlens_q, cu_seqlens_k: arrays as in
        help(tilekiln.Library.fmha_fwd); they may be traced. Rows past a logical length are 0.
    max_seqlen_q, max_seqlen_k: as there: with both the index arrays of a CUDA device stay on it, and nobody waits.
    softmax_scale (None is 1 / sqrt(hdim_q)), causal, window, mask_origin, sink_size, softcap, dropout_p, layout: as
        there; part of the compiled program, so they may not be traced.
    rng: with dropout_p > 0: a key of jax.random, or the two uint32 of one; may be traced. The same key, the same bits.
        On a CUDA device the host waits for the key.
    return_lse: also the natural logarithm of the sum of exponentials, fp32 (batch, nhead_q, seqlen_q), of 3 dimensions
        (nhead_q, total_q). It is a constant for gradients.
    deterministic: the same gradients to the bit every time, over any number of threads.

    Arrays that are traced are taken to be on JAX's default device (jax.default_device) when the library is chosen.

    Returns out, or (out, lse), out with q's dtype and shape but hdim_v last. Raises ArgumentError for a wrong argument,
    by name, and NoKernelError when no available library has a kernel, both while tracing. What only the values of index
    arrays show (a cu_seqlens_q that falls) comes when the program runs, as jax.errors.JaxRuntimeError with the name.
    """
    arrays = {
        "q": q, "k": k, "v": v, "bias": bias, "alibi_slopes": alibi_slopes, "sink": sink, "seqstart_q": seqstart_q,
        "seqstart_k": seqstart_k, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k, "rng": _words(rng, dropout_p),
    }  # fmt: skip
    options: dict[str, Any] = {
        "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k,
        "softmax_scale": softmax_scale, "causal": causal, "window": tuple(window), "mask_origin": mask_origin,
        "sink_size": sink_size, "softcap": softcap, "dropout_p": dropout_p, "layout": layout,
        "deterministic": deterministic,
    }  # fmt: skip
    for name, value in options.items():
        if any(isinstance(part, jax.core.Tracer) for part in (value if name == "window" else [value])):
            raise ArgumentError(
                f"{name}: was traced, must be a plain value: it is part of the compiled program. Name it in "
                "jax.jit's static_argnames, or close over it"
            )
    given = {name: jnp.asarray(array) for name, array in arrays.items() if array is not None}
    out, lse = _calls.attention(tuple(options.items()), return_lse, _calls.alike(given))
    return (out, jax.lax.stop_gradient(lse)) if return_lse else out


def _words(rng: Array | None, dropout_p: float) -> Array | None:
    """The two uint32 of a key."""
    if rng is None:
        if not isinstance(dropout_p, jax.core.Tracer) and dropout_p > 0:
            raise ArgumentError("rng: was None, must be a key of jax.random when dropout_p > 0, as jax.random.key(0)")
        return None
    if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.key_data(rng)
    if rng.dtype != jnp.uint32 or rng.shape != (2,):
        raise ArgumentError(
            f"rng: was {rng.dtype} of shape {rng.shape}, must be one key of jax.random, or its two uint32: "
            "jax.random.key(0), which is of 'threefry2x32'"
        )
    return rng
