# SPDX-License-Identifier: MIT
"""Calls of operators as ranges of torch.profiler: `tilekiln.fmha_fwd`, with the shapes of their tensors.

`torch.ops.tilekiln.*` are ranges of PyTorch's own, `tilekiln::fmha_fwd`; the one of this name lies in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler

from ..api import operators as facade


def _in_range(call: Callable[..., Any], operator: str, arrays: tuple[Any, ...], *rest: Any) -> Any:
    tensors = [array for array in arrays if isinstance(array, torch.Tensor)]
    with torch._C._profiler._RecordFunctionFast(f"tilekiln.{operator}", tensors, {}):
        return call(operator, arrays, *rest)


def _started() -> bool:
    """Whether a profiler was started in any thread; torch.compile of PyTorch 2.11 can read no other flag."""
    return torch.autograd.profiler._is_profiler_enabled and not torch.compiler.is_compiling()


def watch() -> None:
    """From now on calls of `tk.*` and of modules for PyTorch, of any arrays, are ranges while a profiler records."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    records = torch._C._autograd._profiler_enabled if version >= (2, 13) else _started  # 20 ns faster
    facade.profiler = (records, _in_range)
