# SPDX-License-Identifier: MIT
"""Rotary embedding of aiter's tensors by the operator rotary: its tables, positions and parts of heads."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ._run import run


class Tables(NamedTuple):
    """cos and sin (rows, rotary_dim / 2) of the first of each pair, and of the second where that has others."""

    cos: Tensor
    sin: Tensor
    second: tuple[Tensor, Tensor] | None


class Turn(NamedTuple):
    """Way in which heads are turned."""

    rotate_style: int
    nope_first: bool
    backward: bool = False


def _parts(table: Tensor, rotate_style: int) -> tuple[Tensor, Tensor]:
    """Of a table of whole heads, what the first and the second of each pair have."""
    if rotate_style == 0:
        first, second = table.chunk(2, -1)
        return first, second
    return table[:, 0::2], table[:, 1::2]


def of_tables(cos: Tensor, sin: Tensor, reuse_freqs_front_part: bool, rotate_style: int) -> Tables:
    """Tables of cos and sin (rows, 1, 1, w), or with their dimensions of 1 elsewhere."""
    if rotate_style not in (0, 1):
        raise ArgumentError(f"rotate_style: was {rotate_style!r}, must be 0 (NeoX) or 1 (GPT-J)")
    flat = []
    for name, table in (("cos", cos), ("sin", sin)):
        matrix = table.reshape(-1, table.shape[-1])
        if matrix.shape[0] not in table.shape[:-1] or (not reuse_freqs_front_part and matrix.shape[1] % 2):
            raise ArgumentError(
                f"{name}: was of shape {tuple(table.shape)}, must have one dimension beside the last that is not "
                "1, and an even last one where each of a pair has an angle"
            )
        flat.append(matrix)
    if reuse_freqs_front_part:
        return Tables(flat[0], flat[1], None)
    (cos_a, cos_b), (sin_a, sin_b) = (_parts(table, rotate_style) for table in flat)
    seen = cos.device.type == "cpu" and not torch.compiler.is_compiling()
    same = seen and torch.equal(cos_a, cos_b) and torch.equal(sin_a, sin_b)
    second = None if same else (cos_b.contiguous(), sin_b.contiguous())
    return Tables(cos_a.contiguous(), sin_a.contiguous(), second)


def of_angles(freqs: Tensor, reuse_freqs_front_part: bool, rotate_style: int) -> Tables:
    """Tables of the angles freqs (rows, 1, 1, w), in fp32."""
    wide = freqs.float()
    return of_tables(wide.cos(), wide.sin(), reuse_freqs_front_part, rotate_style)


def of_sequences(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The place of each token in its sequence (tokens)."""
    starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=tokens)
    return torch.arange(tokens, dtype=starts.dtype, device=starts.device) - starts


def of_image(input: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(row, column) of each token, each (b, s), of input (b, s, h, d)."""
    if input.dim() != 4 or input.shape[1] != height * width or input.shape[3] % 2:
        raise ArgumentError(
            f"input: was of shape {tuple(input.shape)}, must be (b, {height * width}, h, d), "
            "img_height img_width tokens and an even d"
        )
    place = torch.arange(height * width, dtype=torch.int32, device=input.device).expand(input.shape[:2])
    return place // width, place % width


def like(input: Tensor, transpose_output: bool) -> Tensor:
    """Room for input (s, b, h, d) turned; transpose_output: that lies in memory as (b, s, h, d)."""
    if not transpose_output:
        return torch.empty_like(input, requires_grad=False)
    s, b, h, d = input.shape
    return torch.empty((b, s, h, d), dtype=input.dtype, device=input.device).transpose(0, 1)


def turn(out: Tensor, x: Tensor, tables: Tables, how: Turn, positions: Tensor | None = None) -> None:
    """out: x (b, s, h, d) turned; out may be x. positions (b, s): rows of tables; absent: places in the sequence."""
    dim, whole = 2 * tables.cos.shape[-1], x.shape[-1]
    if dim > whole:
        raise ArgumentError(f"freqs: was of {dim} elements of a head, must be of at most {whole}, as input has")
    if positions is None and tables.cos.shape[0] < x.shape[1]:
        raise ArgumentError(f"freqs: had {tables.cos.shape[0]} rows, must have at least {x.shape[1]}, those of input")
    if how.nope_first and dim < whole:
        rest = whole - dim
        if torch.compiler.is_compiling() or out.data_ptr() != x.data_ptr():
            out[..., :rest].copy_(x[..., :rest])
        out, x = out[..., rest:], x[..., rest:]
    arguments: dict[str, Any] = {"interleaved": how.rotate_style == 1, "conjugate": how.backward}
    if positions is not None:
        arguments["positions"] = positions.contiguous()
    if tables.second is None:
        _rotary(out, x, tables.cos, tables.sin, arguments)
        return
    # Rows of cos and sin are each's own forward, and backward the sin is that of the other of the pair.
    (cos, sin), (cos_b, sin_b) = (tables.cos, tables.sin), tables.second
    second = torch.empty_like(x)
    _rotary(second, x, cos_b, sin if how.backward else sin_b, arguments)
    _rotary(out, x, cos, sin_b if how.backward else sin, arguments)
    of = slice(1, dim, 2) if how.rotate_style == 1 else slice(dim // 2, dim)
    out[..., of].copy_(second[..., of])


def _rotary(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, arguments: dict[str, Any]) -> None:
    if cos.dtype != x.dtype and cos.dtype != torch.float32:
        cos, sin = cos.float(), sin.float()
    run("rotary", (x, cos, sin), {**arguments, "y": out})
