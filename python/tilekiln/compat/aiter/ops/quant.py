# SPDX-License-Identifier: MIT
"""aiter.ops.quant: rows quantised to int8, fp8 (e4m3) and MXFP4, with scales by row, tensor and block.

y scale is x again to half a step; scales are fp32, max |x| / 127, to fp8 / 448. All round to nearest, ties to even, the
functions of plain PyTorch upstream too. Those with an `out` write out and their scales in place. num_rows, a count on
the device, and shuffle_scale, an order of another hardware, are refused. No result has a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...._core.native import ArgumentError
from ... import _absent
from ..._modules import errors_as_upstream
from .._mx import f4_blocks, f8_blocks
from .._rows import LARGEST, divided, factors, off, quantise, rows
from .._run import run
from ..utility import dtypes
from .enum import ActivationType, QuantType

__all__ = [
    "dynamic_per_group_scaled_quant",
    "dynamic_per_group_scaled_quant_fp4",
    "dynamic_per_tensor_quant",
    "dynamic_per_token_scaled_quant",
    "get_dtype_max",
    "get_hip_quant",
    "get_torch_act",
    "get_torch_quant",
    "get_triton_quant",
    "moe_smooth_per_token_scaled_quant_v1",
    "moe_smoothquant_fwd",
    "per_1x32_f4_quant",
    "per_1x32_f4_quant_for_dot_scaled",
    "per_1x32_f4_quant_hip",
    "per_1x32_f4_quant_triton",
    "per_1x32_f8_scale_f8_quant",
    "per_1x32_i4_quant",
    "per_1x32_mx_quant_hip",
    "per_block_quant_wrapper",
    "per_group_quant_hip",
    "per_tensor_quant",
    "per_tensor_quant_hip",
    "per_tensor_quant_triton",
    "per_token_quant_hip",
    "per_token_quant_triton",
    "pertoken_quant",
    "quant_mxfp4",
    "quant_mxfp4_hip",
    "smooth_per_token_scaled_quant",
    "smoothquant_fwd",
    "static_per_tensor_quant",
]

__getattr__ = _absent.sentences(__name__)

_named = errors_as_upstream(x="input", y="out", y_scale="scales")
_of_x = errors_as_upstream(input="x", y="quant_dtype", out="quant_dtype", scales="scale")
_SWIZZLED = "it is the order in which other hardware loads scales"
_COUNTED = "all rows are quantised; hand in those that count"


@functools.lru_cache
def get_dtype_max(dtype: torch.dtype) -> float:
    """The largest number of a dtype."""
    return float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)


@errors_as_upstream(x="input", smooth_scale="x_scale", y="out", scales="y_scale")
def smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor) -> None:
    """out (..., columns), y_scale, one a row: input x_scale, fp32 (columns), quantised."""
    quantise(out, input, y_scale, smooth=x_scale.view(-1))


@errors_as_upstream(x="input", smooth_scale="x_scale", y="out", scales="y_scale")
def moe_smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor) -> None:
    """out (topk tokens, columns), y_scale (topk tokens): row i tokens + t is of input[t] x_scale[topk_ids[t][i]].

    input (tokens, columns), x_scale, fp32 (experts, columns), topk_ids, int32 (tokens, topk).
    """
    _of_experts(out, input, x_scale, topk_ids, y_scale)


def _of_experts(out: Tensor, input: Tensor, smooth: Tensor, topk_ids: Tensor, scale: Tensor) -> None:
    given = rows("input", input)
    topk, tokens = topk_ids.shape[-1], given.shape[0]
    if out.numel() != topk * given.numel() or not out.is_contiguous():
        raise ArgumentError(
            f"out: was of shape {tuple(out.shape)}, must be contiguous of {topk} x {tokens} x {given.shape[1]} elements"
        )
    y, y_scale = out.view(topk, tokens, -1), factors("y_scale", scale, topk * tokens).view(topk, tokens)
    run("moe_smoothquant", (given, smooth, topk_ids), {"y": y, "y_scale": y_scale})


@_of_x
def pertoken_quant(
    x: Tensor, scale: Tensor | None = None, x_scale: Tensor | None = None, scale_dtype: torch.dtype = torch.float32,
    quant_dtype: torch.dtype = torch.int8, dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y like x, scale (..., 1)): a scale a row, 1 for rows of zeros; or those that are given.

    x_scale: what x is multiplied by first. dtypeMax: what the largest of a row becomes,
    unless given the dtype's largest.
    """
    if scale is None and dtypeMax is None and x_scale is None and x.dtype in _ROWS:
        y, made = per_token_quant_hip(x, quant_dtype=quant_dtype)
        return y, made.masked_fill_(made == 0, 1).to(scale_dtype)
    x = x.float() if x_scale is None else x.float() * x_scale
    if scale is None:
        scale = x.abs().amax(-1, keepdim=True) / (get_dtype_max(quant_dtype) if dtypeMax is None else dtypeMax)
        scale = scale.masked_fill(scale == 0, 1)
    return divided(x, scale, quant_dtype), scale.to(scale_dtype)


