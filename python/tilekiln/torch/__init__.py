"""Tilekiln in PyTorch: custom operators `torch.ops.tilekiln.*`, which importing this registers, and calls to them."""

from __future__ import annotations

from . import batching, calls, derivatives, operators

__all__ = ["batching", "calls", "derivatives", "operators"]
