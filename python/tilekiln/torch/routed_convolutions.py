# SPDX-License-Identifier: MIT
"""torch.nn.functional's conv1d, conv2d and conv3d with Tilekiln's kernels inside `use`, on CPUs and Hopper.

A call is left to torch's own function, which says what is wrong with it too, for each reason that `why_not` gives.
Under torch.compile it is the operator torch.ops.tilekiln.conv_fwd.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api import operators as facade
from tilekiln.api.operators import _call

from . import norms, operators
from .inside import depth, say
from .routed_norms import _channels_last
from .watchers import untouched

AMX = bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())
FP16 = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
"""Has oneDNN tiles of 16 bits on this CPU, and any kernels of fp16? Asked here, as torch.compile cannot trace that."""
LEAST = 500_000
"""Products of numbers that a call has at least, depthwise ones apart: fewer take less time than the way to a kernel."""
GROUP = 32
"""Channels that a group has at least, or one."""
MANY_TAPS, MANY_CHANNELS, FEW_PIXELS = 25, 16, 64
"""Taps beyond which filters of one channel, or of fewer than so many, are faster; pixels of y up to which all are."""


class _Convolution(torch.autograd.Function):
    """y of conv_fwd, as torch lays it out; a gradient that is differentiated again is torch's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, window: dict[str, Any], last: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.window, ctx.bias = window, None if bias is None else bias.dtype
        return _forward(x, weight, bias, window, last)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or not untouched(dy):
            return *_differentiable(ctx, dy, x, weight), None, None
        dx = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            _call("conv_bwd_data", (dy, weight), {"dx": dx, "lengths": list(x.shape[2:]), **ctx.window})
        if ctx.needs_input_grad[1]:
            dweight = torch.empty_like(weight)
            _call("conv_bwd_weight", (x, dy), {"dweight": dweight, "filter": list(weight.shape[2:]), **ctx.window})
        if ctx.needs_input_grad[2]:
            dbias = dy.sum([0, *range(2, dy.dim())], dtype=torch.float32).to(ctx.bias)
        return dx, dweight, dbias, None, None


_recorded_forward: Callable[..., Tensor] = super(torch.autograd.Function, _Convolution).apply
"""`apply` without functorch's binding of arguments: only tensors that nothing watches come here."""


def _differentiable(ctx: Any, dy: Tensor, x: Tensor, weight: Tensor) -> Any:
    window, spatial = ctx.window, x.dim() - 2
    sizes = None if ctx.bias is None else [weight.shape[0]]
    how = (window["stride"], window["padding"], window["dilation"], False, [0] * spatial, window["groups"])
    asked = [*ctx.needs_input_grad[:2], ctx.bias is not None and ctx.needs_input_grad[2]]
    return torch.ops.aten.convolution_backward(dy, x, weight, sizes, *how, asked)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, window: dict[str, Any], last: bool) -> Tensor:
    given = window if bias is None else {**window, "bias": bias.float()}
    if not last:
        y: Tensor = _call("conv_fwd", (x, weight), given)
        return y
    form = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    shape = (x.shape[0], weight.shape[0], *_lengths(x, weight, window))
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
    _call("conv_fwd", (x, weight), {**given, "y": y})
    return y