_ROWS = (torch.float32, torch.float16, torch.bfloat16)


@_of_x
def per_tensor_quant(
    x: Tensor, scale: Tensor | None = None, scale_dtype: torch.dtype = torch.float32, quant_dtype: torch.dtype =
    torch.int8, dtypeMax: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y like x, scale (1)): one scale for all, or the one that is given."""
    if scale is None:
        scale = x.abs().max().float() / (get_dtype_max(quant_dtype) if dtypeMax is None else dtypeMax)
    return divided(x, scale, quant_dtype), scale.view(1).to(scale_dtype)


def per_block_quant_wrapper(block_shape: tuple[int, int] = (1, 128)) -> Callable[..., Any]:
    """Decorator: a function of rows, (x, scale, quant_dtype) -> (y, scale), taken by blocks of 1 x n of a matrix."""
    height, width = block_shape

    def decorator(per_token_quant_func: Callable[..., Any]) -> Callable[..., Any]:
        @errors_as_upstream()
        def wrapper(
            x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8
        ) -> tuple[Tensor, Tensor]:
            if height != 1:
                raise ArgumentError(
                    f"block_shape: was {block_shape}, must be (1, n): blocks of several rows have no kernel"
                )
            y, made = per_token_quant_func(rows("x", x, width), scale=scale, quant_dtype=quant_dtype)
            return y.view(x.shape), made.view(*x.shape[:-1], x.shape[-1] // width)

        return wrapper

    return decorator


@_of_x
def per_token_quant_hip(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8, num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y like x, scale (..., 1)): a scale a row, 0 for rows of zeros."""
    off("scale", scale, "scales are made; static_per_tensor_quant takes one")
    off("num_rows", num_rows, _COUNTED)
    y = _like(x, quant_dtype)
    made = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    quantise(y, x, made)
    return y, made


