# SPDX-License-Identifier: MIT
"""aiter.ops.rmsnorm: RMS norms of rows, with a residual, and quantised.

input, out, residual_in, residual_out (..., columns), weight (columns) of one dtype: fp32, fp16 or bf16. With a residual
the sum, rounded to the dtype, is what is normalised, and is written to residual_out. use_model_sensitive_rmsnorm,
model_sensitive: 0 rounds once; else x / sqrt(..) is rounded before it is multiplied by weight, as in T5 and Llama.
gemma_norm: the factor is 1 + weight, in fp32. Quantised: out int8 or fp8, and yscale or scale, fp32, one a row, or one
for each group_size columns, with out yscale = y xscale. shuffle_scale, an order of another hardware, is refused.
No result has a gradient; tilekiln.torch.RMSNorm has.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._modules import alias, errors_as_upstream
from .._rows import factors, off, quantise, rows
from .._run import run

__all__ = [
    "add_rmsnorm",
    "add_rmsnorm_quant",
    "fused_add_rms_norm_cu",
    "fused_add_rms_norm_opus",
    "rms_norm",
    "rms_norm_cu",
    "rms_norm_opus",
    "rmsnorm",
    "rmsnorm2d_fwd",
    "rmsnorm2d_fwd_opus",
    "rmsnorm2d_fwd_with_add",
    "rmsnorm2d_fwd_with_add_dynamicquant",
    "rmsnorm2d_fwd_with_add_dynamicquant_opus",
    "rmsnorm2d_fwd_with_add_opus",
    "rmsnorm2d_fwd_with_add_smoothquant",
    "rmsnorm2d_fwd_with_add_smoothquant_opus",
    "rmsnorm2d_fwd_with_dynamicquant",
    "rmsnorm2d_fwd_with_dynamicquant_opus",
    "rmsnorm2d_fwd_with_smoothquant",
    "rmsnorm2d_fwd_with_smoothquant_opus",
    "rmsnorm_quant",
]

_named = errors_as_upstream(
    x="input", gamma="weight", y="out", residual="residual_in", smooth_scale="xscale", y_scale="yscale",
    unquantised="out_before_quant",
)  # fmt: skip
_SWIZZLED = "it is the order in which other hardware loads scales"


def _norm(
    out: Tensor | None, x: Tensor, weight: Tensor, epsilon: float, *, residuals: tuple[Tensor, Tensor] | None = None,
    sensitive: int = 0, gemma: bool = False, scale: Tensor | None = None, smooth: Tensor | None = None,
    group: int = 0, unquantised: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """out, or what it would be; all arguments as the module says."""
    given = rows("input", x)
    arguments: dict[str, Any] = {"epsilon": epsilon}
    if sensitive:
        arguments["rounding"] = "transformers"
    if residuals is not None and (gemma or group):
        given = rows("residual_out", residuals[1]).copy_(given + rows("residual_in", residuals[0]))
    elif residuals is not None:
        arguments["residual"] = rows("residual_in", residuals[0])
        arguments["residual_out"] = rows("residual_out", residuals[1])
    if gemma:
        given, weight = given.float(), weight.float() + 1
    if scale is not None and not group:
        arguments["y"], arguments["y_scale"] = rows("out", out), factors("yscale", scale, given.shape[0])  # type: ignore[arg-type]
        if smooth is not None:
            arguments["smooth_scale"] = smooth.view(-1)
        if unquantised is not None:
            arguments["unquantised"] = rows("out_before_quant", unquantised)
        return _first(run("rmsnorm2d_rdquant", (given, weight), arguments))
    if scale is not None and out is not None:
        quantise(out, _first(run("rmsnorm2d", (given, weight), arguments)), scale, group)
        return out
    if out is not None and not gemma:
        arguments["y"] = rows("out", out)
    made = _first(run("rmsnorm2d", (given, weight), arguments))
    if out is not None:
        return rows("out", out).copy_(made) if gemma else made
    if gemma:
        made = made.to(x.dtype)
    return made if x.dim() == 2 else made.view(x.shape)


def _first(made: Any) -> Tensor:
    """The first of an operator's results, which may be the only one."""
    result: Tensor = made[0] if isinstance(made, tuple) else made
    return result


