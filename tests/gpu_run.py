# SPDX-License-Identifier: MIT
"""The CPU's own tests on a GPU: TILEKILN_TEST_DEVICE=cuda, on a machine as tools/gpu/README.md describes it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import traceback
from collections.abc import Iterator

import pytest

DEVICE = os.environ.get("TILEKILN_TEST_DEVICE", "cpu")
WIDEST = "fp32" if DEVICE == "cpu" else "fp16"
"""Of attention's dtypes there."""
CPU_TARGETS = ("cpu-generic", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16")
"""Those of the machine that runs the tests, the slowest first."""
if platform.machine() == "aarch64":  # what Linux says of it (AT_HWCAP2), also where an emulator stands for it
    CPU_TARGETS = ("cpu-generic", "cpu-neon", "cpu-neonbf16")[: 3 if ctypes.CDLL(None).getauxval(26) >> 14 & 1 else 2]
TARGETS = len(CPU_TARGETS) if DEVICE == "cpu" else 1
"""Instances of one signature in a library of all targets; of a GPU's there is one."""
ISAS = CPU_TARGETS if DEVICE == "cpu" else ("cuda-sm90a",)
"""Targets of such a library."""
NO_KERNEL_OF = re.compile(r" (?:for|problem:) (fmha_\w+|\w*gemm\w*|flatmm\w*) (?:\S+ )*dtype=(fp32|fp8\w+|int8) ")
"""Attention and products of fp32 and int8 are the CPU's; fp8 has libraries of its own. Norms and moves are whole."""
NOT_THERE = ("its bytes are not stored", "must be a multiple of 8", "must have a multiple of 8")
"""Of refusals: dropout's bytes, strides and head dims that CUDA's loads cannot take."""


def leave_out(others: frozenset[str]) -> None:
    """Takes targets out of ISAS, before tests are collected."""
    global ISAS, TARGETS
    ISAS = tuple(one for one in ISAS if one not in others)
    TARGETS = len(ISAS)


def reason(error: BaseException) -> str | None:
    """The refusal in an error that a GPU's rules, or a library of the CPU alone, give; None for any other error."""
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
    if "NoKernelError" in kinds:
        lacks = NO_KERNEL_OF.search(text)
        return f"no {lacks[1]} of {lacks[2]} in this library" if lacks else None
    if "ArgumentError" not in kinds:
        return None
    chosen = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__))
    if "must be cpu" in text and "tilekiln.api.operators" not in chosen:  # else the facade's choice was wrong
        return "must be cpu"
    return next((end for end in NOT_THERE if end in text), None)


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
        refused = None if DEVICE == "cpu" else reason(error)
        if refused is None:
            raise
        pytest.skip(f"{DEVICE}: {refused}")
