# SPDX-License-Identifier: MIT
"""Norms, gradients, reductions and moves beside a copy on the device: TB/s of what is read and written, its share."""

from __future__ import annotations

from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu import bench_tokens
from tools.gpu.timing import interleaved

SHAPES = ((4096, 1024), (16384, 4096), (8192, 8192), (4096, 16384), (1024, 65536))


def measure(programs: dict[str, tuple[Any, int]], rounds: int) -> None:
    """`programs`: with the bytes of each. The first is a copy."""
    took = interleaved({name: program for name, (program, _) in programs.items()}, rounds)
    rates = {name: size / took[name] / 1e9 for name, (_, size) in programs.items()}
    of_copy = rates["torch copy"]
    for name, rate in rates.items():
        print(f"  {name:28} {rate:6.3f} TB/s {rate / of_copy:6.3f}", flush=True)


def of_rows(library: tk.Library, shape: tuple[int, int], dtype: Any, rounds: int) -> None:
    count, columns = shape
    x, residual, y, up = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
    gamma, beta = (torch.randn(columns, device="cuda").to(dtype) for _ in range(2))
    size = x.numel() * x.element_size()
    quantised, scale = torch.empty(shape, device="cuda", dtype=torch.int8), torch.empty(count, device="cuda")
    print(f"{dtype} {count} x {columns}", flush=True)
    measure(
        {
            "torch copy": (partial(y.copy_, x), 2 * size),
            "rmsnorm2d": (partial(library.rmsnorm2d, x, gamma, y=y), 2 * size),
            "rmsnorm2d, residual": (
                partial(library.rmsnorm2d, x, gamma, y=y, residual=residual, residual_out=up),
                4 * size,
            ),
            "layernorm2d": (partial(library.layernorm2d, x, gamma, beta, y=y), 2 * size),
            "softmax": (partial(library.softmax, x, y=y), 2 * size),
            "silu_and_mul": (partial(library.silu_and_mul, x, residual, y=y), 3 * size),
            "rmsnorm2d_rdquant": (
                partial(library.rmsnorm2d_rdquant, x, gamma, y=quantised, y_scale=scale),
                size + x.numel(),
            ),
            "add_rmsnorm2d_rdquant": (
                partial(
                    library.rmsnorm2d_rdquant, x, gamma, y=quantised, y_scale=scale, residual=residual, residual_out=up
                ),
                3 * size + x.numel(),
            ),
            "smoothquant": (partial(library.smoothquant, x, None, y=quantised, y_scale=scale), size + x.numel()),
            "gelu_and_mul": (partial(library.gelu_and_mul, x, residual, y=y), 3 * size),
            "moe_smoothquant": (_of_experts(library, x), 2 * size + 2 * x.numel()),
            "merge": (_of_parts(library, x, residual, y), 3 * size),
            "copy": (partial(library.copy, x, y=y), 2 * size),
            "torch rms_norm": (partial(torch.nn.functional.rms_norm, x, (columns,), gamma), 2 * size),
            "torch softmax": (partial(torch.softmax, x, 1), 2 * size),
        },
        rounds,
    )


def _of_experts(library: tk.Library, x: Any) -> Any:
    """moe_smoothquant of rows for two experts each."""
    count, columns = x.shape
    factors = torch.rand(8, columns, device="cuda") + 0.5
    ids = torch.randint(0, 8, (count, 2), device="cuda", dtype=torch.int32)
    y = torch.empty(2, count, columns, device="cuda", dtype=torch.int8)
    return partial(library.moe_smoothquant, x, factors, ids, y=y, y_scale=torch.empty(2, count, device="cuda"))


def _of_parts(library: tk.Library, one: Any, other: Any, y: Any) -> Any:
    """merge of both, with their log sums."""
    lse_a, lse_b = (torch.randn(len(one), device="cuda") for _ in range(2))
    return partial(library.merge, one, lse_a, other, lse_b, out=y, lse=torch.empty_like(lse_a))


