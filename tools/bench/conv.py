# SPDX-License-Identifier: MIT
"""conv: convolutions of ResNet-50, ConvNeXt, Whisper and wav2vec2 beside PyTorch's (oneDNN), in one process.

One pinned thread; thread CPU time, measured in turns (A, B, A); figures are medians of the ratios of PyTorch's time to
ours. A layer is NCHW, as PyTorch's default is, or channels last, x and y both; each side makes its result inside the
time. data and weight: the gradients alone. int8, forward: beside PyTorch's quantised convolution, its weight packed
ahead, which gives 8 bits where ours gives fp32. More than one thread: wall time, as many CPUs.

    tools/dev --with torch python tools/bench conv [--dtypes fp32,int8] [--layers resnet] [--what forward,data,weight]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from .decode import Call, ratio


class Layer(NamedTuple):
    """A convolution of a model: lengths of x without its batch, outputs, the filter, and its window."""

    name: str
    x: tuple[int, ...]
    outputs: int
    filter: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1


LAYERS = [
    Layer("resnet conv1 7x7/2", (3, 224, 224), 64, (7, 7), 2, 3),
    Layer("resnet 56 1x1 64-256", (64, 56, 56), 256, (1, 1)),
    Layer("resnet 56 3x3 64", (64, 56, 56), 64, (3, 3), 1, 1),
    Layer("resnet 56 1x1 256-64", (256, 56, 56), 64, (1, 1)),
    Layer("resnet 56 3x3/2 128", (128, 56, 56), 128, (3, 3), 2, 1),
    Layer("resnet 28 3x3 128", (128, 28, 28), 128, (3, 3), 1, 1),
    Layer("resnet 56 1x1/2 256-512", (256, 56, 56), 512, (1, 1), 2),
    Layer("resnet 14 3x3 256", (256, 14, 14), 256, (3, 3), 1, 1),
    Layer("resnet 14 1x1 1024-256", (1024, 14, 14), 256, (1, 1)),
    Layer("resnet 7 3x3 512", (512, 7, 7), 512, (3, 3), 1, 1),
    Layer("resnet 7 1x1 512-2048", (512, 7, 7), 2048, (1, 1)),
    Layer("convnext stem 4x4/4", (3, 224, 224), 96, (4, 4), 4),
    Layer("convnext 56 7x7 depthwise 96", (96, 56, 56), 96, (7, 7), 1, 3, 96),
    Layer("convnext 28 7x7 depthwise 192", (192, 28, 28), 192, (7, 7), 1, 3, 192),
    Layer("convnext 14 7x7 depthwise 384", (384, 14, 14), 384, (7, 7), 1, 3, 384),
    Layer("convnext 7 7x7 depthwise 768", (768, 7, 7), 768, (7, 7), 1, 3, 768),
    Layer("convnext 56 2x2/2 96-192", (96, 56, 56), 192, (2, 2), 2),
    Layer("mobilenet 56 3x3 depthwise 144", (144, 56, 56), 144, (3, 3), 1, 1, 144),
    Layer("mobilenet 56 3x3/2 depthwise 144", (144, 56, 56), 144, (3, 3), 2, 1, 144),
    Layer("whisper conv1 k3 80-512", (80, 3000), 512, (3,), 1, 1),
    Layer("whisper conv2 k3/2 512", (512, 3000), 512, (3,), 2, 1),
    Layer("wav2vec2 k10/5 1-512", (1, 16000), 512, (10,), 5),
    Layer("wav2vec2 k3/2 512", (512, 3199), 512, (3,), 2),
    Layer("wav2vec2 k2/2 512", (512, 199), 512, (2,), 2),
    Layer("resnext 14 3x3 32 groups of 16", (512, 14, 14), 512, (3, 3), 1, 1, 32),
    Layer("mobilenet stem 3x3/2", (3, 224, 224), 32, (3, 3), 2, 1),
    Layer("unet 32 3x3 320", (320, 32, 32), 320, (3, 3), 1, 1),
    Layer("conformer k31 depthwise 512", (512, 200), 512, (31,), 1, 15, 512),
    Layer("vit patches 16x16", (3, 224, 224), 768, (16, 16), 16),
    Layer("wav2vec2 positions k128 16 groups", (768, 49), 768, (128,), 1, 64, 16),
]
NEEDS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def wall_ratio(ours: Call, other: Call, rounds: int) -> tuple[float, float]:
    """`ratio` by wall time, the least of some calls of a round: threads wait where a machine is loaded."""
    ours(), other()
    ratios, times = [], []
    for _ in range(rounds):
        each: list[list[float]] = [[], []]
        for call in (ours, other) * 7:
            start = time.perf_counter()
            call()
            each[call is other].append(time.perf_counter() - start)
        ratios.append(min(each[0]) / min(each[1]))
        times.append(min(each[0]))
    return statistics.median(ratios), statistics.median(times)


def int8_calls(layer: Layer, batch: int, last: bool, threads: int) -> tuple[Any, Any, Any]:
    """The same of numbers of 8 bits."""
    import tilekiln as tk
    import torch

    library, random, spatial = tk.load("conv"), torch.Generator().manual_seed(0), len(layer.filter)
    form = torch.channels_last if last and spatial == 2 else torch.contiguous_format
    x = torch.randint(-9, 10, (batch, *layer.x), generator=random).to(torch.int8).contiguous(memory_format=form)
    shape = (layer.outputs, layer.x[0] // layer.groups, *layer.filter)
    weight, scale = torch.randint(-9, 10, shape, generator=random).to(torch.int8), torch.full((layer.outputs,), 0.01)
    window = {"stride": [layer.stride], "padding": [layer.padding], "groups": layer.groups}
    theirs_x = torch.quantize_per_tensor(x.float(), 1.0, 64, torch.quint8)
    zeros = torch.zeros(layer.outputs, dtype=torch.int64)
    theirs_w = torch.quantize_per_channel(weight.float() * 0.01, scale.double(), zeros, 0, torch.qint8)
    how = ([layer.stride] * spatial, [layer.padding] * spatial, [1] * spatial, layer.groups)
    packed = getattr(torch.ops.quantized, f"conv{spatial}d_prepack")(theirs_w, None, *how)
    y = library.conv_fwd(x, weight, scale=scale, out_dtype="fp32", **window).contiguous(memory_format=form)
    return (
        lambda: library.conv_fwd(x, weight, scale=scale, y=torch.empty_like(y), num_threads=threads, **window),
        lambda: getattr(torch.ops.quantized, f"conv{spatial}d")(theirs_x, packed, 1.0, 64),
        lambda a, b: float("nan"),
    )


def calls(layer: Layer, batch: int, dtype: Any, last: bool, what: str, threads: int) -> tuple[Any, Any, Any]:
    """Our call and PyTorch's, and their results' largest difference as a share of the largest number."""
    import tilekiln as tk
    import torch

    library, random = tk.load("conv"), torch.Generator().manual_seed(0)
    function = getattr(torch.nn.functional, f"conv{len(layer.filter)}d")

    def laid(tensor: Any) -> Any:
        if not last:
            return tensor.contiguous()
        order = (0, *range(2, tensor.ndim), 1)
        return tensor.permute(order).contiguous().permute(0, tensor.ndim - 1, *range(1, tensor.ndim - 1))

    x = laid(torch.randn((batch, *layer.x), generator=random).to(dtype))
    weight = torch.randn((layer.outputs, layer.x[0] // layer.groups, *layer.filter), generator=random).to(dtype)
    bias = torch.randn(layer.outputs, generator=random)
    window = {"stride": [layer.stride], "padding": [layer.padding], "groups": layer.groups}
    theirs_window = {"stride": layer.stride, "padding": layer.padding, "groups": layer.groups}
    narrow = bias.to(dtype)
    y = laid(function(x, weight, narrow, **theirs_window))
    if what == "forward":
        return (
            lambda: library.conv_fwd(x, weight, bias=bias, y=torch.empty_like(y), num_threads=threads, **window),
            lambda: function(x, weight, narrow, **theirs_window),
            lambda a, b: float((a.float() - b.float()).abs().max() / b.float().abs().max()),
        )
    dy = laid(torch.randn(y.shape, generator=random).to(dtype))
    grad = torch.ops.aten.convolution_backward
    spatial = len(layer.filter)
    how = ([layer.stride] * spatial, [layer.padding] * spatial, [1] * spatial, False, [0] * spatial, layer.groups)
    mask = [what == "data", what == "weight", False]

    def ours() -> Any:
        made = torch.empty_like(x if what == "data" else weight)
        if what == "data":
            return library.conv_bwd_data(dy, weight, dx=made, lengths=list(x.shape[2:]), num_threads=threads, **window)
        return library.conv_bwd_weight(x, dy, dweight=made, filter=list(layer.filter), num_threads=threads, **window)

    return (
        ours,
        lambda: grad(dy, x, weight, None, *how, mask)[0 if what == "data" else 1],
        lambda a, b: float((a.float() - b.float()).abs().max() / b.float().abs().max()),
    )


def measured(options: argparse.Namespace) -> Iterator[str]:
    import torch

    for layer in LAYERS:
        if options.layers not in layer.name:
            continue
        for name in options.dtypes.split(","):
            for layout in options.layouts.split(","):
                for what in options.what.split(","):
                    how = options.batch, layout == "nhwc", options.threads
                    if name == "int8":
                        ours, theirs, apart = int8_calls(layer, *how)
                    else:
                        dtype = getattr(torch, NEEDS[name])
                        ours, theirs, apart = calls(layer, how[0], dtype, how[1], what, how[2])
                    error = apart(ours(), theirs())
                    slower, seconds = (ratio if options.threads == 1 else wall_ratio)(ours, theirs, options.rounds)
                    figures = f"{seconds * 1e3:8.3f} ms {1 / slower:5.2f}"
                    yield f"{layer.name:34} {name} {layout} {what:7} {figures}  (apart {error:.0e})"


def main(argv: list[str]) -> int:
    """Prints a line for each layer, dtype, layout and direction."""
    import torch

    parser = argparse.ArgumentParser(prog="conv")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--what", default="forward")
    parser.add_argument("--layers", default="")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])
    for line in measured(options):
        print(line, flush=True)
    return 0
