# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.built_when_called DEVICE LIBRARY: a CUDA tensor's kernel is built when it is called.

DEVICE is torch_device.cpp, built; LIBRARY holds kernels of CPUs alone. The driver is cudasim, which finds the PTX of
the new library in TILEKILN_CUDASIM_PTX. Prints nothing when all holds.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

device = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch looks for one
import pytest  # noqa: E402
import tilekiln as tk  # noqa: E402
import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None

from tilekiln.api import just_in_time, operators, registry  # noqa: E402
from tilekiln.api import library as libraries  # noqa: E402

from tools.executor.ptx import sources  # noqa: E402


def opened(path: Path) -> Any:
    """As the store opens a library, with the PTX that a driver of silicon has no need of."""
    sources.write_all([path], Path(os.environ["TILEKILN_CUDASIM_PTX"]))
    return libraries._open(path)


def main(library: str) -> None:
    loaded = tk.load(library)
    operators._at_hand = functools.cache(lambda: [loaded, *registry.built])
    just_in_time._open = opened
    q, k, v = (torch.randn(1, length, heads, 64).bfloat16() for length, heads in ((40, 2), (50, 1), (50, 1)))
    there = [torch.empty(x.shape, dtype=x.dtype, device="cuda").copy_(x) for x in (q, k, v)]
    with pytest.raises(tk.ArgumentError, match=r"^q: device was cuda:0, must be "):
        tk.attention(*there, causal=True)
    out = tk.attention(*there, causal=True, on_missing="build")
    assert out.is_cuda
    turned = (x.float().transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(40, 50, dtype=torch.bool).tril(10)
    right = torch.nn.functional.scaled_dot_product_attention(*turned, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(torch.empty(out.shape, dtype=out.dtype).copy_(out).float(), right, atol=0.03, rtol=0.03)
    (made,) = registry.built
    assert [target["name"] for target in made.manifest["targets"]] == ["cuda-sm90a"]
    # Another kernel, refused by a library that has one of CUDA: the target is that of the device again.
    with pytest.raises(tk.NoKernelError):
        tk.attention(*there, causal=True, return_lse=True)
    again, lse = tk.attention(*there, causal=True, return_lse=True, on_missing="build")
    assert len(registry.built) == 2
    assert again.is_cuda
    assert lse.is_cuda
    asked = "fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64 mode=batch mask=window bias=none lse=no dropout=no softcap=no"
    just_in_time._run = None  # type: ignore[assignment]
    for wrong in ("gfx942!", "", None):
        with pytest.raises(tk.ArgumentError, match=r"^target: was .*, must be native, cuda, hip or a target's name"):
            tk.jit(asked, target=wrong)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[2])
