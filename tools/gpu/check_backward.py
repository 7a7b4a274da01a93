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
from tools.gpu.check import DTYPES, TANH_ERROR, TOLERANCE, Report, numpy, poisoned, random
from tools.gpu.check_forward import as_numpy, fill

RUNS = 4


def tolerance(dtype: str, terms: int, softcap: float) -> Tolerance:
    """Of gradients: P is rounded to the dtype and dS, made of it, again. In fp16 what is below 2^-14 errs by 2^-25.

    terms: rows or keys that a gradient sums over. A soft cap's tanh errs in P as in the forward, and its slope
    1 - tanh^2 by twice as much.
    """
    base = TOLERANCE[dtype]
    tiny = terms * 2.0**-24 if dtype == "fp16" else base.tiny
    weight = base.weight + base.out + ((softcap + 2) * TANH_ERROR if softcap else 0.0)
    return Tolerance(out=base.out, weight=weight, lse=base.lse, tiny=tiny)


# name, (batch, nhead_q, nhead_k, seqlen_q, seqlen_k), arguments
MASKS: list[tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = [
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
FEATURES: list[tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = [
    ("soft cap", (1, 3, 3, 300, 300), {"softcap": 20.0}),
    ("small soft cap, causal", (1, 4, 2, 333, 400), {"softcap": 0.5, "causal": True}),
    ("soft cap, alibi, window", (2, 2, 2, 400, 300), {"softcap": 5.0, "alibi_slopes": "yes", "window": (90, 40)}),
    ("bias", (2, 3, 3, 200, 333), {"bias": "yes", "dbias": True}),
    ("bias of all heads, causal", (1, 4, 2, 333, 500), {"bias": "one", "dbias": True, "causal": True}),
    ("bias, window", (1, 2, 2, 500, 700), {"bias": "yes", "dbias": True, "window": (80, 100)}),
    ("dropout", (2, 3, 3, 300, 300), {"dropout_p": 0.2, "rng": (1234567890123, 77)}),
    ("dropout, causal, grouped", (1, 4, 2, 333, 400), {"dropout_p": 0.6, "rng": (5, (1 << 40) + 3), "causal": True}),
    ("dropout, all", (1, 4, 2, 333, 400), {"dropout_p": 0.4, "rng": (5, 3), "alibi_slopes": "yes", "softcap": 8.0,
                                          "window": (150, 20), "sink": "yes"}),
    ("dropout, bias", (1, 2, 2, 300, 200), {"dropout_p": 0.1, "rng": (1, 2), "bias": "yes", "dbias": True}),
    ("sink columns", (1, 4, 2, 600, 600), {"window": (90, 0), "sink_size": 5}),
    ("many sink columns", (1, 2, 2, 600, 700), {"window": (70, 10), "sink_size": 140}),
    ("sink logits", (2, 4, 4, 200, 300), {"causal": True, "sink": "yes"}),
]  # fmt: skip
# name, query lengths, key lengths, arguments
GROUP: list[tuple[str, list[int], list[int], dict[str, Any]]] = [
    ("packed", [100, 0, 257, 1], [200, 64, 300, 7], {}),
    ("packed causal", [300, 40, 129, 700], [300, 90, 129, 640], {"causal": True}),
    ("packed causal top left", [300, 640], [500, 130], {"causal": True, "mask_origin": "top_left"}),
    ("packed, no keys", [30, 200], [0, 370], {"window": (40, 0), "sink_size": 3}),
    ("packed dropout", [200, 77], [200, 277], {"dropout_p": 0.1, "rng": (3, 9)}),
    ("packed soft cap", [200, 77], [200, 277], {"softcap": 10.0, "causal": True}),
    ("packed bias, sinks", [120, 33], [170, 140], {"bias": "yes", "dbias": True, "sink": "yes", "causal": True}),
]  # fmt: skip


def check(build: Build, out: Path, report: Report, small: bool) -> None:
    kernel, dtype, most = Backward(build.cubin(out)), DTYPES[build.dtype], build.define["HDIM"]
    plans = [{}, {"workers": 7, "team": 1}, {"team": 3}]
    for hdim in (most,) if small else (most, most - 8, 32):
        cases = MASKS + (FEATURES if hdim == most else FEATURES[::4])
        for name, shape, arguments in cases[::4] if small else cases:
            batch, nhead_q, nhead_k, rows, keys = shape
            q = random(batch, rows, nhead_q, hdim, dtype=dtype).transpose(
                1, 2
            )  # strides of (batch, seqlen, nhead, hdim)
            k, v = (random(batch, nhead_k, keys, hdim, dtype=dtype) for _ in range(2))
            dout = random(batch, nhead_q, rows, hdim, dtype=dtype)
            more = fill({n: x for n, x in arguments.items() if n != "dbias"}, shape[:2] + shape[3:], dtype)
            plain = as_numpy(more)
            forward = reference.forward(*map(numpy, (q, k, v)), **plain, layout="bhsd")
            made, lse = torch.from_numpy(forward.out).to(dtype).cuda(), torch.from_numpy(forward.lse).float().cuda()
            exact = reference.backward(*map(numpy, (dout, q, k, v, made, lse)), **plain, layout="bhsd")
            for plan in plans if hdim == most else plans[:1]:
                title = f"{build.name} {name} {hdim} {plan or ''}"
                judge(kernel, build, report, title, (dout, q, k, v, made, lse), more, plan, exact, "dbias" in arguments)
        for name, rows_of, keys_of, arguments in GROUP[::2] if small else GROUP:
            for plan in plans if hdim == most else plans[:1]:
                packed(kernel, build, report, f"{name} {hdim} {plan or ''}", (rows_of, keys_of), arguments, hdim, plan)


def packed(
    kernel: Backward,
    build: Build,
    report: Report,
    name: str,
    lengths: tuple[list[int], list[int]],
    arguments: dict[str, Any],
    hdim: int,
    plan: dict[str, Any],
) -> None:
    """Group mode, two query heads a key head, with NaN between the sequences and behind them."""
    nhead_q, nhead_k, pad, dtype = 4, 2, 5, DTYPES[build.dtype]
    starts = [np.cumsum([0, *(length + pad for length in side)]).tolist() for side in lengths]
    tensors = []
    for nhead, side in ((nhead_q, 0), (nhead_q, 0), (nhead_k, 1), (nhead_k, 1)):  # dout, q, k, v
        tensor = poisoned(nhead, starts[side][-1], hdim, dtype=dtype)
        for first, length in zip(starts[side][:-1], lengths[side], strict=True):
            tensor[:, first : first + length] = random(nhead, length, hdim, dtype=dtype)
        tensors.append(tensor)
    more = fill(
        {n: x for n, x in arguments.items() if n != "dbias"}, (0, nhead_q, starts[0][-1], max(lengths[1])), dtype
    )
    where = {"seqstart_q": starts[0], "seqstart_k": starts[1], "seqlen_q": lengths[0], "seqlen_k": lengths[1]}
    forward = reference.forward(*map(numpy, tensors[1:]), **as_numpy(more), **where, layout="bhsd")
    made, lse = torch.from_numpy(forward.out).to(dtype).cuda(), torch.from_numpy(forward.lse).float().cuda()
    made[torch.from_numpy(~forward.touched).cuda()] = float("nan")
    exact = reference.backward(*map(numpy, (*tensors, made, lse)), **as_numpy(more), **where, layout="bhsd")
    device: dict[str, Any] = {n: torch.tensor(x, dtype=torch.int32, device="cuda") for n, x in where.items()}
    device |= {"max_seqlen_q": max(lengths[0]), "max_seqlen_k": max(lengths[1])}
    everything = (*tensors, made, lse)
    judge(kernel, build, report, f"{build.name} {name}", everything, more | device, plan, exact, "dbias" in arguments)


def judge(
    kernel: Backward,
    build: Build,
    report: Report,
    title: str,
    tensors: tuple[torch.Tensor, ...],
    more: dict[str, Any],
    plan: dict[str, Any],
    exact: reference.Gradients,
    with_dbias: bool,
) -> None:
    """Runs four times: the errors, whether all are bit-equal, and whether what must not be written is not."""
    made = {name: poisoned(*tensors[i].shape, dtype=tensors[i].dtype) for name, i in (("dq", 1), ("dk", 2), ("dv", 3))}
    if with_dbias:
        assert exact.dbias is not None
        made["dbias"] = poisoned(
            *exact.dbias.value.shape[exact.dbias.value.ndim - tensors[1].dim() :], dtype=tensors[1].dtype
        )
    if "sink" in more:
        made["d_sink"] = poisoned(tensors[1].shape[-3], dtype=torch.float32)
    run = kernel.prepare(*tensors, **made, **more, **plan)
    results = []
    for _ in range(RUNS):
        for tensor in made.values():
            tensor.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        results.append([tensor.view(torch.uint8).clone() for tensor in made.values()])
    same = all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    bound = tolerance(build.dtype, max(tensors[1].shape[-2], tensors[2].shape[-2]), more.get("softcap", 0.0))
    excess, untouched = 0.0, True
    for name, tensor in made.items():
        gradient = getattr(exact, name)
        limit = (bound.of_sink() if name == "d_sink" else bound).gradient_bound(gradient)
        got, touched = numpy(tensor), gradient.touched
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.where(got == gradient.value, 0.0, np.abs(got - gradient.value) / limit)
        excess = max(excess, float(np.max(np.where(np.isnan(error), np.inf, error)[touched], initial=0.0)))
        untouched = untouched and bool(np.isnan(got[~touched]).all())
    report.case(title, excess, same and untouched)
