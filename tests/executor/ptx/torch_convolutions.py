# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.torch_convolutions DEVICE LIBRARY: torch.nn.functional's convolutions on cudasim.

DEVICE is torch_device.cpp, built. Prints nothing when all holds.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

device = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch looks for one
import tilekiln as tk  # noqa: E402
import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None

import tilekiln.torch  # noqa: E402
from tilekiln.api import operators  # noqa: E402
from tilekiln.torch import routed_convolutions  # noqa: E402

CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool], ...] = (
    ((2, 32, 9, 10), (64, 32, 3, 3), {"padding": 1}, True),
    ((1, 32, 40), (64, 32, 3), {"stride": 2}, False),
    ((1, 16, 9, 10), (16, 1, 7, 7), {"padding": 3, "groups": 16}, True),
)


def on_device(one: Any) -> Any:
    """A copy of a tensor without gaps, with its strides."""
    flat = one.as_strided((one.numel(),), (1,))
    return torch.empty(flat.shape, dtype=one.dtype, device="cuda").copy_(flat).as_strided(one.shape, one.stride())


def main(library: str) -> None:
    loaded = tk.load(library)
    operators._at_hand = lambda: [loaded]  # type: ignore[assignment]
    routed_convolutions._slower_on_cuda = lambda *_: ""  # type: ignore[assignment]
    for shape, filters, window, last in CASES:
        name = f"conv{len(filters) - 2}d"
        form = torch.channels_last if last else torch.contiguous_format
        x, weight = (torch.randn(one).bfloat16().contiguous(memory_format=form) for one in (shape, filters))
        there = [on_device(one) for one in (x, weight)]
        with tilekiln.torch.use():
            y = getattr(torch.nn.functional, name)(*there, **window)
        right = getattr(torch.nn.functional, name)(x.float(), weight.float(), **window)
        assert y.is_cuda
        assert y.is_contiguous(memory_format=form)
        torch.testing.assert_close(torch.empty_like(y, device="cpu").copy_(y).float(), right, atol=0.2, rtol=0.02)
        window = {"stride": [1], "padding": [0], "dilation": [1], "groups": 1}
        learns = [one.requires_grad_() for one in there]
        assert "conv_bwd_data" in routed_convolutions.not_worth_it(*learns, window, last, True)


if __name__ == "__main__":
    main(sys.argv[2])
