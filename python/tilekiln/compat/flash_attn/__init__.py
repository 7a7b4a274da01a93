# SPDX-License-Identifier: MIT
"""The functions of flash_attn 2.8, to the letter, computed by Tilekiln's kernels.

>>> import tilekiln.compat.flash_attn
>>> tilekiln.compat.flash_attn.install()  # doctest: +SKIP
>>> from flash_attn import flash_attn_func  # doctest: +SKIP

Imports torch. `install` makes `import flash_attn` resolve here; so does python/compat/flash_attn on PYTHONPATH.
"""

from __future__ import annotations

from ..._core import needs_torch  # noqa: F401
from .. import _modules
from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.4"
"""The version of flash_attn whose functions these are; callers compare it."""

DISTRIBUTIONS = {"flash_attn": __version__, "flash_attn_4": "4.0.0"}
"""The distributions of upstream whose modules are here, and their versions."""
APART = ("flash_attn.cute",)
"""Names of flash_attn_4, which give way to one that is installed."""

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
    "uninstall",
]


def install(over_installed: bool = False) -> None:
    """Let `import flash_attn`, its submodules and importlib.metadata.version("flash_attn") find this package.

    over_installed: put it over another flash_attn that is installed or imported; without it that is an ImportError that
    names where the other one is. Names that were imported from the other one before stay what they are.
    """
    _modules.install("flash_attn", __name__, __version__, over_installed, DISTRIBUTIONS, APART)


def uninstall() -> None:
    """Undo install(): the next `import flash_attn` finds what it found before it."""
    _modules.uninstall("flash_attn")