def of_moves(library: tk.Library, rounds: int) -> None:
    for kind in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        side = {1: 16384, 2: 8192, 4: 8192, 8: 4096}[kind.itemsize]
        x = torch.randint(0, 256, (side, side * kind.itemsize), device="cuda", dtype=torch.uint8).view(kind)
        y, heads = torch.empty_like(x), x.view(16, side // 16, 32, side // 32)
        turned = torch.empty(16, 32, side // 16, side // 32, device="cuda", dtype=kind)
        images = torch.empty(16, 32, side // 32, side // 16, device="cuda", dtype=kind)
        size = 2 * x.numel() * x.element_size()
        print(f"{kind} {side} x {side}", flush=True)
        measure(
            {
                "torch copy": (partial(y.copy_, x), size),
                "copy": (partial(library.copy, x, y=y), size),
                "transpose": (partial(library.transpose, x, y=y), size),
                "permute 0 2 1 3": (partial(library.permute, heads, axes=(0, 2, 1, 3), y=turned), size),
                "permute 0 2 3 1": (partial(library.permute, heads, axes=(0, 2, 3, 1), y=images), size),
                "torch transpose": (partial(y.copy_, x.T), size),
            },
            rounds,
        )


def of_gradients(library: tk.Library, shape: tuple[int, int], dtype: Any, rounds: int) -> None:
    """Gradients of norms, and reductions, of the same arrays."""
    dy, x, dx = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
    gamma, dgamma, dbeta = (torch.randn(shape[1], device="cuda").to(dtype) for _ in range(3))
    mean = x.float().mean(1)
    deviation, root = x.float().std(1, correction=0).reciprocal(), x.float().square().mean(1).rsqrt()
    of_rows_, of_columns, of_all = (torch.empty(size, device="cuda", dtype=dtype) for size in (shape[0], shape[1], ()))
    size = x.numel() * x.element_size()
    print(f"{dtype} {shape[0]} x {shape[1]}", flush=True)
    reduce = partial(library.reduce, x)
    measure(
        {
            "torch copy": (partial(dx.copy_, x), 2 * size),
            "rmsnorm2d_bwd": (partial(library.rmsnorm2d_bwd, dy, x, gamma, root, dx=dx, dgamma=dgamma), 3 * size),
            "layernorm2d_bwd": (
                partial(library.layernorm2d_bwd, dy, x, gamma, mean, deviation, dx=dx, dgamma=dgamma, dbeta=dbeta),
                3 * size,
            ),
            "sums of rows": (partial(reduce, axes=[1], operation="sum", y=of_rows_), size),
            "torch sums of rows": (partial(torch.sum, x, 1), size),
            "sums of columns": (partial(reduce, axes=[0], operation="sum", y=of_columns), size),
            "torch sums of columns": (partial(torch.sum, x, 0), size),
            "maximum of all": (partial(reduce, axes=[0, 1], operation="max", y=of_all), size),
            "torch maximum of all": (partial(torch.amax, x), size),
        },
        rounds,
    )


def of_patches(library: tk.Library, rounds: int) -> None:
    for channels, side in ((256, 56), (64, 112), (8, 224)):
        x = torch.randn(16, side, side, channels, device="cuda").to(torch.bfloat16)
        given: dict[str, Any] = {"filter": (3, 3), "padding": (1, 1)}
        y = library.img2col(x, **given)
        size = (x.numel() + y.numel()) * x.element_size()
        print(f"img2col 3 x 3 of {tuple(x.shape)}", flush=True)
        whole = torch.empty(size // 4, device="cuda", dtype=torch.int16)
        other = torch.empty_like(whole)
        measure(
            {
                "torch copy": (partial(other.copy_, whole), 2 * whole.numel() * 2),
                "img2col": (partial(library.img2col, x, **given, y=y), size),
            },
            rounds,
        )


GRADIENTS = ((16384, 1024), (16384, 4096), (8192, 8192))


def run(library: tk.Library, rounds: int) -> None:
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    for shape in SHAPES:
        of_rows(library, shape, torch.bfloat16, rounds)
    for dtype in (torch.float16, torch.float32):
        of_rows(library, SHAPES[2], dtype, rounds)
    of_moves(library, rounds)
    for dtype in (torch.bfloat16, torch.float32):
        for shape in GRADIENTS:
            of_gradients(library, shape, dtype, rounds)
    of_patches(library, rounds)
    if any(one.family == "sample" for one in library.instances()):
        bench_tokens.run(library, rounds)
