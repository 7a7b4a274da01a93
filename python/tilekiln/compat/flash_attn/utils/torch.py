# SPDX-License-Identifier: MIT
"""flash_attn.utils.torch: decorators of autograd functions under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import amp

__all__ = ["custom_amp_decorator", "custom_bwd", "custom_fwd"]


def custom_amp_decorator(dec: Callable[..., Any], cuda_amp_deprecated: bool) -> Callable[..., Any]:
    """dec, called with device_type="cuda" where cuda_amp_deprecated says that it takes one."""

    @functools.wraps(dec)
    def decorator(*args: Any, **kwargs: Any) -> Any:
        return dec(*args, **(kwargs | ({"device_type": "cuda"} if cuda_amp_deprecated else {})))

    return decorator


custom_fwd = custom_amp_decorator(amp.custom_fwd, True)
"""torch.amp.custom_fwd of CUDA tensors."""
custom_bwd = custom_amp_decorator(amp.custom_bwd, True)
"""torch.amp.custom_bwd of CUDA tensors."""
