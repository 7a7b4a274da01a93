# SPDX-License-Identifier: MIT
"""aiter.ops.rope: rotary embedding of one tensor or two (2c), by angles, tables, positions, sequences and images.

input and output (s, b, h, d), fp32, fp16 or bf16; output may be input. freqs, cos, sin (rows, 1, 1, w), with
reuse_freqs_front_part w = rotary_dim / 2, else w = rotary_dim, each of a pair with an angle of its own; cos and sin of
input's dtype or fp32. The row of a token is its place in the sequence, or its position. rotate_style 0 (NeoX): pairs
are (i, i + rotary_dim / 2), 1 (GPT-J): (2i, 2i + 1). The first rotary_dim elements of a head are turned, with
nope_first the last; the others are copied. transpose_output: what is made lies in memory as (b, s, h, d).
Names with bwd are the gradients: pairs are turned the other way round. RoPE and its like are autograd functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._modules import errors_as_upstream
from .._rope_placed import (
    rope_2d_bwd,
    rope_2d_bwd_impl,
    rope_2d_fwd,
    rope_2d_fwd_impl,
    rope_2d_fwd_inplace,
    rope_cached_positions_2c_fwd,
    rope_cached_positions_2c_fwd_impl,
    rope_cached_positions_2c_fwd_inplace,
    rope_cached_positions_fwd,
    rope_cached_positions_fwd_impl,
    rope_cached_positions_fwd_inplace,
    rope_cached_positions_offsets_2c_fwd,
    rope_cached_positions_offsets_2c_fwd_impl,
    rope_cached_positions_offsets_2c_fwd_inplace,
    rope_cached_positions_offsets_fwd,
    rope_cached_positions_offsets_fwd_impl,
    rope_cached_positions_offsets_fwd_inplace,
    rope_thd_bwd,
    rope_thd_bwd_impl,
    rope_thd_fwd,
    rope_thd_fwd_impl,
    rope_thd_fwd_inplace,
)
from .._rotary import Turn, like, of_angles, of_tables, turn

__all__ = [
    "RoPE",
    "RoPE2D",
    "RoPECached",
    "RoPETHD",
    "rope_2c_bwd",
    "rope_2c_bwd_impl",
    "rope_2c_fwd",
    "rope_2c_fwd_impl",
    "rope_2c_fwd_inplace",
    "rope_2d_bwd",
    "rope_2d_bwd_impl",
    "rope_2d_fwd",
    "rope_2d_fwd_impl",
    "rope_2d_fwd_inplace",
    "rope_bwd",
    "rope_bwd_impl",
    "rope_cached_2c_bwd",
    "rope_cached_2c_bwd_impl",
    "rope_cached_2c_fwd",
    "rope_cached_2c_fwd_impl",
    "rope_cached_2c_fwd_inplace",
    "rope_cached_bwd",
    "rope_cached_bwd_impl",
    "rope_cached_fwd",
    "rope_cached_fwd_impl",
    "rope_cached_fwd_inplace",
    "rope_cached_positions_2c_fwd",
    "rope_cached_positions_2c_fwd_impl",
    "rope_cached_positions_2c_fwd_inplace",
    "rope_cached_positions_fwd",
    "rope_cached_positions_fwd_impl",
    "rope_cached_positions_fwd_inplace",
    "rope_cached_positions_offsets_2c_fwd",
    "rope_cached_positions_offsets_2c_fwd_impl",
    "rope_cached_positions_offsets_2c_fwd_inplace",
    "rope_cached_positions_offsets_fwd",
    "rope_cached_positions_offsets_fwd_impl",
    "rope_cached_positions_offsets_fwd_inplace",
    "rope_fwd",
    "rope_fwd_impl",
    "rope_fwd_inplace",
    "rope_thd_bwd",
    "rope_thd_bwd_impl",
    "rope_thd_fwd",
    "rope_thd_fwd_impl",
    "rope_thd_fwd_inplace",
]

_named = errors_as_upstream(x="input", y="output")


@_named
def rope_fwd_impl(
    output: Tensor, input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """output: input turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how)


