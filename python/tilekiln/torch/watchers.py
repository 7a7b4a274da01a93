# SPDX-License-Identifier: MIT
"""Watchers of a call, between a tensor and a kernel: autograd, functorch, tracing, modes and subclasses."""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import operators

_keys = torch._C._dispatch_keys
_included = torch._C._dispatch_tls_local_include_set
_is_compiling = torch.compiler.is_compiling
_is_dynamo = torch.compiler.is_dynamo_compiling
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_casts = torch._C._is_any_autocast_enabled


def _plain(device: str | torch.device) -> list[tuple[int, int]]:
    """Dispatch keys of an ordinary tensor and thread, in inference mode and out of it.

    Looked at in a thread of its own: this one may be in a mode, such as FakeTensorMode, which tensors it makes are of.
    """
    found = []

    def look() -> None:
        for inference in (True, False):
            with torch.inference_mode(inference):
                found.append((_keys(torch.empty(0, device=device)).raw_repr(), _included().raw_repr()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found


_TENSORS = {tensor for tensor, _ in _plain("cpu")}
"""Dispatch keys of tensors that no transform or subclass wraps, of the CPU and of devices met so far."""
_DEVICES = {"cpu"}
TYPES = frozenset((Tensor, torch.nn.Parameter))
"""Subclasses may have a __torch_function__, which only calls through the dispatcher reach."""
_MODES = frozenset(thread for _, thread in _plain("cpu"))
"""Dispatch keys of a thread that runs no transform and traces nothing."""


def _met(tensor: Tensor, keys: int) -> bool:
    """Is it a plain tensor of a device that is met now?"""
    if tensor.device.type not in operators.DEVICE_TYPES or tensor.device.type in _DEVICES:
        return False
    _DEVICES.add(tensor.device.type)
    _TENSORS.update(seen for seen, _ in _plain(tensor.device))
    return keys in _TENSORS


def untouched(*tensors: Tensor | None) -> bool:
    """Does nothing (functorch, tracing, a mode, a subclass) stand between these tensors and a kernel?

    Past the first of them, what the dispatcher would see is asked only of what a kernel would not refuse: that takes
    half a microsecond a tensor.
    """
    if _is_compiling() or _included().raw_repr() not in _MODES:
        return False
    met = False
    for tensor in tensors:  # not any(): a generator costs a microsecond
        if tensor is None:
            continue
        if type(tensor) not in TYPES:
            return False
        if met:
            if tensor.is_neg():
                return False
            continue
        keys = _keys(tensor).raw_repr()
        if keys not in _TENSORS and not _met(tensor, keys):
            return False
        met = True
    return True


def idle() -> bool:
    """Does this thread neither trace, transform, cast nor take tangents?

    A fifth of what `untouched` takes, for calls that only tensors of type Tensor reach and whose binding refuses what
    else they may be: wrapped, sparse, with a negative bit.
    """
    if _is_dynamo() or _modes() or _casts():
        return False
    return forward_ad._current_level < 0 and _transform() is None


def transformed() -> bool:
    """Is functorch at work, and nothing that traces?"""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is not None
        and not torch._C._len_torch_dispatch_stack()
    )
