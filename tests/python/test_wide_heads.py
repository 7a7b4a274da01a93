# SPDX-License-Identifier: MIT
"""Head dims beyond 256, and those between the listed ones: forward, over caches, and gradients, on every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import FLOATS
from tilekiln.reference import kv

from tests.python.rows import instances

DTYPES = FLOATS
HDIMS = [112, 160, 224, 257, 288, 320, 384, 511, 512]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("flash", targets="all", where="hdim_q=512")


def normal(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32).astype(DTYPES[dtype])


def qkv(dtype: str, hdim_q: int, hdim_v: int, queries: int, keys: int) -> list[np.ndarray]:
    return [normal(dtype, 2, queries, 4, hdim_q), *(normal(dtype, 2, keys, 2, hdim) for hdim in (hdim_q, hdim_v))]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hdim", HDIMS)
def test_forward(lib: tk.Library, dtype: str, hdim: int) -> None:
    for hdim_v in (hdim, max(1, hdim - 199)):
        q, k, v = qkv(dtype, hdim, hdim_v, 70, 83)
        right = reference.forward(q, k, v, causal=True)
        signature = {"dtype": dtype, "mode": "batch", "mask": "window", "lse": "yes", "pipeline": "qlanes"}
        for one in instances(lib, "fmha_fwd", hdim_q="512", **signature):
            out, lse = lib.fmha_fwd(q, k, v, causal=True, return_lse=True, instance=one)
            assert reference.excess(dtype, right, out, lse) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hdim", [288, 511, 512])
def test_gradients(lib: tk.Library, dtype: str, hdim: int) -> None:
    q, k, v = qkv(dtype, hdim, hdim, 66, 70)
    out, lse = lib.fmha_fwd(q, k, v, causal=True, return_lse=True)
    dout = normal(dtype, *out.shape)
    right = reference.backward(dout, q, k, v, out, lse, causal=True)
    signature = {
        "dtype": dtype,
        "mode": "batch",
        "mask": "window",
        "dropout": "none",
        "deterministic": "no",
        "sink": "no",
        "pipeline": "qlanes",
    }
    for one in instances(lib, "fmha_bwd_dq_dk_dv", hdim_q="512", **signature):
        dq, dk, dv = lib.fmha_bwd(dout, q, k, v, out, lse, causal=True, instance=one)[:3]
        assert reference.gradient_excess(dtype, right, dq=dq, dk=dk, dv=dv) <= 1


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hdim_q", "hdim_v"), [(192, 128), (288, 288), (512, 511), (512, 512)])
@pytest.mark.parametrize("queries", [1, 3, 40])
def test_over_caches(lib: tk.Library, dtype: str, hdim_q: int, hdim_v: int, queries: int) -> None:
    """Both pipelines: few queries have their lanes along the head dim."""
    q, _, _ = qkv(dtype, hdim_q, hdim_v, queries, 1)
    k, v = (normal(dtype, 9, 16, 2, hdim) for hdim in (hdim_q, hdim_v))
    given = {"block_table": np.array([[3, 1, 8, 2], [6, 0, 4, 5]], np.int32), "seqlen_k": np.array([61, 40], np.int32)}
    right = kv.splitkv(q, k, v, **given, causal=True)
    signature = {"dtype": dtype, "mode": "batch", "mask": "window", "paged": "yes"}
    for pipeline in ("qlanes", "dlanes"):
        for one in instances(lib, "fmha_fwd_splitkv", hdim_q="512", **signature, pipeline=pipeline):
            out, lse = lib.fmha_fwd_splitkv(q, k, v, **given, causal=True, num_splits=2, return_lse=True, instance=one)
            assert reference.excess(dtype, right, out, lse) <= 1
    out = lib.fmha_fwd_pagedkv(q, k, v, **given, causal=True)
    assert reference.excess(dtype, right, out) <= 1


def test_a_head_of_513_is_refused(lib: tk.Library) -> None:
    q, k, v = qkv("fp32", 513, 64, 3, 3)
    with pytest.raises(tk.ArgumentError, match=r"^q: hdim was 513, must be from 1 to 512"):
        lib.fmha_fwd(q, k, v)