@_named
def rope_fwd(
    input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
    transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_fwd_impl` into a new tensor."""
    made = like(input, transpose_output)
    rope_fwd_impl(made, input, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_fwd_inplace(
    input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """`rope_fwd_impl` in place."""
    rope_fwd_impl(input, input, freqs, rotate_style, reuse_freqs_front_part, nope_first)


@_named
def rope_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """input_grads: output_grads turned by the angles freqs, the other way round."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads.transpose(0, 1), output_grads.transpose(0, 1), tables, how)


@_named
def rope_bwd(
    output_grads: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
    transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_bwd_impl` into a new tensor."""
    made = like(output_grads, transpose_output)
    rope_bwd_impl(made, output_grads, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, freqs: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how)
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how)


@_named
def rope_2c_fwd(
    input_x: Tensor, input_y: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first:
    bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_2c_fwd_impl` into new tensors."""
    made = like(input_x, transpose_output), like(input_y, transpose_output)
    rope_2c_fwd_impl(*made, input_x, input_y, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_2c_fwd_inplace(
    input_x: Tensor, input_y: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """`rope_2c_fwd_impl` in place."""
    rope_2c_fwd_impl(input_x, input_y, input_x, input_y, freqs, rotate_style, reuse_freqs_front_part, nope_first)


@_named
def rope_2c_bwd_impl(
    input_grads_x: Tensor, input_grads_y: Tensor, output_grads_x: Tensor, output_grads_y: Tensor, freqs: Tensor,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads_x and input_grads_y: both turned back by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads_x.transpose(0, 1), output_grads_x.transpose(0, 1), tables, how)
    turn(input_grads_y.transpose(0, 1), output_grads_y.transpose(0, 1), tables, how)


@_named
def rope_2c_bwd(
    output_grads_x: Tensor, output_grads_y: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_2c_bwd_impl` into new tensors."""
    made = like(output_grads_x, transpose_output), like(output_grads_y, transpose_output)
    rope_2c_bwd_impl(*made, output_grads_x, output_grads_y, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_cached_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by the tables cos and sin."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how)


@_named
def rope_cached_fwd(
    input: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
    transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_cached_fwd_impl` into a new tensor."""
    made = like(input, transpose_output)
    rope_cached_fwd_impl(made, input, cos, sin, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_cached_fwd_inplace(
    input: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """`rope_cached_fwd_impl` in place."""
    rope_cached_fwd_impl(input, input, cos, sin, rotate_style, reuse_freqs_front_part, nope_first)


@_named
def rope_cached_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part:
    bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads: output_grads turned by the tables cos and sin, the other way round."""
    tables, how = (
        of_tables(cos, sin, reuse_freqs_front_part, rotate_style),
        Turn(rotate_style, nope_first, backward=True),
    )
    turn(input_grads.transpose(0, 1), output_grads.transpose(0, 1), tables, how)


@_named
def rope_cached_bwd(
    output_grads: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
    transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_cached_bwd_impl` into a new tensor."""
    made = like(output_grads, transpose_output)
    rope_cached_bwd_impl(made, output_grads, cos, sin, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_cached_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the tables cos and sin."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how)
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how)


@_named
def rope_cached_2c_fwd(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_cached_2c_fwd_impl` into new tensors."""
    made = like(input_x, transpose_output), like(input_y, transpose_output)
    rope_cached_2c_fwd_impl(*made, input_x, input_y, cos, sin, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_cached_2c_fwd_inplace(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """`rope_cached_2c_fwd_impl` in place."""
    rope_cached_2c_fwd_impl(
        input_x, input_y, input_x, input_y, cos, sin, rotate_style, reuse_freqs_front_part, nope_first
    )


@_named
def rope_cached_2c_bwd_impl(
    input_grads_x: Tensor, input_grads_y: Tensor, output_grads_x: Tensor, output_grads_y: Tensor, cos: Tensor, sin:
    Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads_x and input_grads_y: both turned back by the tables cos and sin."""
    tables, how = (
        of_tables(cos, sin, reuse_freqs_front_part, rotate_style),
        Turn(rotate_style, nope_first, backward=True),
    )
    turn(input_grads_x.transpose(0, 1), output_grads_x.transpose(0, 1), tables, how)
    turn(input_grads_y.transpose(0, 1), output_grads_y.transpose(0, 1), tables, how)


@_named
def rope_cached_2c_bwd(
    output_grads_x: Tensor, output_grads_y: Tensor, cos: Tensor, sin: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_cached_2c_bwd_impl` into new tensors."""
    made = like(output_grads_x, transpose_output), like(output_grads_y, transpose_output)
    rope_cached_2c_bwd_impl(
        *made, output_grads_x, output_grads_y, cos, sin, rotate_style, reuse_freqs_front_part, nope_first
    )
    return made


class RoPE(torch.autograd.Function):
    """`rope_fwd` with its gradient: RoPE.apply(x, freqs, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
        transpose_output: bool = False,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(freqs)
        ctx.how = rotate_style, reuse_freqs_front_part, nope_first, transpose_output
        made: Tensor = rope_fwd(x, freqs, *ctx.how)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        return rope_bwd(dout, *ctx.saved_tensors, *ctx.how), *[None] * 5


class RoPECached(torch.autograd.Function):
    """`rope_cached_fwd` with its gradient: RoPECached.apply(x, cos, sin, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
        nope_first: bool, transpose_output: bool = False,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(cos, sin)
        ctx.how = rotate_style, reuse_freqs_front_part, nope_first, transpose_output
        made: Tensor = rope_cached_fwd(x, cos, sin, *ctx.how)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        return rope_cached_bwd(dout, *ctx.saved_tensors, *ctx.how), *[None] * 6


class RoPETHD(torch.autograd.Function):
    """`rope_thd_fwd` with its gradient: RoPETHD.apply(x, cu_seqlens, freqs, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
        nope_first: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(cu_seqlens, freqs)
        ctx.how = rotate_style, reuse_freqs_front_part, nope_first
        made: Tensor = rope_thd_fwd(x, cu_seqlens, freqs, *ctx.how)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        return rope_thd_bwd(dout, *ctx.saved_tensors, *ctx.how), *[None] * 5


class RoPE2D(torch.autograd.Function):
    """`rope_2d_fwd` with its gradient: RoPE2D.apply(x, cos_height, sin_height, cos_width, sin_width, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos_height: Tensor, sin_height: Tensor, cos_width: Tensor, sin_width: Tensor,
        img_height: int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(cos_height, sin_height, cos_width, sin_width)
        ctx.how = img_height, img_width, rotate_style, reuse_freqs_front_part, nope_first
        made: Tensor = rope_2d_fwd(x, cos_height, sin_height, cos_width, sin_width, *ctx.how)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> Any:
        return rope_2d_bwd(dout, *ctx.saved_tensors, *ctx.how), *[None] * 9
