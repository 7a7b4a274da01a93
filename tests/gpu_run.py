"""The CPU's own tests on a GPU: TILEKILN_TEST_DEVICE=cuda, on a machine as tools/gpu/README.md describes it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

DEVICE = os.environ.get("TILEKILN_TEST_DEVICE", "cpu")
WIDEST = "fp32" if DEVICE == "cpu" else "fp16"
"""Of attention's dtypes there."""
TARGETS = 4 if DEVICE == "cpu" else 1
"""Instances of one signature in a library of all targets; of a GPU's there is one."""
NO_ATTENTION_OF = re.compile(r" for fmha_\w+ (?:\S+ )*dtype=(fp32|fp8\w+) ")
"""fp32 has none there; fp8 has libraries of its own."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "host_only(reason): runs on the CPU alone (tests/gpu_run.py)")
    if DEVICE != "cpu":
        import torch

        torch.set_default_device(DEVICE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if DEVICE != "cpu" else ():
        if mark := item.get_closest_marker("host_only"):
            item.add_marker(pytest.mark.skip(reason=f"on the CPU alone: {mark.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """A test that asks for attention of fp32 or fp8 is skipped there, and says so."""
    try:
        yield
    except Exception as error:
        dtype = NO_ATTENTION_OF.search(str(error))
        if DEVICE == "cpu" or type(error).__name__ != "NoKernelError" or not dtype:
            raise
        pytest.skip(f"{DEVICE} has no attention of {dtype[1]} in this library")
