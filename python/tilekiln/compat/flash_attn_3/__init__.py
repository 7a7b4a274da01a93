# SPDX-License-Identifier: MIT
"""FlashAttention 3's module flash_attn_interface, to the letter, computed by Tilekiln's kernels.

>>> import tilekiln.compat.flash_attn_3
>>> tilekiln.compat.flash_attn_3.install()  # doctest: +SKIP
>>> from flash_attn_interface import flash_attn_func  # doctest: +SKIP

Imports torch. `install` makes `import flash_attn_interface` resolve here, and `import flash_attn_3`, under which newer
wheels have it; so does python/compat/flash_attn_3 on PYTHONPATH.
"""

from __future__ import annotations

from ..._core import needs_torch  # noqa: F401
from .. import _modules

__version__ = "3.0.0"
"""The version of flash_attn_3 whose functions these are."""

__all__ = ["install", "uninstall"]

MODULES = {"flash_attn_3": __name__, "flash_attn_interface": f"{__name__}.flash_attn_interface"}
"""The names that upstream's distribution has at the top."""
DISTRIBUTIONS = {"flash_attn_3": __version__}


def install(over_installed: bool = False) -> None:
    """Let `import flash_attn_interface`, `import flash_attn_3` and importlib.metadata.version("flash_attn_3") find
    ours.

    over_installed: put them over others that are installed or imported; without it that is an ImportError that names
    where the other one is.
    """
    for name, home in MODULES.items():
        _modules.check_installed(name, home, over_installed)
    for name, home in MODULES.items():
        _modules.install(name, home, __version__, over_installed, DISTRIBUTIONS)


def uninstall() -> None:
    """Undo install(): the next import of either name finds what it found before it."""
    for name in MODULES:
        _modules.uninstall(name)
