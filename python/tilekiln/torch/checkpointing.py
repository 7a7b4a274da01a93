# SPDX-License-Identifier: MIT
"""Activation checkpoints inside `use` and its like: recomputation in the backward finds what the forward was in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.utils.checkpoint as checkpoints

_INSIDE = "tilekiln_inside"
Context = Callable[[], AbstractContextManager[Any]]
_states: list[Callable[[], Context | None]] = []


def follow(state: Callable[[], Context | None]) -> None:
    """From the first call on, what is checkpointed while `state()` is a context is recomputed in that.

    Both kinds of checkpoints, reentrant and not, by whatever name `torch.utils.checkpoint.checkpoint` is called.
    """
    if state in _states:
        return
    _states.append(state)
    if len(_states) > 1:
        return
    function = checkpoints.CheckpointFunction
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def noted(ctx: Any, *arguments: Any) -> Any:
        setattr(ctx, _INSIDE, _contexts())
        return forward(ctx, *arguments)

    @functools.wraps(backward)
    def routed(ctx: Any, *gradients: Any) -> Any:
        with _entered(getattr(ctx, _INSIDE, [])):
            return backward(ctx, *gradients)

    function.forward, function.backward = staticmethod(noted), staticmethod(routed)  # type: ignore[method-assign]
    generator = checkpoints._checkpoint_without_reentrant_generator

    @functools.wraps(generator)
    def without_reentrance(fn: Any, *arguments: Any, **named: Any) -> Any:
        contexts = _contexts()
        if not contexts:
            return generator(fn, *arguments, **named)

        @functools.wraps(fn)
        def run(*given: Any, **more: Any) -> Any:
            with _entered(contexts):
                return fn(*given, **more)

        return generator(run, *arguments, **named)

    checkpoints._checkpoint_without_reentrant_generator = without_reentrance


def _contexts() -> list[Context]:
    return [context for context in (state() for state in _states) if context is not None]


def _entered(contexts: list[Context]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for context in contexts:
        stack.enter_context(context())
    return stack
