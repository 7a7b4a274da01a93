# SPDX-License-Identifier: MIT
"""Tilekiln: receipts in, attention kernels out.

>>> import tilekiln as tk
>>> lib = tk.load("flash")
>>> out = lib.fmha_fwd(q, k, v, causal=True)  # doctest: +SKIP

`load` gives one library, `attention` and `attention_backward` pick a kernel from all that are built or installed,
`function_attention` takes scores, masks and weights of your own (`score_function`, `mask_function`, `weight_function`),
`KVCache` and `decode` serve from a cache, `matmul`, `grouped_gemm`, `linear`, `PackedWeight` and `QuantisedWeight`
multiply matrices, `experts` and `PackedExperts` are the feed-forward part of a mixture of experts,
`info` says what there is, `reference` is the float64 NumPy reference, `tune` has what was measured, `dtypes` knows
dtypes by name. Every other operator is here under its own name, over all libraries as `attention` is:
`tk.rmsnorm2d(x, gamma)`.
Importing this imports neither NumPy nor any framework.
"""

from __future__ import annotations

from ._core import distribution, main_interpreter, moved

main_interpreter.check()
distribution.check(__path__[0])
moved.follow()

TYPE_CHECKING = False  # what typing has, without its import
if TYPE_CHECKING:
    from typing import Any

    from . import reference, tune
    from ._binding import ArgumentError, NoKernelError, Stream, __version__
    from ._core import dtypes
    from .api.functions.call import function_attention, mask_function, score_function, weight_function
    from .api.functions.elementwise import elementwise_function
    from .api.just_in_time import jit
    from .api.kv_cache import KVCache, decode
    from .api.launcher import BackwardLauncher
    from .api.library import Instance, Library, add_library, libraries, load
    from .api.machine import info
    from .api.operators import attention, attention_backward
    from .api.packed_experts import PackedExperts, experts
    from .api.product_lists import grouped_gemm
    from .api.products import PackedWeight, linear, matmul
    from .api.quantised_weight import QuantisedWeight
    from .api.workspace import BackwardWorkspace, plan_backward_workspace

    # Every operator; grouped_gemm is that of above, which takes lists too.
    from ._generated.declared import *  # type: ignore[assignment] # noqa: F403 # isort: skip

_HOME = {
    "__version__": "._core.native",
    "ArgumentError": "._core.native",
    "BackwardLauncher": ".api.launcher",
    "BackwardWorkspace": ".api.workspace",
    "Instance": ".api.library",
    "KVCache": ".api.kv_cache",
    "Library": ".api.library",
    "NoKernelError": "._core.native",
    "PackedExperts": ".api.packed_experts",
    "PackedWeight": ".api.products",
    "QuantisedWeight": ".api.quantised_weight",
    "Stream": "._core.native",
    "add_library": ".api.library",
    "attention": ".api.operators",
    "attention_backward": ".api.operators",
    "decode": ".api.kv_cache",
    "elementwise_function": ".api.functions.elementwise",
    "experts": ".api.packed_experts",
    "function_attention": ".api.functions.call",
    "grouped_gemm": ".api.product_lists",
    "info": ".api.machine",
    "jit": ".api.just_in_time",
    "libraries": ".api.library",
    "linear": ".api.products",
    "load": ".api.library",
    "mask_function": ".api.functions.call",
    "matmul": ".api.products",
    "plan_backward_workspace": ".api.workspace",
    "reference": ".reference",
    "score_function": ".api.functions.call",
    "tune": ".tune",
    "weight_function": ".api.functions.call",
}

__all__ = [
    "ArgumentError",
    "BackwardLauncher",
    "BackwardWorkspace",
    "Instance",
    "KVCache",
    "Library",
    "NoKernelError",
    "PackedExperts",
    "PackedWeight",
    "QuantisedWeight",
    "Stream",
    "__version__",
    "add_library",
    "attention",
    "attention_backward",
    "decode",
    "dtypes",
    "elementwise_function",
    "experts",
    "function_attention",
    "grouped_gemm",
    "info",
    "jit",
    "libraries",
    "linear",
    "load",
    "mask_function",
    "matmul",
    "plan_backward_workspace",
    "reference",
    "score_function",
    "tune",
    "weight_function",
]


def __getattr__(name: str) -> Any:
    """Names arrive at their first use, which keeps the import itself at a few milliseconds.

    Where PyTorch is loaded, its part is imported with the first of them: torch.compile cannot trace that import later.
    """
    import contextlib
    import importlib
    import sys

    if f"tilekiln.{name}" in moved.MOVED:
        return importlib.import_module(f"tilekiln.{name}")
    if name not in _HOME and (name.startswith("_") or name not in _operators()):
        raise AttributeError(f"module 'tilekiln' has no attribute {name!r}")
    module = importlib.import_module(_HOME.get(name, ".api.operators"), __name__)
    value: Any = module if name in ("reference", "tune") else None
    if value is None:
        value = getattr(module, name) if name in _HOME else module.Function(name)
    globals()[name] = value
    if "torch" in sys.modules:
        with contextlib.suppress(ImportError):  # a call with a tensor says it
            importlib.import_module("tilekiln.torch")
    return value


def _operators() -> frozenset[str]:
    from ._generated.tables import OPERATORS

    return frozenset(OPERATORS)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_operators()})
