"""The backward's cases: masks, grouped heads, ragged sizes, other teams; against float64, reruns bit-equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tilekiln import reference
from tilekiln.reference.tolerance import Tolerance

from tools.gpu.backward import Backward
from tools.gpu.builds import Build
from tools.gpu.check import DTYPES, TOLERANCE, Report, numpy, poisoned, random

RUNS = 4


def tolerance(dtype: str, terms: int) -> Tolerance:
    """Of gradients: P is rounded to the dtype and dS, made of it, again. In fp16 what is below 2^-14 errs by 2^-25.

    terms: rows or keys that a gradient sums over.
    """
    base = TOLERANCE[dtype]
    tiny = terms * 2.0**-24 if dtype == "fp16" else base.tiny
    return Tolerance(out=base.out, weight=base.weight + base.out, lse=base.lse, tiny=tiny)


# name, (batch, nhead_q, nhead_k, seqlen_q, seqlen_k), arguments
CASES: list[tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = [
    ("full", (1, 2, 2, 256, 256), {}),
    ("ragged", (2, 3, 3, 300, 500), {}),
    ("few rows", (1, 2, 2, 40, 900), {}),
    ("few keys", (1, 2, 2, 700, 100), {}),
    ("causal", (2, 2, 2, 555, 555), {"causal": True}),
    ("causal, odd tiles", (1, 2, 2, 640, 640), {"causal": True}),
    ("causal top left", (1, 2, 2, 300, 700), {"causal": True, "mask_origin": "top_left"}),
    ("empty rows", (1, 2, 2, 600, 250), {"causal": True}),
    ("grouped heads", (2, 8, 2, 257, 413), {}),
    ("grouped heads, causal", (1, 6, 2, 400, 400), {"causal": True}),
    ("one key head", (1, 4, 1, 333, 777), {"causal": True}),
    ("window", (1, 2, 2, 700, 700), {"window": (100, 30)}),
    ("window, grouped", (1, 4, 2, 500, 900), {"window": (200, 0)}),
    ("window left", (1, 2, 2, 500, 500), {"window": (130, -1), "mask_origin": "top_left"}),
    ("alibi", (2, 4, 2, 300, 400), {"causal": True, "alibi_slopes": "yes"}),
]


def check(build: Build, out: Path, report: Report, small: bool) -> None:
    kernel, dtype, most = Backward(build.cubin(out)), DTYPES[build.dtype], build.define["HDIM"]
    plans = [{}, {"workers": 7, "team": 1}, {"team": 3}]
    for hdim in (most,) if small else (most, most - 8, 32):
        for name, shape, arguments in CASES[::4] if small else CASES:
            batch, nhead_q, nhead_k, rows, keys = shape
            q = random(batch, rows, nhead_q, hdim, dtype=dtype).transpose(
                1, 2
            )  # strides of (batch, seqlen, nhead, hdim)
            k, v = (random(batch, nhead_k, keys, hdim, dtype=dtype) for _ in range(2))
            dout = random(batch, nhead_q, rows, hdim, dtype=dtype)
            more = dict(arguments)
            if "alibi_slopes" in more:
                more["alibi_slopes"] = torch.rand(nhead_q, device="cuda") * 0.3
            plain = {n: numpy(x) if isinstance(x, torch.Tensor) else x for n, x in more.items()}
            forward = reference.forward(*map(numpy, (q, k, v)), **plain, layout="bhsd")
            made, lse = torch.from_numpy(forward.out).to(dtype).cuda(), torch.from_numpy(forward.lse).float().cuda()
            exact = reference.backward(*map(numpy, (dout, q, k, v, made, lse)), **plain, layout="bhsd")
            for plan in plans if hdim == most else plans[:1]:
                title = f"{build.name} {name} {hdim} {plan or ''}"
                judge(kernel, build, report, title, (dout, q, k, v, made, lse), more | plan, exact)


def judge(
    kernel: Backward,
    build: Build,
    report: Report,
    title: str,
    tensors: tuple[torch.Tensor, ...],
    more: dict[str, Any],
    exact: reference.Gradients,
) -> None:
    made = [poisoned(*tensor.shape, dtype=tensor.dtype) for tensor in tensors[1:4]]
    run = kernel.prepare(*tensors, *made, **more)
    results = []
    for _ in range(RUNS):
        for tensor in made:
            tensor.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        results.append([tensor.clone() for tensor in made])
    same = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    bound = tolerance(build.dtype, max(tensors[1].shape[2], tensors[2].shape[2]))
    excess = 0.0
    for tensor, gradient in zip(made, (exact.dq, exact.dk, exact.dv), strict=True):
        limit = bound.gradient_bound(gradient)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(numpy(tensor) == gradient.value, 0.0, np.abs(numpy(tensor) - gradient.value) / limit)
        excess = max(excess, float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0)))
    report.case(title, excess, same)
