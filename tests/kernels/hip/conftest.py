"""LLVM's tools and the executor, for the kernels of HIP targets."""

from tests.executor.conftest import executor

__all__ = ["executor"]
