# SPDX-License-Identifier: MIT
"""The model as it was when graphs were recorded of it, and the state of generate, which replays them, in a thread."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor

from ..sampled_choice import SampledChoice


class Look:
    """The parts of a model, and where they lay when graphs were recorded of it."""

    def __init__(self, model: Any) -> None:
        self.parts: list[tuple[dict[str, Any], str, Any, int]] = [
            (own, name, one, one.data_ptr() if isinstance(one, Tensor) else 0)
            for module in model.modules()
            for own in (module._modules, module._parameters, module._buffers)
            for name, one in own.items()
        ]
        self.hooks: list[Any] = [
            hooks
            for module in model.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
            if module is not model
        ]

    def holds(self) -> bool:
        """Is it made of the same, where it was, with nothing in between?"""
        for owner, name, one, at in self.parts:
            if owner.get(name) is not one or (at and one is not None and one.data_ptr() != at):
                return False
        return not any(self.hooks)


class Generating(threading.local):
    """Does this thread run generate, in which nobody writes into weights between two steps?"""

    now = False
    looked: Look | None = None
    """The look that was found to hold since it began."""
    choice: SampledChoice | None = None
    """The processor that draws its tokens."""


generating = Generating()
