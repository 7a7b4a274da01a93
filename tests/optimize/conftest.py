# SPDX-License-Identifier: MIT
"""The libraries of the facade's tests."""

from tests.python.conftest import load

__all__ = ["load"]
