"""Common parts of these programs: a dispatcher over libraries, arrays, and the check against float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import FLOATS
from tilekiln.dispatcher import Call, Dispatcher, ProblemBuilder, Registry

DTYPES = FLOATS


@functools.cache
def over(*receipts: str) -> Dispatcher:
    """A dispatcher over the libraries of some receipts, in a registry of their name."""
    made = Dispatcher(Registry("+".join(receipts)))
    for receipt in receipts:
        made.add_library(tk.load(receipt))
    return made


def normal(*shape: int, dtype: str = "bf16", seed: int = 0) -> Any:
    """Random numbers of a dtype."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(DTYPES[dtype])


def qkv(
    batch: int = 1,
    seqlen_q: int = 64,
    seqlen_k: int = 64,
    nhead_q: int = 2,
    nhead_k: int = 2,
    hdim: int = 64,
    hdim_v: int = 0,
    dtype: str = "bf16",
) -> tuple[Any, Any, Any]:
    """q, k and v: (batch, seqlen, nhead, hdim)."""
    return (
        normal(batch, seqlen_q, nhead_q, hdim, dtype=dtype, seed=1),
        normal(batch, seqlen_k, nhead_k, hdim, dtype=dtype, seed=2),
        normal(batch, seqlen_k, nhead_k, hdim_v or hdim, dtype=dtype, seed=3),
    )


def attention(
    hdim: int = 64, batch: int = 2, seqlen_q: int = 128, seqlen_k: int = 128, nhead_q: int = 8, nhead_k: int = 8
) -> ProblemBuilder:
    """A problem of bf16, to be gone on with."""
    builder = ProblemBuilder().data_type("bf16").dims(hdim, hdim, batch, seqlen_q, seqlen_k)
    return builder.nheads(nhead_q, nhead_k)


def verdict(label: str, good: bool, more: object = "") -> None:
    """A line, and the end of the program where it is bad."""
    print(f"{label:<36} {more!s:<28} {'PASS' if good else 'FAIL'}".rstrip())
    if not good:
        raise SystemExit(1)


def dtype_of(array: Any) -> str:
    """The dtype axis of an array."""
    return next(name for name, dtype in DTYPES.items() if dtype == array.dtype)


def forward(
    label: str, of: Dispatcher, q: Any, k: Any, v: Any, only: dict[str, Any] | None = None, **arguments: Any
) -> Any:
    """Runs a forward through the dispatcher and holds it to float64. only: arguments that change no value."""
    out = of.run(Call("fmha_fwd", q, k, v, **arguments, **(only or {})))
    of_out = out[0] if isinstance(out, tuple) else out
    worst = reference.excess(dtype_of(q), reference.forward(q, k, v, **arguments), of_out)
    verdict(label, worst <= 1, f"out {'x'.join(map(str, of_out.shape))}")
    return out


def backward(
    label: str, of: Dispatcher, q: Any, k: Any, v: Any, only: dict[str, Any] | None = None, **arguments: Any
) -> Any:
    """Runs forward and backward through the dispatcher and holds dq, dk and dv to float64."""
    out, lse = of.run("fmha_fwd", q, k, v, return_lse=True, **arguments)
    dout = normal(*out.shape, dtype=dtype_of(q), seed=9)
    made = of.run("fmha_bwd", dout, q, k, v, out, lse, **arguments, **(only or {}))
    exact = reference.backward(dout, q, k, v, out, lse, **arguments)
    gradients = dict(zip(("dq", "dk", "dv"), made, strict=False))
    verdict(label, reference.gradient_excess(dtype_of(q), exact, **gradients) <= 1, "dq dk dv")
    return made
