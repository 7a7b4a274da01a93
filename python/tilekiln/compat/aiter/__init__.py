"""The attention functions of aiter, to the letter, computed by Tilekiln's kernels.

>>> import tilekiln.compat.aiter
>>> tilekiln.compat.aiter.install()  # doctest: +SKIP
>>> from aiter import flash_attn_func  # doctest: +SKIP

Imports torch. `install` makes `import aiter` resolve here; so does python/compat/aiter on PYTHONPATH.
"""

from __future__ import annotations

from typing import Any

from ..._core import needs_torch  # noqa: F401
from .. import _modules
from .ops.mha import (
    flash_attn_fp8_pertensor_func,
    flash_attn_func,
    flash_attn_varlen_fp8_pertensor_func,
    flash_attn_varlen_func,
    mha_batch_prefill_func,
    mha_bwd,
    mha_fwd,
    mha_varlen_bwd,
    mha_varlen_fwd,
)

__version__ = "0.1.9+tilekiln"
"""Of the distribution that callers see after `install`: an aiter that has these functions. diffusers wants 0.1.5."""

__all__ = [
    "flash_attn_fp8_pertensor_func",
    "flash_attn_func",
    "flash_attn_varlen_fp8_pertensor_func",
    "flash_attn_varlen_func",
    "install",
    "mha_batch_prefill_func",
    "mha_bwd",
    "mha_fwd",
    "mha_varlen_bwd",
    "mha_varlen_fwd",
    "uninstall",
]


def install(over_installed: bool = False) -> None:
    """Let `import aiter`, its submodules and importlib.metadata.version("aiter") find this package.

    over_installed: put it over another aiter that is installed or imported; without it that is an ImportError that
    names where the other one is. Names that were imported from the other one before stay what they are.
    """
    _modules.install("aiter", __name__, __version__, over_installed)


def uninstall() -> None:
    """Undo install(): the next `import aiter` finds what it found before it."""
    _modules.uninstall("aiter")


def __getattr__(name: str) -> Any:
    """aiter has hundreds of functions; of those that are not here, say so."""
    hint = "; its attention without assembly is mha_fwd and mha_bwd" if name.startswith("fmha_v3") else ""
    have = ", ".join(one for one in __all__ if "install" not in one)
    raise AttributeError(f"tilekiln.compat.aiter has no {name!r}: it has the attention functions {have}{hint}")
