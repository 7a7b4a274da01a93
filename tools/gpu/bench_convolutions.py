# SPDX-License-Identifier: MIT
"""Convolutions of a library beside PyTorch's (cuDNN, its search on), in CUDA graphs: microseconds and the share.

Layers are those of tools/bench conv; bf16, of channels that lie together, and as PyTorch's default lays them. The error
beside PyTorch's fp32 is that of both results over its norm.
"""

from __future__ import annotations

from typing import Any

import tilekiln as tk
import torch

from tools.bench.conv import LAYERS, Layer
from tools.gpu.bench_rotated import graph
from tools.gpu.timing import interleaved

BATCH, LENGTH = 32, 8
"""Images of a call, and sequences."""
BEYOND_L2 = 120 << 20  # bytes of arrays that a graph goes round, where they are few


def laid(array: torch.Tensor, last: bool) -> torch.Tensor:
    if not last:
        return array.contiguous()
    return array.movedim(1, -1).contiguous().movedim(-1, 1)


def measure(library: tk.Library, layer: Layer, last: bool, dtype: torch.dtype, rounds: int) -> None:
    spatial = len(layer.filter)
    batch = BATCH if spatial == 2 else LENGTH
    peer = (torch.nn.functional.conv1d, torch.nn.functional.conv2d)[spatial - 1]
    on: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    shape = (layer.outputs, layer.x[0] // layer.groups, *layer.filter)
    weight = laid(torch.randn(shape, **on) / shape[1] ** 0.5, last)
    bias = torch.randn(layer.outputs, **on)
    numbers = bias.float()
    window: dict[str, Any] = {"stride": [layer.stride], "padding": [layer.padding], "groups": layer.groups}
    x = laid(torch.randn(batch, *layer.x, **on), last)
    like = peer(x, weight, bias, layer.stride, layer.padding, 1, layer.groups)
    y = laid(torch.empty_like(like), last)
    wide = peer(x.float(), weight.float(), numbers, layer.stride, layer.padding, 1, layer.groups)
    library.conv_fwd(x, weight, bias=numbers, y=y, **window)
    errors = [((one.float() - wide).norm() / wide.norm()).item() for one in (like, y)]
    size = (x.numel() + y.numel()) * 2
    sets = [(x, y), *((torch.randn_like(x), torch.empty_like(y)) for _ in range(min(7, BEYOND_L2 // size)))]

    def own(x: Any, y: Any) -> None:
        library.conv_fwd(x, weight, bias=numbers, y=y, **window)

    def theirs(x: Any, _: Any) -> Any:
        return peer(x, weight, bias, layer.stride, layer.padding, 1, layer.groups)

    repeats = 2 * len(sets)
    graphs = {"peer": graph(theirs, sets, repeats), "own": graph(own, sets, repeats)}
    took = interleaved({name: one.replay for name, one in graphs.items()}, rounds)
    theirs_us, own_us = (took[name] / repeats * 1e3 for name in ("peer", "own"))
    products = y.numel() * weight[0].numel()
    words = f"{layer.name:34} {'last' if last else 'first':5} {batch:3} {theirs_us:8.1f} {own_us:8.1f}"
    rate = f"{2e-6 * products / own_us:6.1f} TFLOP/s {1e-6 * size / own_us:5.2f} TB/s"
    print(f"{words} {theirs_us / own_us:5.2f} {rate} {errors[0]:.1e} {errors[1]:.1e}", flush=True)


def run(library: tk.Library, rounds: int, names: list[str]) -> None:
    """Layers whose name has one of the names in it; all of none."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print("layer, channels, images, us of cuDNN, of Tilekiln, share; rates of Tilekiln; errors of both", flush=True)
    for last in (True, False):
        for layer in LAYERS:
            if not names or any(name in layer.name for name in names):
                measure(library, layer, last, torch.bfloat16, rounds)
                torch.cuda.empty_cache()
