# SPDX-License-Identifier: MIT
"""Upstream's autograd classes of flash_attn_interface: callers write `Class.apply(...)`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch


def applied(function: Callable[..., Any]) -> Any:
    """`apply` of a class: the function, all arguments by position, return_attn_probs as return_softmax.

    The last one more is is_grad_enabled: with False nothing is kept for a backward.
    """
    known = [*inspect.signature(function).parameters, "is_grad_enabled"]
    names = ["return_softmax" if name == "return_attn_probs" else name for name in known]

    @functools.wraps(function)
    def apply(*arguments: Any) -> Any:
        if len(arguments) != len(names):
            raise TypeError(f"apply takes {len(names)} arguments, {', '.join(names)}, had {len(arguments)}")
        *given, is_grad_enabled = arguments
        with torch.set_grad_enabled(bool(is_grad_enabled) and torch.is_grad_enabled()):
            return function(*given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    apply.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return staticmethod(apply)
