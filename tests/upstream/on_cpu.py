# SPDX-License-Identifier: MIT
"""A plugin of pytest: `flash_attn` is Tilekiln's, and what a test makes on CUDA is on the CPU."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Any

import pytest
import tilekiln.compat.flash_attn
import torch
from torch.overrides import TorchFunctionMode

tilekiln.compat.flash_attn.install(over_installed=True)


def _moved(value: Any) -> Any:
    """A device of CUDA as the CPU."""
    cuda = (isinstance(value, str) and value.partition(":")[0] == "cuda") or (
        isinstance(value, torch.device) and value.type == "cuda"
    )
    return "cpu" if cuda else value


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_moved, args), **{name: _moved(value) for name, value in (kwargs or {}).items()})


class _Properties:
    total_memory = 0  # tests that need a GPU's worth of memory leave themselves out


def pytest_configure(config: pytest.Config) -> None:
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: _Properties  # type: ignore[assignment]
    torch.cuda.synchronize = lambda device=None: None
    torch.autocast = _autocast  # type: ignore[misc, assignment]
    _OnCpu().__enter__()


def _autocast(device_type: str, *args: Any, made: Any = torch.autocast, **named: Any) -> Any:
    return made(_moved(device_type), *args, **named)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same sample of each file every time."""
    number = int(os.environ["TILEKILN_UPSTREAM_SAMPLE"])
    if number:
        files: dict[Any, list[pytest.Item]] = defaultdict(list)
        for one in items:
            files[one.path].append(one)
        chosen = {
            id(one) for every in files.values() for one in random.Random(0).sample(every, min(number, len(every)))
        }
        items[:] = [one for one in items if id(one) in chosen]
