# SPDX-License-Identifier: MIT
"""layers: norms and the gate as models call them: modules, layers, flash_attn.ops, JAX, beside stock ones, one core.

Microseconds of a call, forward alone and forward with backward, and the stock module's time over ours; timed as
`tools/bench norm` times, JAX by process time. The first table is one row by each way in: what a call costs over its
bytes. Then flash_attn's modules (--modules alone: nothing else): rotary embedding of one qkv, cross entropy over a
vocabulary, multi-head attention, beside what PyTorch has for them. Wants norm_default built for this machine, and
flash for the attention; with --jax, JAX.
"""

from __future__ import annotations

import argparse
import statistics
import time
import types
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import tilekiln.torch
import torch
from tilekiln._core.dtypes import NUMPY
from tilekiln.compat.flash_attn.layers.rotary import RotaryEmbedding
from tilekiln.compat.flash_attn.losses.cross_entropy import CrossEntropyLoss
from tilekiln.compat.flash_attn.modules.mha import MHA
from tilekiln.compat.flash_attn.ops import layer_norm, rms_norm
from tilekiln.torch import layers

from .norm import DTYPES, _once, start


class HubRMSNorm(torch.nn.Module):
    """A model's norm, before a layer of the Hub takes its forward."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(columns))
        self.variance_epsilon = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


def _with(module: torch.nn.Module, forward: Callable[..., Any]) -> torch.nn.Module:
    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]
    return module


def _pairs(columns: int, dtype: torch.dtype) -> dict[str, tuple[Any, Any]]:
    """Stock, ours."""
    flash = rms_norm.DropoutAddRMSNorm(columns, p=0.0, eps=1e-6)
    flash_layer = layer_norm.DropoutAddLayerNorm(columns, p=0.0)
    pairs = {
        "torch.RMSNorm": (HubRMSNorm(columns), tilekiln.torch.RMSNorm(columns, eps=1e-6, rounding="transformers")),
        "torch.LayerNorm": (torch.nn.LayerNorm(columns), tilekiln.torch.LayerNorm(columns)),
        "layers.RMSNorm": (HubRMSNorm(columns), _with(HubRMSNorm(columns), layers.RMSNorm.forward)),
        "layers.SiluAndMul": (Gate(), layers.SiluAndMul()),
        "flash_attn rms_norm": (HubRMSNorm(columns), flash),
        "flash_attn layer_norm": (torch.nn.LayerNorm(columns), flash_layer),
    }
    return {name: (stock.to(dtype), ours.to(dtype)) for name, (stock, ours) in pairs.items()}


def _compared(stock: Callable[[], Any], ours: Callable[[], Any], clock: Callable[[], float], repeat: int) -> str:
    ratios, spent = [], []
    for call in (stock, ours):
        call()
    for _ in range(repeat):
        spent.append(_once(ours, clock, 0.01))
        ratios.append(_once(stock, clock, 0.01) / spent[-1])
    return f"{statistics.median(spent) * 1e6:9.1f} us ({statistics.median(ratios):5.2f}x)"


def _trained(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Callable[[], Any]:
    leaves = [x, *module.parameters()]
    return lambda: torch.autograd.grad(module(x), leaves, dy)


def _one_row(library: tk.Library, repeat: int) -> None:
    """One row of 4,096 bf16 by every way in; the numbers of a way stand beside what its bytes take."""
    x, gamma = torch.randn(1, 4096).bfloat16(), torch.randn(4096).bfloat16()
    y, total, q = torch.empty_like(x), torch.empty_like(x), torch.empty(1, 4096, dtype=torch.int8)
    scale, image = torch.empty(1), torch.randn(1, 4, 16, 64).bfloat16()
    logits = torch.randn(1, 128).bfloat16()
    weights, indices = library.topk_softmax(logits, topk=8)
    patches = library.img2col(image, filter=(1, 1))
    _, mean, inverse = library.layernorm2d(x, gamma, None, return_mean=True, return_inv_std=True)
    dgamma = torch.empty_like(gamma)
    ops = torch.ops.tilekiln
    ways: dict[str, Callable[[], Any]] = {
        "copy_ (torch)": lambda: y.copy_(x),
        "rmsnorm2d": lambda: library.rmsnorm2d(x, gamma, y=y),
        "rmsnorm2d, new y": lambda: library.rmsnorm2d(x, gamma),
        "tk.rmsnorm2d": lambda: tk.rmsnorm2d(x, gamma, y=y),
        "torch.ops rmsnorm2d": lambda: ops.rmsnorm2d(x, gamma),
        "torch.ops rmsnorm2d_out": lambda: ops.rmsnorm2d_out(y, x, gamma),
        "layernorm2d": lambda: library.layernorm2d(x, gamma, gamma, y=y),
        "add_rms_rdquant": lambda: library.rmsnorm2d_rdquant(
            x, gamma, y=q, y_scale=scale, residual=x, residual_out=total
        ),
        "smoothquant": lambda: library.smoothquant(x, None, y=q, y_scale=scale),
        "softmax": lambda: library.softmax(x, y=y),
        "silu_and_mul": lambda: library.silu_and_mul(x, x, y=y),
        "rmsnorm2d_bwd": lambda: library.rmsnorm2d_bwd(x, x, gamma, inverse, dx=y, dgamma=dgamma),
        "layernorm2d_bwd": lambda: library.layernorm2d_bwd(x, x, gamma, mean, inverse, dx=y, dgamma=dgamma),
        "topk_softmax 128 k8": lambda: library.topk_softmax(logits, topk=8, weights=weights, indices=indices),
        "copy": lambda: library.copy(x, y=y),
        "permute": lambda: library.permute(x, y=y.view(4096, 1)),
        "reduce sum": lambda: library.reduce(x, axes=1, y=scale.bfloat16()),
        "img2col": lambda: library.img2col(image, filter=(1, 1), y=patches),
    }
    for name, call in ways.items():
        call()
        spent = statistics.median(_once(call, time.thread_time, 0.01) for _ in range(repeat))
        print(f"one row, {name:24}: {spent * 1e6:6.2f} us", flush=True)


class Rotary(torch.nn.Module):
    """As Transformers' models turn queries and keys, by tables that are there."""

    def __init__(self, positions: int, dim: int) -> None:
        super().__init__()
        angle = torch.outer(torch.arange(positions).float(), 10000.0 ** -(torch.arange(0, dim, 2) / dim))
        self.cos, self.sin = (torch.cat([one, one], -1)[:, None] for one in (angle.cos(), angle.sin()))

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        both, v = qkv[:, :, :2], qkv[:, :, 2:]
        first, second = both.chunk(2, -1)
        cos, sin = (table[: qkv.shape[1], None].to(qkv.dtype) for table in (self.cos, self.sin))
        return torch.cat([both * cos + torch.cat([-second, first], -1) * sin, v], 2)


