"""Tilekiln: receipts in, attention kernels out.

>>> import tilekiln as tk
>>> lib = tk.load("flash")
>>> out = lib.fmha_fwd(q, k, v, causal=True)  # doctest: +SKIP

`load` gives one library, `attention` and `attention_backward` pick a kernel from all that are built or installed,
`KVCache` and `decode` serve from a cache, `matmul`, `grouped_gemm`, `linear`, `PackedWeight` and `QuantisedWeight`
multiply matrices, `experts` and `PackedExperts` are the feed-forward part of a mixture of experts,
`info` says what there is, `reference` is the float64 NumPy reference, `tune` has what was measured. Every other
operator is here under its own name, over all libraries as `attention` is: `tk.rmsnorm2d(x, gamma)`.
Importing this imports neither NumPy nor any framework.
"""

from __future__ import annotations

from . import _distribution

_distribution.check(__path__[0])

TYPE_CHECKING = False  # what typing has, without its import
if TYPE_CHECKING:
    from typing import Any

    from . import reference, tune
    from ._binding import ArgumentError, NoKernelError, Stream, __version__
    from ._launcher import BackwardLauncher
    from .just_in_time import jit
    from .kv_cache import KVCache, decode
    from .library import Instance, Library, add_library, libraries, load
    from .machine import info
    from .operators import attention, attention_backward
    from .packed_experts import PackedExperts, experts
    from .product_lists import grouped_gemm
    from .products import PackedWeight, linear, matmul
    from .quantised_weight import QuantisedWeight
    from .workspace import BackwardWorkspace, plan_backward_workspace

_HOME = {
    "__version__": "._native",
    "ArgumentError": "._native",
    "BackwardLauncher": "._launcher",
    "BackwardWorkspace": ".workspace",
    "Instance": ".library",
    "KVCache": ".kv_cache",
    "Library": ".library",
    "NoKernelError": "._native",
    "PackedExperts": ".packed_experts",
    "PackedWeight": ".products",
    "QuantisedWeight": ".quantised_weight",
    "Stream": "._native",
    "add_library": ".library",
    "attention": ".operators",
    "attention_backward": ".operators",
    "decode": ".kv_cache",
    "experts": ".packed_experts",
    "grouped_gemm": ".product_lists",
    "info": ".machine",
    "jit": ".just_in_time",
    "libraries": ".library",
    "linear": ".products",
    "load": ".library",
    "matmul": ".products",
    "plan_backward_workspace": ".workspace",
    "reference": ".reference",
    "tune": ".tune",
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
    "experts",
    "grouped_gemm",
    "info",
    "jit",
    "libraries",
    "linear",
    "load",
    "matmul",
    "plan_backward_workspace",
    "reference",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Names arrive at their first use, which keeps the import itself at a few milliseconds."""
    import importlib

    if name not in _HOME and (name.startswith("_") or name not in _operators()):
        raise AttributeError(f"module 'tilekiln' has no attribute {name!r}")
    module = importlib.import_module(_HOME.get(name, ".operators"), __name__)
    value = globals()[name] = (
        module if name in ("reference", "tune") else getattr(module, name) if name in _HOME else module.face(name)
    )
    return value


def _operators() -> frozenset[str]:
    from ._tables import OPERATORS

    return frozenset(OPERATORS)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_operators()})
