# SPDX-License-Identifier: MIT
"""A call of an operator without a gradient whose arguments are the facade's, by the shortest way."""

from __future__ import annotations

from typing import Any

from ...api.operators import _call
from ...torch.calls import as_operator
from ...torch.watchers import untouched


def run(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """The results of `Library.<name>`, by PyTorch's operator where something watches the call."""
    if untouched(*arrays):
        return _call(name, arrays, arguments)
    return as_operator(name, arrays, arguments)