@_named
def rms_norm(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) weight over the last dimension, like input."""
    return _norm(None, input, weight, epsilon, sensitive=use_model_sensitive_rmsnorm)


rmsnorm2d_fwd = alias(__name__, "rmsnorm2d_fwd", rms_norm)
rmsnorm2d_fwd_opus = alias(__name__, "rmsnorm2d_fwd_opus", rms_norm)


@_named
def rms_norm_opus(
    out: Tensor, input: Tensor, weight: Tensor, epsilon: float, model_sensitive: int = 0, gemma_norm: bool = False
) -> None:
    """`rms_norm` into out."""
    _norm(out, input, weight, epsilon, sensitive=model_sensitive, gemma=gemma_norm)


@_named
def rms_norm_cu(out: Tensor, input: Tensor, weight: Tensor, epsilon: float) -> None:
    """`rms_norm` into out."""
    _norm(out, input, weight, epsilon)


@_named
def rmsnorm(out: Tensor, input: Tensor, weight: Tensor, epsilon: float, gemma_norm: bool = False) -> None:
    """`rms_norm` into out."""
    _norm(out, input, weight, epsilon, gemma=gemma_norm)


@_named
def fused_add_rms_norm_cu(input: Tensor, residual_in: Tensor, weight: Tensor, epsilon: float) -> None:
    """In place: residual_in += input, and input becomes the norm of that."""
    _norm(input, input, weight, epsilon, residuals=(residual_in, residual_in))


@errors_as_upstream(x="input", gamma="weight", y="input", residual_out="residual")
def fused_add_rms_norm_opus(
    input: Tensor, residual: Tensor, weight: Tensor, epsilon: float, model_sensitive: int = 0, gemma_norm: bool = False
) -> None:
    """In place: residual += input, and input becomes the norm of that."""
    pair = (residual, residual)
    _norm(input, input, weight, epsilon, residuals=pair, sensitive=model_sensitive, gemma=gemma_norm)


@_named
def add_rmsnorm(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor, epsilon: float,
    gemma_norm: bool = False,
) -> None:  # fmt: skip
    """out: the norm of residual_out = input + residual_in."""
    _norm(out, input, weight, epsilon, residuals=(residual_in, residual_out), gemma=gemma_norm)


@_named
def rmsnorm2d_fwd_with_add(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor, epsilon: float,
    gemma_norm: bool = False, use_model_sensitive_rmsnorm: int = 0,
) -> None:  # fmt: skip
    """`add_rmsnorm`."""
    pair = (residual_in, residual_out)
    _norm(out, input, weight, epsilon, residuals=pair, gemma=gemma_norm, sensitive=use_model_sensitive_rmsnorm)


@_named
def rmsnorm2d_fwd_with_add_opus(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor, epsilon: float,
    use_model_sensitive_rmsnorm: int = 0, gemma_norm: bool = False,
) -> None:  # fmt: skip
    """`add_rmsnorm`."""
    pair = (residual_in, residual_out)
    _norm(out, input, weight, epsilon, residuals=pair, gemma=gemma_norm, sensitive=use_model_sensitive_rmsnorm)


@errors_as_upstream(x="input", gamma="weight", y="out", y_scale="scale", yscale="scale", scales="scale")
def rmsnorm_quant(
    out: Tensor, input: Tensor, scale: Tensor, weight: Tensor, epsilon: float, group_size: int = 0,
    shuffle_scale: bool = False, gemma_norm: bool = False,
) -> None:  # fmt: skip
    """out, scale: the norm, quantised."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    _norm(out, input, weight, epsilon, scale=scale, group=group_size, gemma=gemma_norm)


@errors_as_upstream(
    x="input", gamma="weight", y="out", residual="residual_in", y_scale="scale", yscale="scale", scales="scale"
)
def add_rmsnorm_quant(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, scale: Tensor, weight: Tensor,
    epsilon: float, group_size: int = 0, shuffle_scale: bool = False, gemma_norm: bool = False,
) -> None:  # fmt: skip
    """out, scale: the norm of residual_out = input + residual_in, quantised."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    pair = (residual_in, residual_out)
    _norm(out, input, weight, epsilon, residuals=pair, scale=scale, group=group_size, gemma=gemma_norm)


@_named
def rmsnorm2d_fwd_with_smoothquant(
    out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor, epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:  # fmt: skip
    """out, yscale: the norm times xscale, fp32 (columns), quantised."""
    _norm(out, input, weight, epsilon, scale=yscale, smooth=xscale, sensitive=use_model_sensitive_rmsnorm)


rmsnorm2d_fwd_with_smoothquant_opus = alias(
    __name__, "rmsnorm2d_fwd_with_smoothquant_opus", rmsnorm2d_fwd_with_smoothquant
)


@_named
def rmsnorm2d_fwd_with_add_smoothquant(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, xscale: Tensor, yscale: Tensor,
    weight: Tensor, epsilon: float, out_before_quant: Tensor | None = None, use_model_sensitive_rmsnorm: int = 0,
) -> None:  # fmt: skip
    """The same of residual_out = input + residual_in. out_before_quant, if given: the norm, before xscale."""
    _norm(
        out, input, weight, epsilon, residuals=(residual_in, residual_out), scale=yscale, smooth=xscale,
        sensitive=use_model_sensitive_rmsnorm, unquantised=out_before_quant,
    )  # fmt: skip


rmsnorm2d_fwd_with_add_smoothquant_opus = alias(
    __name__, "rmsnorm2d_fwd_with_add_smoothquant_opus", rmsnorm2d_fwd_with_add_smoothquant
)


@_named
def rmsnorm2d_fwd_with_dynamicquant(
    out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0,
    group_size: int = 0, shuffle_scale: bool = False,
) -> None:  # fmt: skip
    """out, yscale: the norm, quantised."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    _norm(out, input, weight, epsilon, scale=yscale, group=group_size, sensitive=use_model_sensitive_rmsnorm)


@_named
def rmsnorm2d_fwd_with_dynamicquant_opus(
    out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int = 0
) -> None:
    """`rmsnorm2d_fwd_with_dynamicquant`."""
    _norm(out, input, weight, epsilon, scale=yscale, sensitive=use_model_sensitive_rmsnorm)


@_named
def rmsnorm2d_fwd_with_add_dynamicquant(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, yscale: Tensor, weight: Tensor,
    epsilon: float, use_model_sensitive_rmsnorm: int = 0, group_size: int = 0, shuffle_scale: bool = False,
) -> None:  # fmt: skip
    """The same of residual_out = input + residual_in."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    pair, sensitive = (residual_in, residual_out), use_model_sensitive_rmsnorm
    _norm(out, input, weight, epsilon, residuals=pair, scale=yscale, group=group_size, sensitive=sensitive)


@_named
def rmsnorm2d_fwd_with_add_dynamicquant_opus(
    out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, yscale: Tensor, weight: Tensor,
    epsilon: float, use_model_sensitive_rmsnorm: int = 0,
) -> None:  # fmt: skip
    """`rmsnorm2d_fwd_with_add_dynamicquant`."""
    pair, sensitive = (residual_in, residual_out), use_model_sensitive_rmsnorm
    _norm(out, input, weight, epsilon, residuals=pair, scale=yscale, sensitive=sensitive)
