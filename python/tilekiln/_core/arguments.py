# SPDX-License-Identifier: MIT
"""The arguments of attention past q, k and v: for type checkers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._generated.declared import Array
    from .._generated.declared import FmhaBwdArguments as BackwardArguments
    from .._generated.declared import FmhaFwdArguments as AttentionArguments
    from .._generated.declared import FmhaFwdSplitkvArguments as DecodeArguments

    __all__ = ["Array", "AttentionArguments", "BackwardArguments", "DecodeArguments"]
