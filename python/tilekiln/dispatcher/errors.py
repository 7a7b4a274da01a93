# SPDX-License-Identifier: MIT
"""Errors of the dispatcher, beside ArgumentError for a wrong value and NoKernelError where nothing answers."""

from __future__ import annotations

from .._core.native import ArgumentError, NoKernelError


class UnsupportedProblem(NoKernelError):  # noqa: N818  (C++'s name)
    """A kernel was asked for by its id, and does not answer the problem."""


class FileError(ArgumentError):
    """A file that cannot be read as what it should be; the text begins with file:line."""


__all__ = ["ArgumentError", "FileError", "NoKernelError", "UnsupportedProblem"]