def _lengths(x: Tensor, weight: Tensor, window: dict[str, Any]) -> list[int]:
    """Those of y, which are below 1 where the filter is longer than the padded image."""
    each = zip(
        x.shape[2:], weight.shape[2:], *(window[name] for name in ("stride", "padding", "dilation")), strict=True
    )
    return [(length + 2 * p - d * (taps - 1) - 1) // s + 1 for length, taps, s, p, d in each]


def _numbers(given: Any, spatial: int) -> list[int] | None:
    """One number for each spatial dimension, or None where torch would refuse what is given."""
    if type(given) is int:
        return [given] * spatial
    if not isinstance(given, Sequence) or isinstance(given, str) or any(type(one) is not int for one in given):
        return None
    return list(given) * (spatial if len(given) == 1 else 1) if len(given) in (1, spatial) else None


def _window(
    spatial: int, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: Any
) -> dict[str, Any] | None:
    """The window as conv_fwd takes it; None where torch would refuse it, or pads one side more than the other."""
    steps, apart = _numbers(stride, spatial), _numbers(dilation, spatial)
    if steps is None or apart is None or type(groups) is not int or min(*steps, *apart, groups) < 1:
        return None
    if padding == "same":
        around = [d * (taps - 1) for d, taps in zip(apart, weight.shape[2:], strict=True)]
        if any(one % 2 for one in around) or any(one != 1 for one in steps):
            return None
        zeros: list[int] | None = [one // 2 for one in around]
    else:
        zeros = _numbers(0 if padding == "valid" else padding, spatial)
    if zeros is None or min(zeros) < 0:
        return None
    return {"stride": steps, "padding": zeros, "dilation": apart, "groups": groups}


def why_not(
    spatial: int, x: Tensor, weight: Tensor, bias: Tensor | None, window: dict[str, Any] | None, last: bool
) -> str:
    """The reason why a call goes to torch's own function; "" where it is routed.

    x (batch, channels, spatial..), weight (outputs, channels / groups, filter..), bias (outputs) or None, all of one
    dtype. last: whether y has the channels of a pixel together.
    """
    if x.dim() != spatial + 2 or weight.dim() != spatial + 2:
        return f"input: had {x.dim()} dimensions and weight {weight.dim()}, {spatial + 2} of both are routed"
    device = x.device
    if device.type not in ("cpu", "cuda") or any(one.device != device for one in (weight, bias) if one is not None):
        return f"input: was on {device}, only tensors of the CPU or of CUDA, all of one device, are routed"
    if x.dtype not in operators.FLOATS or weight.dtype != x.dtype or not (bias is None or bias.dtype == x.dtype):
        return (
            f"input: dtype was {x.dtype}, kernels are for torch.float32, torch.float16 and torch.bfloat16, of all alike"
        )
    if torch.is_autocast_enabled(device.type):
        return "autocast: torch's own function casts"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode derivatives: the kernels have none"
    if window is None:
        return "stride, padding, dilation or groups: torch's own function refuses them, or pads one side more"
    groups, outputs = window["groups"], weight.shape[0]
    if weight.shape[1] * groups != x.shape[1] or outputs % groups or not (bias is None or bias.shape == (outputs,)):
        return "weight: its shape does not fit that of input, or of bias"
    if not x.numel() or not weight.numel() or min(_lengths(x, weight, window)) < 1:
        return "input: nothing to compute, or a filter that is longer than the image"
    return not_worth_it(x, weight, window, last, norms._recorded(x, weight, bias))


def not_worth_it(x: Tensor, weight: Tensor, window: dict[str, Any], last: bool, records: bool) -> str:
    """The reason why torch has such a call on the device of weight: it is as fast, or there is no kernel."""
    device = weight.device.type
    slower = _slower_on_cuda if device == "cuda" else _slower
    return slower(x, weight, window, last, records) or _no_kernel(x.dtype, x.dim() - 2, last, records, device)


def _slower(x: Tensor, weight: Tensor, window: dict[str, Any], last: bool, records: bool) -> str:
    """Reasons by speed: oneDNN is as fast there, on one thread of a CPU with AVX-512 BF16 (tools/bench conv)."""
    if x.dtype == torch.float16 and not FP16:
        return ""  # torch has a kernel of single numbers
    filters, channels, steps = weight.shape[2:], weight.shape[1], window["stride"]
    taps, pixels = filters.numel(), x.shape[0] * math.prod(_lengths(x, weight, window))
    if channels == 1 and window["groups"] > 1:
        if taps <= MANY_TAPS and (last or (records and max(steps) > 1)):
            return f"weight: had {taps} taps of one channel a group, where torch's own kernel is as fast"
        return ""
    tiles = AMX and x.dtype != torch.float32
    if tiles and (last or records or x.dtype != torch.bfloat16):
        return "input: was not bf16 with pixels side by side and no gradient, where torch's own tiles are as fast"
    if window["groups"] > 1 and channels < GROUP:
        return f"groups: had {channels} channels each, {GROUP} and more are routed, or one"
    if weight.numel() * pixels < LEAST:
        return f"input: needs less than {LEAST} products, which take less time than the way to a kernel"
    if tiles:
        return ""
    patches = len(filters) == 1 or all(one <= step for one, step in zip(filters, steps, strict=True))
    narrow = x.dtype != torch.float32 and not last and channels < MANY_CHANNELS and taps > MANY_TAPS
    few = last and pixels <= FEW_PIXELS
    if patches or narrow or few or (len(filters) == 3 and x.dtype == torch.float32):
        return ""
    return "weight: its filters of images overlap, where torch's own kernel is as fast"


def _slower_on_cuda(x: Tensor, weight: Tensor, window: dict[str, Any], last: bool, records: bool) -> str:
    """Reasons by speed: cuDNN is as fast there, on an H200 (tools/gpu bench)."""
    groups, channels = window["groups"], weight.shape[1]
    if (channels == 1 and groups > 1) or (weight.dim() == 3 and (groups == 1 or channels >= GROUP)):
        return ""
    if groups == 1:
        return "weight: was of one group and not of one dimension, where cuDNN is about as fast"
    return f"weight: had {channels} channels a group, routed are 1 and, of one dimension, {GROUP} and more"


def _no_kernel(dtype: torch.dtype, spatial: int, last: bool, records: bool, device: str = "cpu") -> str:
    reason: str = _refusal(dtype, spatial, last, records, device)
    return reason


# All that torch.compiler.assume_constant_result does, which imports torch._dynamo for it: 1.4 s of each process.
_no_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _refusal(dtype: torch.dtype, spatial: int, last: bool, records: bool, device: str) -> str:
    """The error text of the available libraries for such a call, or its gradients; "" when one has the kernels."""
    one = torch.empty((1, 2, *[1] * spatial), dtype=dtype, device=device)
    x = one.movedim(1, -1).contiguous().movedim(-1, 1) if last else one
    weight, y = one.expand(2, *one.shape[1:]).contiguous(), {"y": torch.empty_like(x)}
    try:
        facade._choose("conv_fwd", (x, weight), y)
        if records:
            facade._choose("conv_bwd_data", (x, weight), {"lengths": [1] * spatial})
            facade._choose("conv_bwd_weight", (x, x), {"filter": [1] * spatial})
    except (NoKernelError, ArgumentError) as refusal:
        return str(refusal) or "no kernel"
    return ""


own: dict[str, Callable[..., Tensor]] = {}
"""torch's functions by name, while `use` has replaced them."""


def _routed(name: str, spatial: int, x: Any, weight: Any, bias: Any, *said: Any) -> Tensor | None:
    """y by Tilekiln's kernels, or None where torch's own function has the call."""
    compiling = torch.compiler.is_compiling()
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not all(isinstance(one, Tensor) for one in tensors):
        return None
    if not compiling and not untouched(*tensors):
        say(name, "input: a transform, a mode or a subclass watches it, weight or bias")
        return None
    fits = weight.dim() == spatial + 2
    last = fits and x.dim() == weight.dim() > 3 and (_channels_last(x) or _channels_last(weight))
    window = _window(spatial, weight, *said) if fits else None
    reason = why_not(spatial, x, weight, bias, window, last)
    if compiling and last and not reason:
        return None  # the operator's result has no layout of its own while it is traced
    if reason or window is None:
        say(name, reason)
        return None
    if compiling:
        wide = None if bias is None else bias.float()
        traced: Tensor = torch.ops.tilekiln.conv_fwd(x, weight, bias=wide, **window)
        return traced
    if norms._recorded(*tensors):
        return _recorded_forward(x, weight, bias, window, last)
    return _forward(x, weight, bias, window, last)


def _in_place_of(name: str, spatial: int) -> Callable[..., Tensor]:
    theirs = getattr(torch.nn.functional, name)

    def convolution(
        input: Any,  # noqa: A002  torch's name
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Tensor:
        if depth.value:
            made = _routed(name, spatial, input, weight, bias, stride, padding, dilation, groups)
            if made is not None:
                return made
        kept: Tensor = own.get(name, theirs)(input, weight, bias, stride, padding, dilation, groups)
        return kept

    convolution.__name__ = convolution.__qualname__ = name
    convolution.__doc__ = f"Replaces torch.nn.functional.{name} while a thread is in `use`."
    return convolution


REPLACED = {f"conv{spatial}d": _in_place_of(f"conv{spatial}d", spatial) for spatial in (1, 2, 3)}
