"""The forward's cases: every feature alone and together, ragged sizes, empty rows, any strides, packed sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tilekiln import reference

from tools.gpu.builds import Build
from tools.gpu.forward import Forward
from tools.gpu.judge import DTYPES, Report, numpy, poisoned, random, tolerance

# name, (batch, nhead_q, nhead_k, seqlen_q, seqlen_k), arguments. "yes" stands for random values of the right shape;
# the third number of a window is that of sink columns.
BATCH: list[tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = [
    ("full", (2, 3, 3, 300, 500), {}),
    ("one row", (1, 2, 1, 1, 333), {}),
    ("causal", (2, 2, 2, 555, 555), {"causal": True}),
    ("causal top left", (1, 2, 2, 300, 170), {"causal": True, "mask_origin": "top_left"}),
    ("grouped heads", (1, 8, 2, 257, 513), {"causal": True}),
    ("empty rows", (1, 2, 2, 500, 200), {"causal": True}),
    ("window", (2, 2, 2, 450, 450), {"window": (100, 30)}),
    ("window left", (1, 2, 2, 700, 700), {"window": (64, 0), "mask_origin": "top_left"}),
    ("sink columns", (1, 2, 2, 600, 600), {"window": (90, 0, 5)}),
    ("many sink columns", (1, 2, 2, 600, 700), {"window": (70, 10, 140)}),
    ("sink columns alone", (1, 2, 2, 700, 200), {"window": (90, 0, 5), "mask_origin": "top_left"}),
    ("sink columns alone, two tiles", (1, 2, 2, 900, 300), {"window": (9, 0, 200),
                                                           "mask_origin": "top_left"}),
    ("sink logits", (1, 4, 4, 200, 300), {"causal": True, "sink": "yes"}),
    ("soft cap", (1, 3, 3, 300, 300), {"softcap": 20.0}),
    ("alibi", (2, 3, 3, 300, 400), {"causal": True, "alibi_slopes": "yes"}),
    ("bias", (2, 3, 3, 200, 333), {"bias": "yes"}),
    ("bias, masked", (1, 2, 2, 333, 333), {"bias": "one", "causal": True}),
    ("dropout", (2, 3, 3, 300, 300), {"dropout_p": 0.2, "rng": (1234567890123, 77)}),
    ("dropout, all", (1, 4, 2, 333, 400), {"dropout_p": 0.6, "rng": (5, (1 << 40) + 3), "alibi_slopes": "yes",
                                          "window": (150, 20), "sink": "yes"}),
]  # fmt: skip
# name, query lengths, key lengths, arguments
GROUP: list[tuple[str, list[int], list[int], dict[str, Any]]] = [
    ("packed", [100, 0, 257, 1], [200, 64, 300, 7], {}),
    ("packed causal", [300, 40, 129], [300, 90, 129], {"causal": True}),
    ("packed, no keys", [30, 200], [0, 70], {"window": (40, 0, 3)}),
    ("packed dropout", [200, 77], [200, 77], {"dropout_p": 0.1, "rng": (3, 9)}),
    ("packed bias", [120, 33], [170, 40], {"bias": "yes"}),
]  # fmt: skip


def hdims(build: Build) -> list[tuple[int, int]]:
    """The head dims to try: the largest, and a smaller one that the copy engine pads with zeros."""
    q, v = build.define["HDIM_Q"], build.define["HDIM_V"]
    return [(q, v), (q - 8, v - 16)]


def check(build: Build, out: Path, report: Report, small: bool) -> None:
    kernel, dtype = Forward(build.cubin(out)), DTYPES[build.dtype]
    for index, (hdim_q, hdim_v) in enumerate(hdims(build)):
        if small and index:
            break
        for name, (batch, nhead_q, nhead_k, rows, keys), arguments in BATCH[::3] if small else BATCH:
            q = random(batch, rows, nhead_q, hdim_q, dtype=dtype).transpose(
                1, 2
            )  # strides of (batch, seqlen, nhead, hdim)
            k = random(batch, nhead_k, keys, hdim_q, dtype=dtype)
            v = random(batch, nhead_k, keys, hdim_v, dtype=dtype)
            made = poisoned(batch, rows, nhead_q, hdim_v, dtype=dtype).transpose(1, 2)
            lse = poisoned(batch, nhead_q, rows, dtype=torch.float32)
            more = fill(arguments, (batch, nhead_q, rows, keys), dtype)
            expected = reference.forward(*map(numpy, (q, k, v)), **as_numpy(more), layout="bhsd")
            judge(kernel, build, report, f"{name} {hdim_q}x{hdim_v}", (q, k, v, made, lse), more, expected)
        for name, lengths_q, lengths_k, arguments in GROUP[::2] if small else GROUP:
            packed(
                kernel, build, report, f"{name} {hdim_q}x{hdim_v}", lengths_q, lengths_k, arguments, (hdim_q, hdim_v)
            )


def fill(arguments: dict[str, Any], shape: tuple[int, int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """The arguments with random values for those that say so.

    shape: batch (0: packed), nhead_q, seqlen_q (packed: all rows), seqlen_k.
    """
    batch, nhead, rows, keys = shape
    more = dict(arguments)
    if "alibi_slopes" in more:
        more["alibi_slopes"] = torch.rand(nhead, device="cuda") * 0.3
    if "sink" in more:
        more["sink"] = torch.randn(nhead, device="cuda") * 2
    if "bias" in more:
        heads = nhead if more["bias"] == "yes" else 1
        shape = (batch, heads, rows, keys) if batch else (heads, rows, keys)
        more["bias"] = random(*shape, dtype=dtype)
    return more


def as_numpy(more: dict[str, Any]) -> dict[str, Any]:
    """Options of the call as the reference takes them."""
    given = {name: numpy(value) if isinstance(value, torch.Tensor) else value for name, value in more.items()}
    left, right, *sinks = given.get("window", (-1, -1))
    return given | {"window": (left, right), "sink_size": sum(sinks)}


def packed(
    kernel: Forward,
    build: Build,
    report: Report,
    name: str,
    lengths_q: list[int],
    lengths_k: list[int],
    arguments: dict[str, Any],
    hdim: tuple[int, int],
) -> None:
    """Group mode, with NaN between the sequences and behind them: padding that nobody may read."""
    nhead, pad, dtype = 2, 5, DTYPES[build.dtype]
    starts = [np.cumsum([0, *(length + pad for length in lengths)]).tolist() for lengths in (lengths_q, lengths_k)]
    q, k, v = (
        poisoned(nhead, start[-1], width, dtype=dtype)
        for start, width in zip((starts[0], starts[1], starts[1]), (hdim[0], hdim[0], hdim[1]), strict=True)
    )
    for tensor, start, lengths in ((q, starts[0], lengths_q), (k, starts[1], lengths_k), (v, starts[1], lengths_k)):
        for first, length in zip(start[:-1], lengths, strict=True):
            tensor[:, first : first + length] = random(nhead, length, tensor.shape[-1], dtype=dtype)
    more = fill(arguments, (0, nhead, starts[0][-1], max(lengths_k)), dtype)
    where = {"seqstart_q": starts[0], "seqstart_k": starts[1], "seqlen_q": lengths_q, "seqlen_k": lengths_k}
    expected = reference.forward(*map(numpy, (q, k, v)), **as_numpy(more), **where, layout="bhsd")
    device = {key: torch.tensor(value, dtype=torch.int32, device="cuda") for key, value in where.items()}
    more |= device | {"max_seqlen_q": max(lengths_q), "max_seqlen_k": max(lengths_k)}
    made, lse = (
        poisoned(nhead, starts[0][-1], hdim[1], dtype=dtype),
        poisoned(nhead, starts[0][-1], dtype=torch.float32),
    )
    judge(kernel, build, report, name, (q, k, v, made, lse), more, expected)
    untouched = bool(torch.isnan(made[~torch.from_numpy(expected.touched).cuda()]).all())
    report.case(f"{build.name} {name}: padding is untouched", 0.0, untouched)


def judge(
    kernel: Forward,
    build: Build,
    report: Report,
    name: str,
    tensors: tuple[torch.Tensor, ...],
    more: dict[str, Any],
    expected: reference.Result,
) -> None:
    """Runs three times; the errors of the first, and whether the others are bit-equal."""
    made, lse = tensors[3:]
    run = kernel.prepare(*tensors, **more)
    results = []
    for _ in range(3):
        made.fill_(float("nan"))
        lse.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        results.append((made.clone(), lse.clone()))
    bound = tolerance(build.dtype, more.get("softcap", 0.0))
    excess = report.excess(bound, expected, *results[0])
    same = all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for other in results[1:]
        for a, b in zip(results[0], other, strict=True)
    )
    report.case(f"{build.name} {name}", excess, same)
