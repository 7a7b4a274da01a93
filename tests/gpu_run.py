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
NO_KERNEL_OF = re.compile(r" for (\w+) (?:\S+ )*dtype=(fp32|fp8\w+|int8) ")
"""fp32 and int8 have norms and moves alone on a GPU; fp8 has libraries of its own."""
NOT_THERE = ("its bytes are not stored", "must be a multiple of 8", "must have a multiple of 8", "must be cpu")
"""Of refusals: dropout's bytes, strides and head dims that CUDA's loads cannot take, libraries of the CPU alone."""


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
    """A test that asks for what a GPU's rules refuse is skipped there, and says so."""
    try:
        yield
    except Exception as error:
        kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
        lacks = NO_KERNEL_OF.search(text) if "NoKernelError" in kinds else None
        refused = [end for end in NOT_THERE if end in text] if "ArgumentError" in kinds else []
        if DEVICE == "cpu" or not (lacks or refused):
            raise
        pytest.skip(f"{DEVICE}: no {lacks[1]} of {lacks[2]} in this library" if lacks else f"{DEVICE}: {refused[0]}")
