# SPDX-License-Identifier: MIT
"""LLVM's tools and the executor, for the kernels of HIP targets."""

from tests.executor.amdgcn.conftest import executor

__all__ = ["executor"]