def _like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for x quantised."""
    if dtype not in LARGEST:
        raise ArgumentError(f"quant_dtype: was {dtype}, must be one of {', '.join(map(str, LARGEST))}")
    return torch.empty(x.shape, dtype=dtype, device=x.device)


@_of_x
def per_token_quant_triton(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """`per_token_quant_hip`."""
    made: tuple[Tensor, Tensor] = per_token_quant_hip(x, scale, quant_dtype)
    return made


@_of_x
def per_group_quant_hip(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8, group_size: int = 128,
    transpose_scale: bool = False, num_rows: Tensor | None = None, num_rows_factor: int = 1, scale_type: torch.dtype =
    torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(y like x, scale (..., columns / group_size)): a scale for each group_size columns.

    transpose_scale: the memory of scale is that of its transpose, its shape stays.
    scale_type float8_e8m0fnu: scales are powers of two, of fp8.
    """
    off("scale", scale, "scales are made")
    off("num_rows", num_rows, _COUNTED)
    if scale_type != torch.float32:
        off("transpose_scale", transpose_scale, _SWIZZLED)
        return f8_blocks(x, group_size, quant_dtype, scale_type)
    y, shape = _like(x, quant_dtype), (*x.shape[:-1], x.shape[-1] // group_size)
    made = torch.empty(shape, dtype=torch.float32, device=x.device)
    quantise(y, x, made, group_size)
    return y, made.view(-1, shape[-1]).t().contiguous().view(shape) if transpose_scale else made


@_of_x
def per_tensor_quant_hip(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8, num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`per_tensor_quant` with a scale in fp32."""
    off("num_rows", num_rows, _COUNTED)
    made: tuple[Tensor, Tensor] = per_tensor_quant(x, scale, quant_dtype=quant_dtype)
    return made


@_of_x
def per_tensor_quant_triton(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """`per_tensor_quant_hip`, y of (rows, columns)."""
    made: tuple[Tensor, Tensor] = per_tensor_quant(x, scale, quant_dtype=quant_dtype)
    return made


@_of_x
def per_1x32_f4_quant(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False, pack_dim:
    int = -1, round_mode: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """MXFP4 of x (..., n): (float4_e2m1fn_x2 (..., n / 2), the even element low, float8_e8m0fnu (rows, n / 32)).

    pack_dim 0: of x (k, n) along k: (k / 2, n) and (k / 32, n). round_mode of a scale: 0 is 2^floor(log2 max) / 4,
    1 the least power of two of max / 6 and above, 3 2^ceil(log2 max) / 4.
    """
    off("scale", scale, "scales are made")
    off("shuffle", shuffle, _SWIZZLED)
    if quant_dtype != dtypes.fp4x2 or pack_dim not in (-1, 0) or (pack_dim == 0 and x.dim() != 2):
        raise ArgumentError(
            f"quant_dtype, pack_dim: were {quant_dtype}, {pack_dim}, must be {dtypes.fp4x2}, -1 or, of a matrix, 0"
        )
    if pack_dim == -1:
        return f4_blocks(x, round_mode)
    y, made = f4_blocks(x.t().contiguous(), round_mode)
    bytes_, exponents = y.view(torch.uint8).t().contiguous(), made.view(torch.uint8).t().contiguous()
    return bytes_.view(y.dtype), exponents.view(made.dtype)


def per_1x32_f4_quant_for_dot_scaled(
    lhs: Tensor, rhs: Tensor, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False, round_mode: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """lhs (m, k) packed along k, its scales, rhs (k, n) packed along k, its scales: see `per_1x32_f4_quant`."""
    left = per_1x32_f4_quant(lhs, None, quant_dtype, shuffle, -1, round_mode)
    right = per_1x32_f4_quant(rhs, None, quant_dtype, shuffle, 0, round_mode)
    return (*left, *right)


@_of_x
def per_1x32_mx_quant_hip(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False, num_rows:
    Tensor | None = None, num_rows_factor: int = 1, scale_type: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """MXFP4, or with quant_dtype fp8 blocks of 32 of that, whose scales are scale_type: fp32 unless float8_e8m0fnu."""
    off("scale", scale, "scales are made")
    off("num_rows", num_rows, _COUNTED)
    off("shuffle", shuffle, _SWIZZLED)
    if quant_dtype == dtypes.fp4x2:
        return f4_blocks(x, 1)
    made: tuple[Tensor, Tensor] = per_group_quant_hip(
        x, quant_dtype=quant_dtype, group_size=32, scale_type=scale_type or torch.float32
    )
    return made


@_of_x
def per_1x32_f4_quant_hip(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False, num_rows:
    Tensor | None = None, num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`per_1x32_f4_quant`."""
    off("num_rows", num_rows, _COUNTED)
    made: tuple[Tensor, Tensor] = per_1x32_f4_quant(x, scale, quant_dtype, shuffle)
    return made


@_of_x
def per_1x32_f4_quant_triton(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = dtypes.fp4x2, shuffle: bool = False
) -> tuple[Tensor, Tensor]:
    """`per_1x32_f4_quant`."""
    made: tuple[Tensor, Tensor] = per_1x32_f4_quant(x, scale, quant_dtype, shuffle)
    return made


@_of_x
def quant_mxfp4_hip(
    x: Tensor, group_size: int = 32, round_mode: int = 1, e8m0_shuffle: bool = False, a16w4_shuffle: bool = False,
    gate_up: bool = False, shuffle_weight: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`per_1x32_f4_quant`; group_size is 32."""
    if group_size != 32:
        raise ArgumentError(f"group_size: was {group_size}, must be 32, that of MXFP4")
    for name, value in (("e8m0_shuffle", e8m0_shuffle), ("a16w4_shuffle", a16w4_shuffle)):
        off(name, value, _SWIZZLED)
    for name, value in (("gate_up", gate_up), ("shuffle_weight", shuffle_weight)):
        off(name, value, "it is the order in which other hardware loads weights")
    return f4_blocks(x, round_mode)


@_of_x
def per_1x32_f8_scale_f8_quant(
    x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.float8_e4m3fn, scale_type: torch.dtype =
    torch.float32, shuffle: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """fp8 by blocks of 32 of x (..., n): (y like x, scale (rows, n / 32)), scales of fp32 max / 256."""
    off("scale", scale, "scales are made")
    off("shuffle", shuffle, _SWIZZLED)
    if scale_type != torch.float32:
        return f8_blocks(x, 32, quant_dtype, scale_type)
    blocks = rows("x", x, 32)
    made = blocks.abs().amax(-1, keepdim=True).float() / 256
    y = divided(blocks, made.masked_fill(made == 0, 1), quant_dtype)
    return y.view(x.shape), made.view(-1, x.shape[-1] // 32)


@errors_as_upstream()
def per_1x32_i4_quant(weight: Tensor, group_size: int = 32) -> tuple[Tensor, Tensor]:
    """(int8 like weight (..., n, k) of -7 to 7, bf16 (..., k / group_size, n)): a scale for each group along k."""
    groups = rows("weight", weight, group_size).view(*weight.shape[:-1], -1, group_size)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 7
    y = (groups / scale).round().clamp(-7, 7).to(torch.int8)
    return y.view(weight.shape), scale.squeeze(-1).mT.contiguous().bfloat16()


def _none(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
    return x, None


def _kind(kind: QuantType, known: dict[QuantType, Callable[..., Any]]) -> Callable[..., Any]:
    """The function of a kind; NotImplementedError names those that there are."""
    found = known.get(kind)
    if found is None:
        names = ", ".join(one.name for one in known)
        raise NotImplementedError(f"qType: was {kind!r}, must be one of {names}")
    return found


@functools.lru_cache
def get_torch_quant(qType: QuantType) -> Callable[..., Any]:
    """The function that quantises by a kind, of (x, scale, quant_dtype)."""
    return _kind(
        qType,
        {
            QuantType.No: _none,
            QuantType.per_Tensor: per_tensor_quant,
            QuantType.per_Token: pertoken_quant,
            QuantType.per_1x32: per_1x32_f4_quant,
            QuantType.per_1x128: per_block_quant_wrapper((1, 128))(pertoken_quant),
        },
    )


@functools.lru_cache
def get_hip_quant(qType: QuantType) -> Callable[..., Any]:
    """The function that quantises by a kind, of (x, scale, quant_dtype)."""
    return _kind(
        qType,
        {
            QuantType.No: _none,
            QuantType.per_Tensor: per_tensor_quant_hip,
            QuantType.per_Token: per_token_quant_hip,
            QuantType.per_1x32: per_1x32_mx_quant_hip,
            QuantType.per_1x128: functools.partial(per_group_quant_hip, group_size=128),
        },
    )


@functools.lru_cache
def get_triton_quant(qType: QuantType) -> Callable[..., Any]:
    """The function that quantises by a kind, of (x, scale, quant_dtype)."""
    return _kind(
        qType,
        {
            QuantType.No: _none,
            QuantType.per_Tensor: per_tensor_quant_triton,
            QuantType.per_Token: per_token_quant_triton,
            QuantType.per_1x32: per_1x32_f4_quant_triton,
            QuantType.per_1x128: per_block_quant_wrapper((1, 128))(per_token_quant_triton),
        },
    )


@functools.lru_cache
def get_torch_act(aType: ActivationType) -> Callable[..., Any]:
    """PyTorch's function of an activation; NotImplementedError names those that there are."""
    known: dict[ActivationType, Callable[..., Any]] = {
        ActivationType.No: lambda x, *_, **__: x,
        ActivationType.Silu: torch.nn.functional.silu,
        ActivationType.Gelu: torch.nn.functional.gelu,
    }
    if aType not in known:
        raise NotImplementedError(f"aType: was {aType!r}, must be one of {', '.join(one.name for one in known)}")
    return known[aType]


@errors_as_upstream(quant_dtype="out")
def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = input / scale, fp32 (1)."""
    out.copy_(divided(input, scale, out.dtype))


@errors_as_upstream(quant_dtype="out")
def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = input / scale, and scale, fp32 (1), of the largest of input."""
    factors("scale", scale, 1).copy_(input.abs().max().float() / get_dtype_max(out.dtype))
    out.copy_(divided(input, scale, out.dtype))


@_named
def dynamic_per_token_scaled_quant(
    out: Tensor, input: Tensor, scales: Tensor, scale_ub: Tensor | None = None, shuffle_scale: bool = False, num_rows:
    Tensor | None = None, num_rows_factor: int = 1,
) -> None:  # fmt: skip
    """out and scales, one a row of input (..., columns)."""
    off("scale_ub", scale_ub, "scales are those of the rows")
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    off("num_rows", num_rows, _COUNTED)
    quantise(out, input, scales)


@_named
def dynamic_per_group_scaled_quant(
    out: Tensor, input: Tensor, scales: Tensor, group_size: int = 32, shuffle_scale: bool = True, num_rows: Tensor |
    None = None, num_rows_factor: int = 1,
) -> None:  # fmt: skip
    """out, int8 or fp8, and scales, one for each group_size columns; shuffle_scale has to be False."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    off("num_rows", num_rows, _COUNTED)
    quantise(out, input, scales, group_size)


@_named
def smooth_per_token_scaled_quant(
    out: Tensor, input: Tensor, scales: Tensor, smooth_scale: Tensor, smooth_scale_map: Tensor | None = None,
    shuffle_scale: bool = False, num_rows: Tensor | None = None, num_rows_factor: int = 1, smooth_scale_map_hash:
    Tensor | None = None, enable_ps: bool = True,
) -> None:  # fmt: skip
    """out and scales, one a row of input smooth_scale, fp32 (columns).

    smooth_scale_map, int32 (rows): the row of smooth_scale (experts, columns) of each row.
    """
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    off("num_rows", num_rows, _COUNTED)
    off("smooth_scale_map_hash", smooth_scale_map_hash, "smooth_scale_map says the same")
    if smooth_scale_map is None:
        quantise(out, input, scales, smooth=smooth_scale.view(-1))
    else:
        _of_experts(out, input, smooth_scale, smooth_scale_map.view(-1, 1), scales)


@_named
def moe_smooth_per_token_scaled_quant_v1(
    out: Tensor, input: Tensor, scales: Tensor, smooth_scale: Tensor, smooth_scale_map: Tensor, shuffle_scale: bool =
    False, smooth_scale_map_hash: Tensor | None = None, transpose_out: bool = False,
) -> None:  # fmt: skip
    """`moe_smoothquant_fwd`: smooth_scale_map is topk_ids."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    off("smooth_scale_map_hash", smooth_scale_map_hash, "smooth_scale_map says the same")
    off("transpose_out", transpose_out, "out is (topk, tokens, columns)")
    _of_experts(out, input, smooth_scale, smooth_scale_map, scales)


def _write_f4(out: Tensor, scales: Tensor, made: tuple[Tensor, Tensor]) -> None:
    """MXFP4 into out and scales of their bytes, whatever their dtypes of one byte are."""
    for place, part in ((out, made[0]), (scales, made[1])):
        place.view(torch.uint8).copy_(part.view(torch.uint8).view(place.shape))


@_named
def dynamic_per_group_scaled_quant_fp4(
    out: Tensor, input: Tensor, scales: Tensor, group_size: int = 32, shuffle_scale: bool = True,
    num_rows: Tensor | None = None, num_rows_factor: int = 1,
) -> None:  # fmt: skip
    """out, scales: `per_1x32_f4_quant`, written; group_size has to be 32, shuffle_scale False."""
    off("shuffle_scale", shuffle_scale, _SWIZZLED)
    off("num_rows", num_rows, _COUNTED)
    _write_f4(out, scales, quant_mxfp4_hip(input, group_size))


@errors_as_upstream(x="inp")
def quant_mxfp4(
    inp: Tensor, out_packed: Tensor, out_scale: Tensor, group_size: int = 32, round_mode: int = 0,
    e8m0_shuffle: bool = False, a16w4_shuffle: bool = False, gate_up: bool = False, shuffle_weight: bool = False,
) -> None:  # fmt: skip
    """out_packed, out_scale: `quant_mxfp4_hip`, written."""
    made = quant_mxfp4_hip(inp, group_size, round_mode, e8m0_shuffle, a16w4_shuffle, gate_up, shuffle_weight)
    _write_f4(out_packed, out_scale, made)
