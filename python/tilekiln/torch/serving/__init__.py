# SPDX-License-Identifier: MIT
"""A decoder of Transformers that serves many requests at once, over pages of keys and values."""

from .loop import Server
from .request import Request

__all__ = ["Request", "Server"]
