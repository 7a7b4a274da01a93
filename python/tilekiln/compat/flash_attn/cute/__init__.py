# SPDX-License-Identifier: MIT
"""flash_attn.cute: the functions of FlashAttention 4, to the letter, computed by Tilekiln's kernels."""

from __future__ import annotations

from .interface import flash_attn_func, flash_attn_varlen_func

__version__ = "4.0.0"
"""The version of flash_attn_4 whose functions these are."""

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
