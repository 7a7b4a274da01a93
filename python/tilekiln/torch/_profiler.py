"""Calls of operators as ranges of torch.profiler: `tilekiln.fmha_fwd`, with the shapes of their tensors.

`torch.ops.tilekiln.*` are ranges of PyTorch's own, `tilekiln::fmha_fwd`; the one of this name lies in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import operators as facade


def _in_range(call: Callable[..., Any], operator: str, arrays: tuple[Any, ...], *rest: Any) -> Any:
    tensors = [array for array in arrays if isinstance(array, torch.Tensor)]
    with torch._C._profiler._RecordFunctionFast(f"tilekiln.{operator}", tensors, {}):
        return call(operator, arrays, *rest)


def watch() -> None:
    """From now on calls of `tk.*` and of PyTorch's faces, of any arrays, are ranges while a profiler records."""
    facade.profiler = (torch._C._autograd._profiler_enabled, _in_range)
