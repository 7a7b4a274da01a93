# SPDX-License-Identifier: MIT
"""Functions of elements in PyTorch: a custom operator of their text, whose derivative is made of the same operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError
from tilekiln.api.functions import elementwise

from ..operators import DEVICES, check_tangents
from .operator import needs_operator

_NAME = "tilekiln::elementwise_function"


def _forward(arrays: Sequence[Tensor], source: str, num_threads: int = 0) -> Tensor:
    check_tangents(*arrays)
    made: Tensor = elementwise.forward(elementwise.elementwise_function(source), list(arrays), num_threads=num_threads)
    return made


def _fake(arrays: Sequence[Tensor], source: str, num_threads: int = 0) -> Tensor:
    return arrays[0].new_empty(torch.broadcast_shapes(*(one.shape for one in arrays)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    arrays, ctx.source, *rest = inputs
    ctx.num_threads = rest[0] if rest else 0
    ctx.needs = [one.requires_grad for one in arrays]
    ctx.save_for_backward(*arrays)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    function = elementwise.elementwise_function(ctx.source)
    named = dict(zip(function.names, ctx.saved_tensors, strict=True))
    by, parts = function.gradients()
    named[by], found = gradient, list[Tensor | None]()
    for name, one, needed in zip(function.names, ctx.saved_tensors, ctx.needs, strict=True):
        if needed and name in parts:
            given = [named[other] for other in parts[name].names]
            part = torch.ops.tilekiln.elementwise_function(given, parts[name].source, ctx.num_threads)
            found.append(part.expand(gradient.shape).sum_to_size(one.shape))
        else:
            found.append(torch.zeros_like(one) if needed else None)
    return (found, None, *([None] * (len(ctx.needs_input_grad) - 2)))


torch.library.define(_NAME, "(Tensor[] arrays, str source, int num_threads=0) -> Tensor")
for _device in DEVICES:
    torch.library.impl(_NAME, _device)(_forward)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _differentiate, setup_context=_save)


def run(function: Any, arrays: list[Tensor], out: Any, num_threads: int, stream: Any) -> Any:
    """By the operator where autograd records the call or something transforms it; else None."""
    return traced(function, arrays, out, num_threads, stream) if needs_operator(*arrays) else None


def traced(function: Any, arrays: list[Tensor], out: Any, num_threads: int, stream: Any) -> Any:
    """The operator's result."""
    for name, given in (("out", out), ("stream", stream)):
        if given is not None:
            raise ArgumentError(
                f"{name}: was given, must be absent where an input requires grad or a call is traced or transformed"
            )
    return torch.ops.tilekiln.elementwise_function(arrays, function.source, num_threads)


elementwise._run._torchdynamo_inline = traced  # type: ignore[attr-defined]  # what is traced in place of it
