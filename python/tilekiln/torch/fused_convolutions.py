# SPDX-License-Identifier: MIT
"""Convolutions of a model by `conv_fwd`, for inference: torch.nn.Conv1d, Conv2d and Conv3d that `optimize` finds.

A module keeps its class, its weight and bias and their names. Its `forward` takes what `use` would take
(`routed_convolutions.why_not`), and leaves other calls, training, recorded gradients and torch.compile to its class.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from . import routed_convolutions
from .fused_layers import FUSED, _theirs, agree, give_back

PIXELS = 65536
"""Pixels of y of the image by which a module is judged: smaller ones may be left to PyTorch, call by call."""


def convolution_forward(self: Any, input: Tensor) -> Tensor:  # noqa: A002  torch's name
    """y of an image, as the forward of the class."""
    if not _theirs(self, input):
        window = self.stride, self.padding, self.dilation, self.groups
        made = routed_convolutions._routed(
            self.__dict__[FUSED], input.dim() - 2, input, self.weight, self.bias, *window
        )
        if made is not None:
            return made
    theirs: Tensor = type(self).forward(self, input)
    return theirs


def is_convolution(module: Any) -> bool:
    """Is it one of torch.nn, but for causal ones of a channel each, which belong to their layer of linear attention?"""
    if type(module) not in (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d):
        return False
    depthwise = module.groups == module.in_channels > 1
    return not (depthwise and len(module.kernel_size) == 1 and module.padding == (module.kernel_size[0] - 1,))


def fuse_convolution(module: Any) -> str:
    """Give a module `convolution_forward`; what it is now. ValueError says why not, and then nothing is changed."""
    spatial, weight = len(module.kernel_size), module.weight
    if module.padding_mode != "zeros":
        raise ValueError(f"pads with {module.padding_mode!r}: conv_fwd has zeros alone")
    window = routed_convolutions._window(spatial, weight, module.stride, module.padding, module.dilation, module.groups)
    if window is None:
        raise ValueError("pads one side more than the other")
    each = zip(module.kernel_size, window["stride"], window["dilation"], window["padding"], strict=True)
    least = [max(d * (taps - 1) + 1 - 2 * p, 1) for taps, _, d, p in each]
    length = round(PIXELS ** (1 / spatial))
    many = [one + length * step for one, step in zip(least, window["stride"], strict=True)]
    x = torch.empty(1, module.in_channels, *many, dtype=weight.dtype, device="meta")
    for last in (False, True) if spatial > 1 else (False,):
        why = routed_convolutions.not_worth_it(x, weight, window, last, False)
        if not why:
            break
    else:
        raise ValueError(why.splitlines()[0])
    few = torch.randn(1, module.in_channels, *least, generator=torch.Generator().manual_seed(0), device="cpu")
    few = few.to(weight)
    ours = routed_convolutions._forward(few, weight, module.bias, window, False)
    agree(type(module).forward(module, few), ours, weight[0].numel())
    module.__dict__[FUSED] = f"conv{spatial}d"
    module.forward = functools.partial(convolution_forward, module)
    try:
        agree(type(module).forward(module, few), module(few), weight[0].numel())
    except BaseException:
        give_back(module)
        raise
    return "conv_fwd"
