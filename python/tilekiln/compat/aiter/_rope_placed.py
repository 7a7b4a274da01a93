# SPDX-License-Identifier: MIT
"""aiter's rotary embedding of tokens that are not rows in order: positions, packed sequences, images.

Arguments are those of `ops.rope`, which has these functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._modules import errors_as_upstream
from ._rotary import Turn, like, of_angles, of_image, of_sequences, of_tables, turn

_named = errors_as_upstream(x="input", y="output")


@_named
def rope_cached_positions_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by rows positions (s, b) of the tables."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how, positions.t())


@_named
def rope_cached_positions_fwd(
    input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool, transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_cached_positions_fwd_impl` into a new tensor."""
    made = like(input, transpose_output)
    rope_cached_positions_fwd_impl(made, input, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_cached_positions_fwd_inplace(
    input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """`rope_cached_positions_fwd_impl` in place."""
    rope_cached_positions_fwd_impl(input, input, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first)


@_named
def rope_cached_positions_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by rows positions (s, b) of the tables."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how, positions.t())
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how, positions.t())


@_named
def rope_cached_positions_2c_fwd(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_cached_positions_2c_fwd_impl` into new tensors."""
    made = like(input_x, transpose_output), like(input_y, transpose_output)
    rope_cached_positions_2c_fwd_impl(
        *made, input_x, input_y, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first
    )
    return made


@_named
def rope_cached_positions_2c_fwd_inplace(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """`rope_cached_positions_2c_fwd_impl` in place."""
    rope_cached_positions_2c_fwd_impl(
        input_x, input_y, input_x, input_y, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first
    )


@_named
def rope_cached_positions_offsets_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by the rows positions + offsets, each (s, b)."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how, (positions + offsets).t())


@_named
def rope_cached_positions_offsets_fwd(
    input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False,
) -> Tensor:  # fmt: skip
    """`rope_cached_positions_offsets_fwd_impl` into a new tensor."""
    made = like(input, transpose_output)
    rope_cached_positions_offsets_fwd_impl(
        made, input, cos, sin, positions, offsets, rotate_style, reuse_freqs_front_part, nope_first
    )
    return made


@_named
def rope_cached_positions_offsets_fwd_inplace(
    input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """`rope_cached_positions_offsets_fwd_impl` in place."""
    rope_cached_positions_offsets_fwd_impl(
        input, input, cos, sin, positions, offsets, rotate_style, reuse_freqs_front_part, nope_first
    )


@_named
def rope_cached_positions_offsets_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor,
    offsets: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the rows positions + offsets, each (s, b)."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how, (positions + offsets).t())
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how, (positions + offsets).t())


@_named
def rope_cached_positions_offsets_2c_fwd(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`rope_cached_positions_offsets_2c_fwd_impl` into new tensors."""
    made = like(input_x, transpose_output), like(input_y, transpose_output)
    rope_cached_positions_offsets_2c_fwd_impl(
        *made, input_x, input_y, cos, sin, positions, offsets, rotate_style, reuse_freqs_front_part, nope_first
    )
    return made


@_named
def rope_cached_positions_offsets_2c_fwd_inplace(
    input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """`rope_cached_positions_offsets_2c_fwd_impl` in place."""
    rope_cached_positions_offsets_2c_fwd_impl(
        input_x,
        input_y,
        input_x,
        input_y,
        cos,
        sin,
        positions,
        offsets,
        rotate_style,
        reuse_freqs_front_part,
        nope_first,
    )


@_named
def rope_thd_fwd_impl(
    output: Tensor, input: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """output (t, h, d): input of sequences that begin at cu_seqlens, turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output[None], input[None], tables, how, of_sequences(cu_seqlens, input.shape[0])[None])


@_named
def rope_thd_fwd(
    input: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> Tensor:
    """`rope_thd_fwd_impl` into a new tensor."""
    made = torch.empty_like(input, requires_grad=False)
    rope_thd_fwd_impl(made, input, cu_seqlens, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_thd_fwd_inplace(
    input: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """`rope_thd_fwd_impl` in place."""
    rope_thd_fwd_impl(input, input, cu_seqlens, freqs, rotate_style, reuse_freqs_front_part, nope_first)


@_named
def rope_2d_fwd_impl(
    output: Tensor, input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor, img_height: int,
    img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output (b, height width, h, d): the first half of each head of input by its row, the second by its column."""
    how = Turn(rotate_style, nope_first)
    both = of_image(input, img_height, img_width)
    for half, (cos, sin) in enumerate(((cos_h, sin_h), (cos_w, sin_w))):
        tables = of_tables(cos, sin, reuse_freqs_front_part, rotate_style)
        turn(output.chunk(2, -1)[half], input.chunk(2, -1)[half], tables, how, both[half])


@_named
def rope_2d_fwd(
    input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor, img_height: int, img_width: int,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> Tensor:  # fmt: skip
    """`rope_2d_fwd_impl` into a new tensor."""
    made = torch.empty_like(input, requires_grad=False)
    rope_2d_fwd_impl(
        made, input, cos_h, sin_h, cos_w, sin_w, img_height, img_width, rotate_style, reuse_freqs_front_part, nope_first
    )
    return made


@_named
def rope_2d_fwd_inplace(
    input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor, img_height: int, img_width: int,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """`rope_2d_fwd_impl` in place."""
    rope_2d_fwd_impl(
        input,
        input,
        cos_h,
        sin_h,
        cos_w,
        sin_w,
        img_height,
        img_width,
        rotate_style,
        reuse_freqs_front_part,
        nope_first,
    )


@_named
def rope_thd_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads (t, h, d): output_grads of sequences that begin at cu_seqlens, turned back by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads[None], output_grads[None], tables, how, of_sequences(cu_seqlens, output_grads.shape[0])[None])


@_named
def rope_thd_bwd(
    output_grads: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> Tensor:  # fmt: skip
    """`rope_thd_bwd_impl` into a new tensor."""
    made = torch.empty_like(output_grads, requires_grad=False)
    rope_thd_bwd_impl(made, output_grads, cu_seqlens, freqs, rotate_style, reuse_freqs_front_part, nope_first)
    return made


@_named
def rope_2d_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor, img_height:
    int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads (b, height width, h, d): the first half of each head by its row, the other by its column, back."""
    how = Turn(rotate_style, nope_first, backward=True)
    both = of_image(output_grads, img_height, img_width)
    for half, (cos, sin) in enumerate(((cos_h, sin_h), (cos_w, sin_w))):
        tables = of_tables(cos, sin, reuse_freqs_front_part, rotate_style)
        turn(input_grads.chunk(2, -1)[half], output_grads.chunk(2, -1)[half], tables, how, both[half])


@_named
def rope_2d_bwd(
    output_grads: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor, img_height: int, img_width: int,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> Tensor:  # fmt: skip
    """`rope_2d_bwd_impl` into a new tensor."""
    made = torch.empty_like(output_grads, requires_grad=False)
    rope_2d_bwd_impl(
        made,
        output_grads,
        cos_h,
        sin_h,
        cos_w,
        sin_w,
        img_height,
        img_width,
        rotate_style,
        reuse_freqs_front_part,
        nope_first,
    )
    return made
