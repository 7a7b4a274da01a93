# SPDX-License-Identifier: MIT
"""Functions of aiter, to the letter, computed by Tilekiln's kernels: attention, norms, rotary embedding and more.

>>> import tilekiln.compat.aiter
>>> tilekiln.compat.aiter.install()  # doctest: +SKIP
>>> from aiter import flash_attn_func  # doctest: +SKIP

Imports torch. `install` makes `import aiter` resolve here; so does python/compat/aiter on PYTHONPATH.
"""

from __future__ import annotations

from ..._core import needs_torch  # noqa: F401
from .. import _absent, _modules
from . import mla
from .ops import (
    activation,
    attention,
    batched_gemm_op_a8w8,
    batched_gemm_op_bf16,
    cache,
    enum,
    gemm_op_a8w8,
    gemm_op_a16w16,
    groupnorm,
    mha,
    moe_op,
    moe_sorting,
    norm,
    quant,
    rope,
    sample,
    topk,
)
from .ops import rmsnorm as _rmsnorm
from .ops.activation import *
from .ops.attention import *
from .ops.batched_gemm_op_a8w8 import *
from .ops.batched_gemm_op_bf16 import *
from .ops.cache import *
from .ops.enum import *
from .ops.gemm_op_a8w8 import *
from .ops.gemm_op_a16w16 import *
from .ops.groupnorm import *
from .ops.mha import *
from .ops.moe_op import *
from .ops.moe_sorting import *
from .ops.norm import *
from .ops.quant import *
from .ops.rmsnorm import *
from .ops.rope import *
from .ops.sample import *
from .ops.topk import *
from .utility import dtypes as dtypes

__version__ = "0.1.9+tilekiln"
"""Of the distribution that callers see after `install`: an aiter that has these functions. diffusers wants 0.1.5."""

__all__ = ["dtypes", "install", "mla", "uninstall"]
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += batched_gemm_op_a8w8.__all__
__all__ += batched_gemm_op_bf16.__all__
__all__ += cache.__all__
__all__ += enum.__all__
__all__ += gemm_op_a16w16.__all__
__all__ += gemm_op_a8w8.__all__
__all__ += groupnorm.__all__
__all__ += mha.__all__
__all__ += moe_op.__all__
__all__ += moe_sorting.__all__
__all__ += norm.__all__
__all__ += quant.__all__
__all__ += _rmsnorm.__all__
__all__ += rope.__all__
__all__ += sample.__all__
__all__ += topk.__all__

__getattr__ = _absent.sentences(__name__, gathers=True)


def install(over_installed: bool = False) -> None:
    """Let `import aiter`, its submodules and importlib.metadata.version("aiter") find this package.

    over_installed: put it over another aiter that is installed or imported; without it that is an ImportError that
    names where the other one is. Names that were imported from the other one before stay what they are.
    """
    _modules.install("aiter", __name__, __version__, over_installed)


def uninstall() -> None:
    """Undo install(): the next `import aiter` finds what it found before it."""
    _modules.uninstall("aiter")