def _modules(dtype: torch.dtype, name: str, repeat: int) -> None:
    """flash_attn's modules: rotary embedding of hidden size 4,096, losses of vocabularies, attention of 1,024."""

    def line(what: str, stock: Any, ours: Any, x: torch.Tensor, target: torch.Tensor | None = None) -> None:
        def called(module: Any, given: torch.Tensor) -> Any:
            return module(given) if target is None else module(given, target)

        with torch.no_grad():
            scratch = x.clone()
            alone = _compared(lambda: called(stock, scratch), lambda: called(ours, scratch), time.thread_time, repeat)
            dy = torch.randn_like(called(stock, x))

        def trained(module: Any) -> Callable[[], Any]:
            leaf = x.clone().requires_grad_()
            leaves = [leaf, *module.parameters()]
            return lambda: torch.autograd.grad(called(module, leaf * 1), leaves, dy)

        both = _compared(trained(stock), trained(ours), time.thread_time, repeat)
        print(f"{name} {what:34}: forward {alone}, and backward {both}", flush=True)

    for tokens in (1, 128, 1024):
        qkv = torch.randn(1, tokens, 3, 32, 128).to(dtype)
        line(f"RotaryEmbedding {tokens}x32x128", Rotary(tokens, 128), RotaryEmbedding(128), qkv)
    for rows, classes in ((64, 32000), (512, 32000), (64, 128256)):
        logits, labels = torch.randn(rows, classes).to(dtype), torch.randint(0, classes, (rows,))
        line(f"CrossEntropyLoss {rows}x{classes}", torch.nn.CrossEntropyLoss(), CrossEntropyLoss(), logits, labels)
    for tokens in (128, 1024):
        x = torch.randn(1, tokens, 1024).to(dtype)
        made = [
            MHA(1024, 16, causal=True, rotary_emb_dim=64, use_flash_attn=flash).to(dtype) for flash in (False, True)
        ]
        made[1].load_state_dict(made[0].state_dict())
        made[0].rotary_emb = _InPyTorch(64, tokens)
        line(f"MHA {tokens}x16x64 causal rotary", *made, x)


