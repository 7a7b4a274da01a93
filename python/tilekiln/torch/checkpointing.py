"""Activation checkpoints and `use`: recomputation in the backward is routed as the forward was, wherever that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.utils.checkpoint as checkpoints

_INSIDE = "tilekiln_inside"
_followed = False


def follow(inside: Callable[[], bool], context: Callable[[], AbstractContextManager[Any]]) -> None:
    """From the first call on, what is checkpointed while `inside()` is recomputed in `context()`.

    Both kinds of checkpoints, reentrant and not, by whatever name `torch.utils.checkpoint.checkpoint` is called.
    """
    global _followed
    if _followed:
        return
    _followed = True
    function = checkpoints.CheckpointFunction
    forward, backward = function.forward, function.backward

    @functools.wraps(forward)
    def noted(ctx: Any, *arguments: Any) -> Any:
        setattr(ctx, _INSIDE, inside())
        return forward(ctx, *arguments)

    @functools.wraps(backward)
    def routed(ctx: Any, *gradients: Any) -> Any:
        if not getattr(ctx, _INSIDE, False):
            return backward(ctx, *gradients)
        with context():
            return backward(ctx, *gradients)

    function.forward, function.backward = staticmethod(noted), staticmethod(routed)  # type: ignore[method-assign]
    generator = checkpoints._checkpoint_without_reentrant_generator

    @functools.wraps(generator)
    def without_reentrance(fn: Any, *arguments: Any, **named: Any) -> Any:
        if not inside():
            return generator(fn, *arguments, **named)

        @functools.wraps(fn)
        def run(*given: Any, **more: Any) -> Any:
            with context():
                return fn(*given, **more)

        return generator(run, *arguments, **named)

    checkpoints._checkpoint_without_reentrant_generator = without_reentrance
