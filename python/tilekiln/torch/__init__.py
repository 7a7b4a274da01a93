"""Tilekiln in PyTorch: custom operators `torch.ops.tilekiln.*`, which importing this registers, and calls to them."""

from __future__ import annotations

from . import calls, operators

__all__ = ["calls", "operators"]
