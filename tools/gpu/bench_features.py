# SPDX-License-Identifier: MIT
"""Cost of features at seqlen 8192, called through a library, and the gain of the forward's e4m3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.timing import interleaved

SEQLEN, WINDOW = 8192, 1024


def run(library: tk.Library, of_fp8: tk.Library | None, hdims: list[int], rounds: int) -> None:
    """A line a head dim: times over the plain call's, speed over that of an 8k matmul.

    of_fp8: whose forward of e4m3 is timed.
    """
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for hdim in hdims:
        batch, nhead = 16384 // SEQLEN, 2048 // hdim
        q, k, v, out = (torch.randn(batch, nhead, SEQLEN, hdim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        lse = torch.empty(batch, nhead, SEQLEN, device="cuda")

        def call(
            arrays: Any = (q, k, v),
            out: Any = out,
            lse: Any = lse,
            layout: str = "bhsd",
            by: tk.Library = library,
            **features: Any,
        ) -> Callable[[], object]:
            return lambda: by.fmha_fwd(*arrays, out=out, lse=lse, layout=layout, **features)

        starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * SEQLEN
        packed = [x.transpose(1, 2).reshape(batch * SEQLEN, nhead, hdim) for x in (q, k, v, out)]
        lengths = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": SEQLEN, "max_seqlen_k": SEQLEN}
        of_packed = {"arrays": packed[:3], "out": packed[3], "lse": torch.empty(nhead, batch * SEQLEN, device="cuda")}
        programs: dict[str, Callable[[], object]] = {
            "matmul": lambda: square @ square,
            "plain": call(),
            "causal": call(causal=True),
            "soft cap": call(softcap=30.0),
            "alibi": call(alibi_slopes=torch.rand(nhead, device="cuda") * 0.1),
            "dropout": call(dropout_p=0.1, rng=(1, 2)),
            "packed": call(**of_packed, layout="bshd", **lengths),
            "packed causal": call(**of_packed, layout="bshd", causal=True, **lengths),
            "window": call(window=(WINDOW, 0)),
        }
        if of_fp8 is not None:
            scale = {name: torch.ones(1, device="cuda") for name in ("q_descale", "k_descale", "v_descale")}
            codes = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
            programs["e4m3"] = call(codes, lse=None, by=of_fp8, **scale)
        missing = []
        for name in list(programs):
            try:
                programs[name]()
            except tk.NoKernelError:
                if name in ("plain", "causal"):
                    raise
                missing.append(name)
                del programs[name]
        took = interleaved(programs, rounds)
        seen = sum(min(row, WINDOW) + 1 for row in range(SEQLEN)) / SEQLEN**2
        flops = 4 * batch * nhead * SEQLEN**2 * hdim
        product = 2 * 8192**3 / took["matmul"]
        speeds = {name: flops * part / took[name] / product for name, part in (("plain", 1.0), ("causal", 0.5))}
        shown = [f"{name} of a matmul {speed:.3f}" for name, speed in speeds.items()]
        shares = {name: took[name] / took["plain"] for name in took if name not in ("matmul", "plain", "causal")}
        if "packed causal" in shares:
            shares["packed causal"] = took["packed causal"] / took["causal"]
        if "window" in shares:
            shares["window, a visible pair"] = shares.pop("window") / seen
        if "e4m3" in shares:
            shares["e4m3, times as fast"] = 1 / shares.pop("e4m3")
        shown += [f"{name} {share:.3f}" for name, share in shares.items()]
        shown += [f"{name} not in the library" for name in missing]
        print(f"library fwd d{hdim} 8k: {', '.join(shown)}", flush=True)


def run_backward(library: tk.Library, hdims: list[int], rounds: int) -> None:
    """A line a head dim: times of the backward over the plain call's, without and with a causal mask."""
    for hdim in hdims:
        shape = (16384 // SEQLEN, 2048 // hdim, SEQLEN, hdim)
        q, k, v, dout, dq, dk, dv = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(7))
        sink, d_sink = (torch.zeros(shape[1], device="cuda") for _ in range(2))
        slopes = torch.rand(shape[1], device="cuda") * 0.1
        features: dict[str, dict[str, Any]] = {
            "plain": {},
            "soft cap": {"softcap": 30.0},
            "alibi": {"alibi_slopes": slopes},
            "dropout": {"dropout_p": 0.1, "rng": (1, 2)},
            "sinks": {"sink": sink, "d_sink": d_sink},
        }
        for causal in (False, True):
            out, lse = library.fmha_fwd(q, k, v, return_lse=True, causal=causal, layout="bhsd")
            programs: dict[str, Callable[[], object]] = {}
            missing = []
            for name, given in features.items():
                more = {"dq": dq, "dk": dk, "dv": dv, "causal": causal, "layout": "bhsd", **given}
                try:
                    size = library.fmha_bwd_workspace_size(dout, q, k, v, out, lse, **more)
                    more["workspace"] = torch.empty(size, dtype=torch.uint8, device="cuda")
                    program = partial(library.fmha_bwd, dout, q, k, v, out, lse, **more)
                    program()
                except tk.NoKernelError:
                    missing.append(name)
                    continue
                programs[name] = program
            took = interleaved(programs, rounds)
            shown = [f"{name} {took[name] / took['plain']:.3f}" for name in took if name != "plain"]
            shown += [f"{name} not in the library" for name in missing]
            print(f"library bwd d{hdim}{' causal' if causal else ''} 8k: {', '.join(shown)}", flush=True)
