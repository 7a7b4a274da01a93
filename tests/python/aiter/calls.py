# SPDX-License-Identifier: MIT
"""Arrays of tests of tilekiln.compat.aiter, what they expect of quantised ones, and its module over a library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu_run import DEVICE

QUANTISED = pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=str)


def over(monkeypatch: pytest.MonkeyPatch, *libraries: Any) -> Any:
    """tilekiln.compat.aiter, with these libraries alone."""
    import tilekiln.compat.aiter

    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [*libraries])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    return tilekiln.compat.aiter


def normal(*shape, seed=0, dtype=torch.float32):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return made.to(dtype).to(DEVICE)


def undone(y, scale, exact, group=0):
    """y scale is exact again, to half a step of the largest of a row, or of a group of it."""
    y, exact = y.double().cpu(), exact.double().cpu()
    if group:
        y, exact = y.view(-1, group), exact.reshape(-1, group)
    scale = scale.double().cpu().reshape(-1, 1)
    step = scale * 0.52 if y.abs().max() <= 127 else exact.abs() / 16 + scale * 0.01
    assert ((y * scale - exact).abs() <= step + exact.abs().amax(-1, keepdim=True) * 0.008).all()
    most = exact.abs().amax(-1) / (127 if y.abs().max() <= 127 else 448)
    torch.testing.assert_close(scale.view(-1), most, rtol=0.02, atol=1e-9)
