"""The arguments of attention past q, k and v, for type checkers."""

from __future__ import annotations

from ._declared import Array
from ._declared import FmhaBwdArguments as BackwardArguments
from ._declared import FmhaFwdArguments as AttentionArguments
from ._declared import FmhaFwdSplitkvArguments as DecodeArguments

__all__ = ["Array", "AttentionArguments", "BackwardArguments", "DecodeArguments"]
