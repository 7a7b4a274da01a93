# SPDX-License-Identifier: MIT
"""A call of an operator without a gradient whose arguments are the facade's, by the shortest way."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core.native import ArgumentError
from ...api.operators import _call
from ...torch.calls import as_operator
from ...torch.watchers import idle, untouched

_PLAIN = frozenset((Tensor, type(None)))


def run(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """The results of `Library.<name>`, by PyTorch's operator where something watches the call."""
    if idle() and set(map(type, arrays)) <= _PLAIN:
        try:
            return _call(name, arrays, arguments)
        except ArgumentError:  # also of tensors that are wrapped, or have a negative bit
            if untouched(*arrays):
                raise
    elif untouched(*arrays):
        return _call(name, arrays, arguments)
    return as_operator(name, arrays, arguments)
