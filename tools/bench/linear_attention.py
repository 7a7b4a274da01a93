# SPDX-License-Identifier: MIT
"""linear_attention: causal_conv1d, gated_delta_rule and Mamba-2's scan beside what Transformers falls back to.

One pinned thread; thread CPU time, measured in turns (A, B, A) in one process; figures are medians of the ratios of
PyTorch's time to ours. backward: the gradients of a recorded call alone, of every argument.

    tools/dev --with transformers python tools/bench linear_attention [--tokens 1024] [--dtypes fp32,bf16] [--rounds 5]
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from .decode import ratio

Functions = tuple[Callable[..., Any], Callable[..., Any]]
HEADS, GROUPS, HDIM, CHANNELS = 8, 4, 128, 4096


def rows(tokens: int, dtype: Any) -> Iterator[tuple[str, Functions, tuple[Any, ...], dict[str, Any]]]:
    """(name, our function and theirs, arrays that are differentiated, other arguments)."""
    import torch
    from tilekiln.torch import linear_attention as ours
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi
    from transformers.models.mamba2 import modeling_mamba2 as mamba
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    random = torch.Generator().manual_seed(0)

    def normal(*shape: int, kind: Any = dtype) -> Any:
        return torch.randn(shape, generator=random).to(kind)

    x = normal(1, tokens, CHANNELS).transpose(1, 2)
    conv = (ours.causal_conv1d_fn, qwen.causal_conv1d_fn)
    yield "conv1d silu", conv, (x, normal(CHANNELS, 4), normal(CHANNELS)), {"activation": "silu"}
    q, k, v = normal(1, tokens, GROUPS, HDIM), normal(1, tokens, GROUPS, HDIM), normal(1, tokens, HEADS, HDIM)
    g, beta = -torch.rand(1, tokens, HEADS, generator=random), torch.rand(1, tokens, HEADS, generator=random).to(dtype)
    how = {"use_qk_l2norm_in_kernel": True}
    rule = (ours.delta_rule, qwen.torch_chunk_gated_delta_rule)
    yield "delta rule", rule, (q, k, v, g, beta), how
    wide = -torch.rand(1, tokens, HEADS, HDIM, generator=random)
    alike = normal(1, tokens, HEADS, HDIM), normal(1, tokens, HEADS, HDIM), v, wide, beta
    yield "KDA", (ours.delta_rule, kimi.chunk_kimi_delta_attention), alike, how
    dt, a = torch.rand(1, tokens, HEADS, generator=random).to(dtype), -torch.rand(HEADS, generator=random)
    scanned = v, dt, a, normal(1, tokens, 1, HDIM), normal(1, tokens, 1, HDIM)
    yield "SSD", (ours.chunk_scan, mamba.mamba2_chunk_scan), scanned, {"chunk_size": 256}


def steps(dtype: Any) -> Iterator[tuple[str, Functions, tuple[Any, ...], dict[str, Any]]]:
    """One token of 32 heads after others."""
    import torch
    from tilekiln.torch import linear_attention as ours
    from transformers.models.mamba2 import modeling_mamba2 as mamba
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    heads = 4 * HEADS
    q, k, v = (torch.randn(1, 1, count, HDIM).to(dtype) for count in (heads // 2, heads // 2, heads))
    state = torch.randn(1, heads, HDIM, HDIM)
    given = q, k, v, -torch.rand(1, 1, heads), torch.rand(1, 1, heads).to(dtype)
    how = {"use_qk_l2norm_in_kernel": True, "initial_state": state, "output_final_state": True}
    yield "delta rule, a token", (ours.delta_rule, qwen.torch_recurrent_gated_delta_rule), given, how
    dt, a = torch.rand(1, heads, 1).to(dtype).expand(-1, -1, HDIM), -torch.rand(heads, 1, 1).expand(-1, HDIM, HDIM)
    b, c = torch.randn(1, 1, HDIM).to(dtype), torch.randn(1, 1, HDIM).to(dtype)
    both = ours.state_update, mamba.mamba2_selective_state_update
    yield "SSD, a token", both, (state.transpose(-1, -2), v[:, 0], dt, a, b, c), {}


def backward(function: Callable[..., Any], arrays: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Any]:
    import torch

    leaves = [x.detach().requires_grad_() for x in arrays]
    made = function(*leaves, **named)
    out = made[0] if isinstance(made, tuple) else made
    return functools.partial(torch.autograd.grad, out, leaves, torch.randn_like(out), retain_graph=True)


def gain(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """PyTorch's time over ours, and ours in seconds."""
    slower, seconds = ratio(ours, theirs, rounds)
    return 1 / slower, seconds


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench linear_attention", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=lambda text: [int(one) for one in text.split(",")], default=[128, 1024])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    import torch
    from tilekiln.torch import operators

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print("call                 dtype tokens        ms   torch / ours        ms   torch / ours, backward")
    for dtype in arguments.dtypes:
        kind = operators.DTYPES[dtype]
        for tokens in arguments.tokens:
            for name, both, arrays, named in rows(tokens, kind):
                with torch.no_grad():
                    ours, theirs = (functools.partial(one, *arrays, **named) for one in both)
                    more, seconds = gain(ours, theirs, arguments.rounds)
                later, slow = gain(*(backward(one, arrays, named) for one in both), arguments.rounds)
                print(
                    f"{name:20} {dtype:5} {tokens:6} {seconds * 1e3:9.3f} {more:14.1f} {slow * 1e3:9.3f} {later:14.1f}",
                    flush=True,
                )
        with torch.no_grad():
            for name, both, arrays, named in steps(kind):
                ours, theirs = (functools.partial(one, *arrays, **named) for one in both)
                more, seconds = gain(ours, theirs, 4 * arguments.rounds)
                print(f"{name:20} {dtype:5} {1:6} {seconds * 1e3:9.3f} {more:14.1f}", flush=True)
    return 0
