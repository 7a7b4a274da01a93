"""The CPU's own tests on a GPU: TILEKILN_TEST_DEVICE=cuda, on a machine as tools/gpu/README.md describes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

DEVICE = os.environ.get("TILEKILN_TEST_DEVICE", "cpu")
WIDEST = "fp32" if DEVICE == "cpu" else "fp16"
"""Of attention's dtypes there."""
ATTENTION_OF_FP32 = re.compile(r" for fmha_\w+ (\S+ )*dtype=fp32 ")


def pytest_configure() -> None:
    if DEVICE != "cpu":
        import torch

        torch.set_default_device(DEVICE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test that asks for fp32 attention is skipped there, and says so."""
    try:
        yield
    except Exception as error:
        if DEVICE == "cpu" or type(error).__name__ != "NoKernelError" or not ATTENTION_OF_FP32.search(str(error)):
            raise
        pytest.skip(f"{DEVICE} has no attention of fp32")
