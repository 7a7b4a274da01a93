# SPDX-License-Identifier: MIT
"""tensor: moves, reductions, routing: GB/s beside a copy of the same place and PyTorch, one core.

Timed as `tools/bench norm` times: each round ours, a copy of x and the peers in turn, in one process, by thread CPU
time, pinned, one thread; medians of the ratios. GB/s of the bytes that must move: inputs once, results once. Wants
norm_default, and for topk_gating moe_default, built for this machine. Each line ends with the bars of its row.
--threads 2 shows the wall time of one thread over that of two.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch
from tilekiln._core.dtypes import TORCH
from torch import Tensor

from .norm import Bar, Case, line, start

FLOATS = {word: TORCH[word] for word in ("fp32", "bf16")}
DTYPES = {**FLOATS, "int8": torch.int8}
Make = Callable[[tk.Library, torch.dtype, int], Case]


def _drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randint(-99, 99, shape).to(dtype)


def _moved(name: str, shape: tuple[int, ...], peer: Callable[[Tensor], Tensor], **how: Any) -> Make:
    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        x = _drawn(dtype, *shape)
        y = getattr(library, name)(x, **how)
        return Case(lambda: getattr(library, name)(x, y=y, num_threads=threads, **how), peer, (x,), (y,))

    return make


def _elements(operation: str, shapes: tuple[tuple[int, ...], ...], peer: Callable[..., Tensor]) -> Make:
    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        arrays = [torch.randn(*shape).to(dtype) for shape in shapes]
        y = library.elementwise(*arrays, operation=operation)

        def ours() -> None:
            library.elementwise(*arrays, operation=operation, y=y, num_threads=threads)

        return Case(ours, peer, tuple(arrays), (y,))

    return make


def _pooled(shape: tuple[int, ...], last: bool, operation: str, **how: Any) -> Make:
    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        x = torch.randn(*shape).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        pool = functools.partial(library.pooling, layout="nchw", operation=operation, **how)
        y = pool(x).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        peer = getattr(torch.nn.functional, {"max": "max_pool2d", "mean": "avg_pool2d"}[operation])
        given = {"kernel_size" if name == "window" else name: value for name, value in how.items()}
        return Case(lambda: pool(x, y=y, num_threads=threads), lambda x: peer(x, **given), (x,), (y,))

    return make


def _img2col(x: Tensor) -> Tensor:
    first = x.permute(0, 3, 1, 2)
    return torch.nn.functional.unfold(first, 3, padding=1).transpose(1, 2)


def _routed(tokens: int, experts: int, topk: int) -> Make:
    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        x = torch.randn(tokens, experts).to(dtype)
        weights, indices = library.topk_softmax(x, topk=topk)

        def ours() -> None:
            library.topk_softmax(x, weights=weights, indices=indices, topk=topk, num_threads=threads)

        def peer(x: Tensor) -> Any:
            return torch.topk(torch.softmax(x, -1, dtype=torch.float32), topk)

        return Case(ours, peer, (x,), (weights, indices))

    return make


def _gated(tokens: int, experts: int, topk: int, **how: Any) -> Make:
    """DeepSeek-V3's router as Transformers writes it, from the logits on; a group's best two are summed."""

    def make(_: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        library = tk.load("moe_default")
        x, bias = torch.randn(tokens, experts).to(dtype), torch.randn(experts) / 8
        rule = {"bias": bias, "topk": topk, "renormalise": True, "scaling": 2.5, **how}
        weights, indices = library.topk_gating(x, **rule)
        groups, best, score = rule.get("groups", 1), rule.get("topk_groups", 1), rule["score"]

        def ours() -> None:
            library.topk_gating(x, weights=weights, indices=indices, num_threads=threads, **rule)

        def peer(x: Tensor) -> Any:
            wide = x.float()
            scores = wide.sigmoid() if score == "sigmoid" else torch.nn.functional.softplus(wide).sqrt()
            choice = scores + bias
            if groups > best:
                apart = choice.view(tokens, groups, -1)
                kept = torch.topk(apart.topk(2, -1)[0].sum(-1), best, -1, sorted=False)[1]
                mask = torch.zeros(tokens, groups).scatter_(1, kept, 1).bool()
                choice = choice.masked_fill(~mask.repeat_interleave(experts // groups, 1), float("-inf"))
            chosen = torch.topk(choice, topk, -1, sorted=False)[1]
            made = scores.gather(1, chosen)
            return made / (made.sum(-1, keepdim=True) + 1e-20) * 2.5, chosen

        return Case(ours, peer, (x,), (weights, indices))

    return make


def _sampled(rows: int, vocabulary: int, **how: Any) -> Make:
    """The peer sorts, as the logits processors of Transformers do, and draws."""

    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        x = (3 * torch.randn(rows, vocabulary)).to(dtype)
        tokens = library.sample(x, **how)

        def peer(x: Tensor) -> Any:
            scores = x.float() / how.get("temperature", 1.0)
            if top_k := how.get("top_k", 0):
                scores = scores.masked_fill(scores < scores.topk(top_k)[0][:, -1:], float("-inf"))
            if how.get("top_p", 1.0) < 1:
                ordered, index = scores.sort()
                off = ordered.softmax(-1).cumsum(-1) <= 1 - how["top_p"]
                off[:, -1:] = False
                scores = scores.masked_fill(off.scatter(1, index, off), float("-inf"))
            return torch.multinomial(scores.softmax(-1), 1)

        return Case(lambda: library.sample(x, tokens=tokens, num_threads=threads, **how), peer, (x,), (tokens,))

    return make


def _sorted(tokens: int, experts: int, topk: int, unit: int = 32) -> Make:
    def make(library: tk.Library, dtype: torch.dtype, threads: int) -> Case:
        ids = torch.rand(tokens, experts).topk(topk).indices.int()
        weights = torch.rand(tokens, topk)
        results = library.moe_sorting(ids, weights, experts=experts, unit=unit)
        names = ("sorted_token_ids", "sorted_weights", "sorted_expert_ids", "total_tokens_post_pad")
        more = dict(zip(names, results, strict=True)) | {"experts": experts, "unit": unit, "num_threads": threads}

        def peer(ids: Tensor, weights: Tensor) -> Any:
            order = torch.argsort(ids.flatten(), stable=True)
            counts = torch.bincount(ids.flatten(), minlength=experts)
            padded = (counts + unit - 1) // unit * unit
            starts, first = padded.cumsum(0) - padded, counts.cumsum(0) - counts
            expert = ids.flatten()[order].long()
            at = starts[expert] + torch.arange(len(order)) - first[expert]
            places = torch.full((tokens * topk + experts * unit,), tokens)
            places[at] = order // topk
            sorted_weights = torch.zeros(len(places))
            sorted_weights[at] = weights.flatten()[order]
            return places, sorted_weights, torch.repeat_interleave(torch.arange(experts), padded // unit)

        return Case(lambda: library.moe_sorting(ids, weights, **more), peer, (ids, weights), tuple(results))

    return make


def _turned(x: Tensor) -> Tensor:
    return x.t().contiguous()


CASES: dict[str, tuple[dict[str, torch.dtype], Make]] = {
    **{
        f"transpose {n}x{n}": (DTYPES, _moved("transpose", (n, n), _turned)) for n in (64, 1024, 4096)
    },
    "permute 0213 8x64x32x128": (
        DTYPES,
        _moved("permute", (8, 64, 32, 128), lambda x: x.permute(0, 2, 1, 3).contiguous(), axes=(0, 2, 1, 3)),
    ),
    "permute 40213 9x11x8x13x17": (
        DTYPES,
        _moved("permute", (9, 11, 8, 13, 17), lambda x: x.permute(4, 0, 2, 1, 3).contiguous(), axes=(4, 0, 2, 1, 3)),
    ),
    "nchw to nhwc 8x64x56x56": (
        DTYPES,
        _moved("batched_transpose", (8, 64, 56, 56), lambda x: x.permute(0, 2, 3, 1).contiguous()),
    ),
    "nhwc to nchw 8x56x56x64": (
        DTYPES,
        _moved("batched_transpose", (8, 56, 56, 64), lambda x: x.permute(0, 3, 1, 2).contiguous(), layout="nhwc"),
    ),
    "copy 1 MB": (DTYPES, _moved("copy", (1 << 10, 256), lambda x: x.clone())),
    "copy 64M": (DTYPES, _moved("copy", (1 << 13, 1 << 13), lambda x: x.clone())),
    "img2col 3x3 8x28x28x64": (FLOATS, _moved("img2col", (8, 28, 28, 64), _img2col, filter=(3, 3), padding=(1, 1))),
    **{
        f"{kind} {axis} of 1024x4096": (
            FLOATS,
            _moved("reduce", (1024, 4096), lambda x, k=kind, a=axis: getattr(torch, f"a{k}" if k == "max" else k)(x, a),
                   axes=axis, operation=kind),
        )
        for kind in ("sum", "mean", "max")
        for axis in (1, 0)
    },
    "add 1024x4096": (FLOATS, _elements("add", ((1024, 4096),) * 2, torch.add)),
    "add row 1024x4096": (FLOATS, _elements("add", ((1024, 4096), (4096,)), torch.add)),
    "add column 1024x4096": (FLOATS, _elements("add", ((1024, 4096), (1024, 1)), torch.add)),
    "add of 4 256x1024": (FLOATS, _elements("add", ((256, 1024),) * 4, lambda a, b, c, d: a + b + c + d)),
    "silu 1024x4096": (FLOATS, _elements("silu", ((1024, 4096),), torch.nn.functional.silu)),
    "gelu 1024x4096": (FLOATS, _elements("gelu", ((1024, 4096),), torch.nn.functional.gelu)),
    **{
        f"pool {kind} {'nhwc' if last else 'nchw'} 3x3 s{stride} 8x64x56x56": (
            FLOATS, _pooled((8, 64, 56, 56), last, kind, window=3, stride=stride, padding=1))
        for kind in ("max", "mean")
        for last in (True, False)
        for stride in (1, 2)
    },
    **{f"topk_softmax {m}x{e} k8": (FLOATS, _routed(m, e, 8)) for m, e in ((1, 128), (1024, 128), (4096, 256))},
    **{
        f"topk_gating {m}x256 k8 of 4 groups": (FLOATS, _gated(m, 256, 8, score="sigmoid", groups=8, topk_groups=4))
        for m in (1, 1024)
    },
    **{
        f"topk_gating {score} 1024x128 k8": (FLOATS, _gated(1024, 128, 8, score=score))
        for score in ("sigmoid", "sqrtsoftplus")
    },
    "sample 8x151936 top-p": (FLOATS, _sampled(8, 151936, temperature=0.8, top_p=0.9)),
    "sample 8x151936 top-k top-p": (FLOATS, _sampled(8, 151936, temperature=0.8, top_k=50, top_p=0.9)),
    "sample 8x151936": (FLOATS, _sampled(8, 151936, temperature=0.8)),
    **{f"moe_sorting {m}x{e} k8": ({"int32": torch.int32}, _sorted(m, e, 8)) for m, e in ((1024, 128), (4096, 256))},
}  # fmt: skip


BARS: dict[str, dict[str, Bar]] = {
    "transpose ": {"fp32": Bar(1.8), "bf16": Bar(1.6), "int8": Bar(3)},
    "permute 0213": dict.fromkeys(DTYPES, Bar(1.0)),
    "permute 40213": dict.fromkeys(DTYPES, Bar(1.5)),
    "nchw to": dict.fromkeys(DTYPES, Bar(2)),
    "nhwc to": dict.fromkeys(DTYPES, Bar(2)),
    "copy": dict.fromkeys(DTYPES, Bar(1.0)),
    "img2col": dict.fromkeys(FLOATS, Bar(5)),
    "sum 1": {"fp32": Bar(1.0), "bf16": Bar(1.0)},
    "sum 0": {"fp32": Bar(1.0), "bf16": Bar(3)},
    "mean": {"fp32": Bar(1.0), "bf16": Bar(3)},
    "max": {"fp32": Bar(1.0), "bf16": Bar(3)},
    "add": dict.fromkeys(FLOATS, Bar(0.6)),
    "silu": dict.fromkeys(FLOATS, Bar(1.0)),
    "gelu": dict.fromkeys(FLOATS, Bar(1.0)),
    "pool max": dict.fromkeys(FLOATS, Bar(1.25)),
    "pool mean": dict.fromkeys(FLOATS, Bar(0.85)),
    "topk_softmax": dict.fromkeys(FLOATS, Bar(3.5)),
    "topk_gating": dict.fromkeys(FLOATS, Bar(3)),
    "moe_sorting": {"int32": Bar(10)},
    "sample 8x151936 top-p": dict.fromkeys(FLOATS, Bar(10)),
    "sample": dict.fromkeys(FLOATS, Bar(3)),
}
"""Of the cases whose names begin so."""


def bar(case: str, dtype: str) -> Bar:
    return next(known.get(dtype, Bar()) for start, known in BARS.items() if case.startswith(start))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench tensor", description=__doc__)
    parser.add_argument("--cases", default="", help="those whose names hold one of these words [all]")
    parser.add_argument("--dtypes", default="fp32,bf16,int8,int32", help="[%(default)s]")
    parser.add_argument("--repeat", type=int, default=9, help="rounds [%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--compile", action="store_true", help="torch.compile too, which takes seconds a row")
    given = parser.parse_args(argv)
    words, dtypes = given.cases.split(","), given.dtypes.split(",")
    chosen = [name for name in CASES if any(word in name for word in words)]
    if not chosen:
        parser.error(f"--cases: was {given.cases!r}, must be in one of {', '.join(CASES)}")
    library = start(given.threads)
    for name in chosen:
        known, make = CASES[name]
        for dtype in [one for one in known if one in dtypes]:
            torch.manual_seed(0)
            case = functools.partial(make, library, known[dtype])
            text = line(case, given.threads, given.compile, given.repeat, bar(name, dtype))
            print(f"{dtype:>5} {name:26}: {text}", flush=True)
    return 0