class _InPyTorch(torch.nn.Module):
    """Rotary, as MHA calls its own."""

    def __init__(self, dim: int, positions: int) -> None:
        super().__init__()
        self.by = Rotary(positions, dim)

    def forward(self, qkv: torch.Tensor, **_: Any) -> Any:
        return self.by(qkv)


def _jax(sizes: list[tuple[int, int]], dtype: str, repeat: int) -> None:
    import jax
    import jax.numpy as jnp
    import tilekiln.jax

    def stock(x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * weight

    for rows, columns in sizes:
        kind = NUMPY[dtype]
        x, weight = jnp.ones((rows, columns), kind), jnp.ones(columns, kind)
        for what in ("forward", "backward"):
            calls = []
            for norm in (stock, lambda x, weight: tilekiln.jax.rms_norm(x, weight, 1e-6)):
                call: Any = norm if what == "forward" else jax.grad(lambda x, w, f=norm: f(x, w).sum(), (0, 1))
                compiled = jax.jit(call)
                calls.append(lambda compiled=compiled, x=x, weight=weight: jax.block_until_ready(compiled(x, weight)))
            text = _compared(calls[0], calls[1], time.process_time, repeat)
            print(f"{dtype} {rows:>5}x{columns} {'jax.rms_norm':22}: {what} {text}", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench layers", description=__doc__)
    parser.add_argument("--sizes", default="1x4096,64x4096,1024x4096", help="rows x columns [%(default)s]")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES, help="[%(default)s]")
    parser.add_argument("--repeat", type=int, default=5, help="rounds [%(default)s]")
    parser.add_argument("--modules", action="store_true", help="flash_attn's modules alone")
    parser.add_argument("--jax", action="store_true", help="JAX's norm too")
    given = parser.parse_args(argv)
    library = start(1)
    if given.modules:
        _modules(DTYPES[given.dtype], given.dtype, given.repeat)
        return 0
    _one_row(library, given.repeat)
    sizes = [(int(size.split("x")[0]), int(size.split("x")[1])) for size in given.sizes.split(",")]
    for rows, columns in sizes:
        for name, (stock, ours) in _pairs(columns, DTYPES[given.dtype]).items():
            wide = 2 if "Silu" in name else 1
            x = torch.randn(rows, wide * columns).to(DTYPES[given.dtype])
            dy = torch.randn(rows, columns).to(DTYPES[given.dtype])
            with torch.no_grad():
                forward = _compared(lambda m=stock, x=x: m(x), lambda m=ours, x=x: m(x), time.thread_time, given.repeat)
            x.requires_grad_()
            both = _compared(_trained(stock, x, dy), _trained(ours, x, dy), time.thread_time, given.repeat)
            print(f"{given.dtype} {rows:>5}x{columns} {name:22}: forward {forward}, and backward {both}", flush=True)
    _modules(DTYPES[given.dtype], given.dtype, given.repeat)
    if given.jax:
        _jax(sizes, given.dtype, given.repeat)
    return 0
