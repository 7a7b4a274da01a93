# SPDX-License-Identifier: MIT
"""Tests as the suites of flash_attn and aiter make them: a pairwise sampler, plain PyTorch attention, and the judge.

A result is judged by its error against attention in fp32: no more than so many times the error that the same
computation in PyTorch makes in the precision of the inputs, plus a small constant.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tilekiln._core.dtypes import TORCH

from tests.gpu_run import DEVICE

FORWARD, GRADIENT = 2, 3
"""Bound of a result's error, in PyTorch's errors."""
FP32 = 1e-5
"""The smallest step: the reference is fp32 itself."""
HEAD_DIMS = (32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256)
SEQLENS = ((1, 239), (113, 203), (799, 3), (1024, 1023), (3, 799), (127, 512), (256, 256), (129, 97))
HEADS = {"mha": (3, 3), "gqa": (6, 2), "mqa": (4, 1)}
"""(nhead_q, nhead_k)"""
DTYPES = {word: TORCH[word] for word in ("fp16", "bf16", "fp32")}


def pairwise(
    axes: dict[str, Sequence[Any]], allowed: Callable[[dict[str, Any]], bool] = lambda case: True, seed: int = 0
) -> list[dict[str, Any]]:
    """Few cases in which every two values of two axes meet, if any allowed case has them. The same ones every time.

    Greedy: each case begins with a pair that has not met and takes, axis by axis, the value that makes most new pairs.
    """
    random_ = random.Random(seed)
    names = list(axes)
    open_pairs = {
        frozenset([(a, i), (b, j)])
        for a, b in itertools.combinations(names, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    cases = []
    while open_pairs:
        first = min(open_pairs, key=sorted)
        made = None
        for _ in range(200):
            chosen = dict(first)
            for name in random_.sample(names, len(names)):
                if name not in chosen:
                    order = random_.sample(range(len(axes[name])), len(axes[name]))
                    chosen[name] = max(
                        order,
                        key=lambda i: sum(frozenset([(name, i), pair]) in open_pairs for pair in chosen.items()),
                    )
            case = {name: axes[name][chosen[name]] for name in names}
            if allowed(case):
                made = case
                break
            # Another try with random values in place of the best.
            chosen = {name: dict(first).get(name, random_.randrange(len(axes[name]))) for name in names}
            case = {name: axes[name][chosen[name]] for name in names}
            if allowed(case):
                made = case
                break
        open_pairs.discard(first)
        if made is not None:
            cases.append(made)
            open_pairs -= {frozenset(pair) for pair in itertools.combinations(chosen.items(), 2)}
    return cases


def normal(*shape: int, dtype: torch.dtype, seed: int, grad: bool = False) -> torch.Tensor:
    """Standard normal numbers, the same for the same seed."""
    made = torch.randn(shape, generator=torch.Generator(DEVICE).manual_seed(seed)).to(dtype)
    return made.requires_grad_(grad)


def visible(
    seqlen_q: int, seqlen_k: int, causal: bool = False, window: tuple[int, int] = (-1, -1), sink_size: int = 0
) -> torch.Tensor:
    """(seqlen_q, seqlen_k), bottom-right aligned: does row i see key j? The first sink_size keys need no left edge."""
    left, right = window
    right = 0 if causal else right
    middle = torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    j = torch.arange(seqlen_k)[None]
    seen = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool)
    if left >= 0:
        seen &= (j >= middle - left) | (j < sink_size)
    if right >= 0:
        seen &= j <= middle + right
    return seen


def alibi(slopes: torch.Tensor, seqlen_q: int, seqlen_k: int) -> torch.Tensor:
    """(1 | batch, nhead_q, seqlen_q, seqlen_k): -slope |i + seqlen_k - seqlen_q - j|."""
    distance = (torch.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q - torch.arange(seqlen_k)[None]).abs()
    return -(slopes if slopes.ndim == 2 else slopes[None])[..., None, None] * distance


class _Product(torch.autograd.Function):
    """a @ b in fp32, rounded to the type of a: what 16-bit matrix units do. PyTorch's fp16 is 20 times slower here."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return (a.float() @ b.float()).to(a.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        wide = gradient.float()
        return (wide @ b.float().mT).to(a.dtype), (a.float().mT @ wide).to(b.dtype)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, seen: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, sink: torch.Tensor | None = None, softmax_scale: float | None = None,
    softcap: float = 0.0, keep: torch.Tensor | None = None, dropout_p: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention in PyTorch, in the precision of its inputs, (batch, seqlen, nhead, hdim).

    Returns out and the fp32 lse (batch, nhead_q, seqlen_q). bias is added after the scale; sink (nhead_q) is one more
    logit per head; keep (batch, nhead_q, seqlen_q, seqlen_k) is False where dropout_p drops.
    """
    group = q.shape[2] // k.shape[2]
    heads = [x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))]
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    scores = _Product.apply(heads[0], (heads[1] * scale).mT)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    columns = scores.shape[-1]
    if sink is not None:
        scores = torch.cat([scores, sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(scores.float(), -1)
    dead = torch.isneginf(lse)[..., None]
    p = torch.softmax(scores.masked_fill(dead, 0), -1).masked_fill(dead, 0)[..., :columns]
    if keep is not None:
        p = p.masked_fill(~keep, 0)
        heads[2] = heads[2] / (1 - dropout_p)
    return _Product.apply(p, heads[2]).transpose(1, 2), lse


def kept(randval: torch.Tensor, dropout_p: float) -> torch.Tensor:
    """Mask of the probabilities that dropout keeps, from its random bytes."""
    return randval <= math.floor((1 - dropout_p) * 255)


def exact_and_same(
    function: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], dout: torch.Tensor | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(function(*inputs) and the gradients of inputs) in fp32, and the same in the precision of the inputs."""
    results = []
    for dtype in (torch.float32, None):
        mine = [x.detach().to(dtype or x.dtype).requires_grad_(dout is not None) for x in inputs]
        out = function(*mine)
        gradients = () if dout is None else torch.autograd.grad(out, mine, dout.to(out.dtype), allow_unused=True)
        results.append([out.detach(), *gradients])
    return results[0], results[1]


def judge(
    name: str, ours: torch.Tensor, exact: torch.Tensor, same: torch.Tensor, times: float, constant: float | None = None
) -> None:
    """Asserts that the error of ours against exact is at most times that of same, plus a small constant.

    constant: None is one step of the type at the size of the largest exact value, or at 1, the size of the inputs, when
    that is larger: PyTorch's error is at times only that of rounding the result, or less by luck.
    """
    assert ours.shape == exact.shape, f"{name}: shape {tuple(ours.shape)}, not {tuple(exact.shape)}"
    if not exact.numel():
        return
    assert torch.isfinite(ours).all(), f"{name} is not finite"
    if constant is None:
        constant = max(torch.finfo(ours.dtype).eps, FP32) * max(exact.abs().max().item(), 1)
    error = (ours.float() - exact.float()).abs().max().item()
    theirs = (same.float() - exact.float()).abs().max().item()
    assert error <= times * theirs + constant, (
        f"{name}: error {error:.3g}, PyTorch's {theirs:.3g}, constant {constant:.3g}"
    )


def judge_all(
    names: Sequence[str], ours: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], same: Sequence[torch.Tensor],
    constant: float | None = None,
) -> None:  # fmt: skip
    """`judge` of an output, which comes first, and of gradients."""
    for i, (name, mine, right, theirs) in enumerate(zip(names, ours, exact, same, strict=True)):
        judge(name, mine, right, theirs, GRADIENT if i else FORWARD, constant)
