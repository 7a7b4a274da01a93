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

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._modules import errors_as_upstream
from .._rotary import Turn, like, of_angles, of_image, of_sequences, of_tables, turn

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


def _derived(impl: Callable[..., None], name: str, about: str, transposes: bool, run: Callable[..., Any]) -> Any:
    """run(inputs, transpose_output, all arguments) as a function of the arguments of `impl`, its outputs apart."""
    outputs, usual = 2 if "_2c_" in name else 1, "transpose_output"
    parameters = [*inspect.signature(impl).parameters.values()][outputs:]
    if transposes:
        more = inspect.Parameter(usual, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False)
        parameters.append(more.replace(annotation="bool"))
    signature, names = inspect.Signature(parameters), [one.name for one in parameters]

    def function(*given: Any, **named: Any) -> Any:
        if named or len(given) != len(names):
            rest = names[len(given) :]
            lacks = any(word not in named for word in rest if word != usual)
            if lacks or len(given) > len(names) or any(word not in rest for word in named):
                signature.bind(*given, **named)  # which says what is wrong
            given = (*given, *[named.get(word, False) for word in rest])
        *arguments, transpose_output = given if transposes else (*given, False)
        return run(arguments[:outputs], transpose_output, arguments)

    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{impl.__name__}` {about}."
    return _named(function)


def _into_new(impl: Callable[..., None], transposes: bool = True) -> Any:
    """The function of `impl` that gives new tensors; transposes: it takes transpose_output."""
    name = impl.__name__.removesuffix("_impl")

    def run(inputs: Any, transpose_output: bool, given: Any) -> Any:
        made = tuple(like(one, transpose_output) for one in inputs)
        impl(*made, *given)
        return made if len(made) > 1 else made[0]

    return _derived(impl, name, f"into {'new tensors' if '_2c_' in name else 'a new tensor'}", transposes, run)


def _in_place(impl: Callable[..., None]) -> Any:
    """The function of `impl` that writes where it reads."""
    name = impl.__name__.replace("_impl", "_inplace")
    return _derived(impl, name, "in place", False, lambda inputs, _, given: impl(*inputs, *given))


@_named
def rope_fwd_impl(
    output: Tensor, input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """output: input turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how)


rope_fwd = _into_new(rope_fwd_impl)
rope_fwd_inplace = _in_place(rope_fwd_impl)


@_named
def rope_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """input_grads: output_grads turned by the angles freqs, the other way round."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads.transpose(0, 1), output_grads.transpose(0, 1), tables, how)


rope_bwd = _into_new(rope_bwd_impl)


@_named
def rope_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, freqs: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how)
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how)


rope_2c_fwd = _into_new(rope_2c_fwd_impl)
rope_2c_fwd_inplace = _in_place(rope_2c_fwd_impl)


@_named
def rope_2c_bwd_impl(
    input_grads_x: Tensor, input_grads_y: Tensor, output_grads_x: Tensor, output_grads_y: Tensor, freqs: Tensor,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads_x and input_grads_y: both turned back by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads_x.transpose(0, 1), output_grads_x.transpose(0, 1), tables, how)
    turn(input_grads_y.transpose(0, 1), output_grads_y.transpose(0, 1), tables, how)


rope_2c_bwd = _into_new(rope_2c_bwd_impl)


@_named
def rope_cached_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by the tables cos and sin."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how)


rope_cached_fwd = _into_new(rope_cached_fwd_impl)
rope_cached_fwd_inplace = _in_place(rope_cached_fwd_impl)


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


rope_cached_bwd = _into_new(rope_cached_bwd_impl)


@_named
def rope_cached_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the tables cos and sin."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how)
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how)


rope_cached_2c_fwd = _into_new(rope_cached_2c_fwd_impl)
rope_cached_2c_fwd_inplace = _in_place(rope_cached_2c_fwd_impl)


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


rope_cached_2c_bwd = _into_new(rope_cached_2c_bwd_impl)


@_named
def rope_cached_positions_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by rows positions (s, b) of the tables."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how, positions.t())


rope_cached_positions_fwd = _into_new(rope_cached_positions_fwd_impl)
rope_cached_positions_fwd_inplace = _in_place(rope_cached_positions_fwd_impl)


@_named
def rope_cached_positions_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor,
    rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by rows positions (s, b) of the tables."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how, positions.t())
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how, positions.t())


rope_cached_positions_2c_fwd = _into_new(rope_cached_positions_2c_fwd_impl)
rope_cached_positions_2c_fwd_inplace = _in_place(rope_cached_positions_2c_fwd_impl)


@_named
def rope_cached_positions_offsets_fwd_impl(
    output: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output: input turned by the rows positions + offsets, each (s, b)."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output.transpose(0, 1), input.transpose(0, 1), tables, how, (positions + offsets).t())


rope_cached_positions_offsets_fwd = _into_new(rope_cached_positions_offsets_fwd_impl)
rope_cached_positions_offsets_fwd_inplace = _in_place(rope_cached_positions_offsets_fwd_impl)


@_named
def rope_cached_positions_offsets_2c_fwd_impl(
    output_x: Tensor, output_y: Tensor, input_x: Tensor, input_y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor,
    offsets: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """output_x and output_y: both turned by the rows positions + offsets, each (s, b)."""
    tables, how = of_tables(cos, sin, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output_x.transpose(0, 1), input_x.transpose(0, 1), tables, how, (positions + offsets).t())
    turn(output_y.transpose(0, 1), input_y.transpose(0, 1), tables, how, (positions + offsets).t())


rope_cached_positions_offsets_2c_fwd = _into_new(rope_cached_positions_offsets_2c_fwd_impl)
rope_cached_positions_offsets_2c_fwd_inplace = _in_place(rope_cached_positions_offsets_2c_fwd_impl)


@_named
def rope_thd_fwd_impl(
    output: Tensor, input: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:  # fmt: skip
    """output (t, h, d): input of sequences that begin at cu_seqlens, turned by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first)
    turn(output[None], input[None], tables, how, of_sequences(cu_seqlens, input.shape[0])[None])


rope_thd_fwd = _into_new(rope_thd_fwd_impl, transposes=False)
rope_thd_fwd_inplace = _in_place(rope_thd_fwd_impl)


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


rope_2d_fwd = _into_new(rope_2d_fwd_impl, transposes=False)
rope_2d_fwd_inplace = _in_place(rope_2d_fwd_impl)


@_named
def rope_thd_bwd_impl(
    input_grads: Tensor, output_grads: Tensor, cu_seqlens: Tensor, freqs: Tensor, rotate_style: int,
    reuse_freqs_front_part: bool, nope_first: bool,
) -> None:  # fmt: skip
    """input_grads (t, h, d): output_grads of sequences that begin at cu_seqlens, turned back by the angles freqs."""
    tables, how = of_angles(freqs, reuse_freqs_front_part, rotate_style), Turn(rotate_style, nope_first, backward=True)
    turn(input_grads[None], output_grads[None], tables, how, of_sequences(cu_seqlens, output_grads.shape[0])[None])


rope_thd_bwd = _into_new(rope_thd_bwd_impl, transposes=False)


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


rope_2d_bwd = _into_new(rope_2d_bwd_impl, transposes=False)


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
