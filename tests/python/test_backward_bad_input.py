# SPDX-License-Identifier: MIT
"""Bad input to the backward is refused before any kernel runs: the exception names the argument, nothing is written."""

from __future__ import annotations

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference.problems import poisoned

from tests.python.test_bad_input import f32, i32, readonly, unaligned

WRITTEN = ("dq", "dk", "dv", "dbias", "d_sink", "delta", "randval", "workspace")
BF16 = NUMPY["bf16"]


def batch() -> dict:
    """A good call: batch 2, seqlen 6 and 8, 4 and 2 heads, hdim 16."""
    return {
        "dout": f32(2, 6, 4, 16),
        "q": f32(2, 6, 4, 16),
        "k": f32(2, 8, 2, 16),
        "v": f32(2, 8, 2, 16),
        "out": f32(2, 6, 4, 16),
        "lse": f32(2, 4, 6),
        "dq": poisoned(f32(2, 6, 4, 16)),
        "dk": poisoned(f32(2, 8, 2, 16)),
        "dv": poisoned(f32(2, 8, 2, 16)),
    }


def group() -> dict:
    """A good call: three sequences, total 10 and 12."""
    return {
        "dout": f32(10, 4, 16),
        "q": f32(10, 4, 16),
        "k": f32(12, 2, 16),
        "v": f32(12, 2, 16),
        "out": f32(10, 4, 16),
        "lse": f32(4, 10),
        "dq": poisoned(f32(10, 4, 16)),
        "dk": poisoned(f32(12, 2, 16)),
        "dv": poisoned(f32(12, 2, 16)),
        "cu_seqlens_q": i32(0, 3, 6, 10),
        "cu_seqlens_k": i32(0, 4, 8, 12),
    }


def full() -> dict:
    """A good call with everything that can be written."""
    return {
        **batch(),
        "bias": f32(1, 4, 6, 8),
        "sink": f32(4),
        "dropout_p": 0.5,
        "dbias": poisoned(f32(2, 4, 6, 8)),
        "d_sink": poisoned(f32(4)),
        "delta": poisoned(f32(2, 4, 6)),
        "randval": poisoned(np.empty((2, 4, 6, 8), np.uint8)),
        "workspace": np.full(1 << 20, 0xA5, np.uint8)[: 1 << 19],
    }


SHARED = f32(2 * 6 * 4 * 16)

# id: (good call, the argument that the text must name, what to change)
CASES = {
    # shapes
    "dout of 3 dimensions": (batch, "dout", {"dout": f32(6, 4, 16)}),
    "dout of another batch": (batch, "dout", {"dout": f32(1, 6, 4, 16)}),
    "dout of another seqlen": (batch, "dout", {"dout": f32(2, 7, 4, 16)}),
    "dout of another head dim": (batch, "dout", {"dout": f32(2, 6, 4, 15)}),
    "q of 2 dimensions": (batch, "q", {"q": f32(6, 16)}),
    "k of another head dim": (batch, "k", {"k": f32(2, 8, 2, 15)}),
    "v of another seqlen": (batch, "v", {"v": f32(2, 7, 2, 16)}),
    "heads that do not divide": (batch, "k", {"k": f32(2, 8, 3, 16), "v": f32(2, 8, 3, 16)}),
    "out of another seqlen": (batch, "out", {"out": f32(2, 5, 4, 16)}),
    "lse of another order": (batch, "lse", {"lse": f32(2, 6, 4)}),
    "lse of 2 dimensions": (batch, "lse", {"lse": f32(4, 6)}),
    "dq of 3 dimensions": (batch, "dq", {"dq": poisoned(f32(6, 4, 16))}),
    "dq of another seqlen": (batch, "dq", {"dq": poisoned(f32(2, 5, 4, 16))}),
    "dk of the heads of q": (batch, "dk", {"dk": poisoned(f32(2, 8, 4, 16))}),
    "dk of another head dim": (batch, "dk", {"dk": poisoned(f32(2, 8, 2, 17))}),
    "dv of another batch": (batch, "dv", {"dv": poisoned(f32(3, 8, 2, 16))}),
    "dv of another total length": (group, "dv", {"dv": poisoned(f32(13, 2, 16))}),
    "dbias broadcast": (full, "dbias", {"dbias": poisoned(f32(1, 4, 6, 8))}),
    "dbias of 3 dimensions": (full, "dbias", {"dbias": poisoned(f32(4, 6, 8))}),
    "d_sink of another length": (full, "d_sink", {"d_sink": poisoned(f32(2))}),
    "delta of another shape": (full, "delta", {"delta": poisoned(f32(2, 6, 4))}),
    "delta with other strides": (full, "delta", {"delta": poisoned(f32(2, 6, 4)).swapaxes(1, 2)}),
    "bias of another seqlen": (full, "bias", {"bias": f32(1, 4, 6, 9)}),
    "sink of another length": (full, "sink", {"sink": f32(3)}),
    "randval of another shape": (full, "randval", {"randval": poisoned(np.empty((2, 4, 6, 7), np.uint8))}),
    "workspace of 2 dimensions": (full, "workspace", {"workspace": np.zeros((2, 1 << 18), np.uint8)}),
    "workspace too small": (full, "workspace", {"workspace": np.zeros(64, np.uint8)}),
    # dtypes
    "q of float64": (batch, "q", {"q": f32(2, 6, 4, 16).astype(np.float64)}),
    "q of fp8": (batch, "q", {"q": f32(2, 6, 4, 16).astype(NUMPY["fp8"])}),
    "dout of fp16": (batch, "dout", {"dout": f32(2, 6, 4, 16).astype(np.float16)}),
    "k of bf16": (batch, "k", {"k": f32(2, 8, 2, 16).astype(BF16)}),
    "out of fp16": (batch, "out", {"out": f32(2, 6, 4, 16).astype(np.float16)}),
    "lse of bf16": (batch, "lse", {"lse": f32(2, 4, 6).astype(BF16)}),
    "dq of bf16": (batch, "dq", {"dq": poisoned(f32(2, 6, 4, 16).astype(BF16))}),
    "dk of int32": (batch, "dk", {"dk": np.zeros((2, 8, 2, 16), np.int32)}),
    "dv of fp16": (batch, "dv", {"dv": poisoned(f32(2, 8, 2, 16).astype(np.float16))}),
    "dbias of fp16": (full, "dbias", {"dbias": poisoned(f32(2, 4, 6, 8).astype(np.float16))}),
    "d_sink of fp16": (full, "d_sink", {"d_sink": poisoned(f32(4).astype(np.float16))}),
    "delta of fp16": (full, "delta", {"delta": poisoned(f32(2, 4, 6).astype(np.float16))}),
    "workspace of fp32": (full, "workspace", {"workspace": f32(1 << 17)}),
    # strides and memory
    "dout with a strided last dimension": (batch, "dout", {"dout": f32(2, 6, 4, 32)[..., ::2]}),
    "dq with a strided last dimension": (batch, "dq", {"dq": poisoned(f32(2, 6, 4, 32))[..., ::2]}),
    "dbias with a reversed last dimension": (full, "dbias", {"dbias": poisoned(f32(2, 4, 6, 8))[..., ::-1]}),
    "lse with a strided last dimension": (batch, "lse", {"lse": f32(2, 4, 12)[..., ::2]}),
    "dout unaligned": (batch, "dout", {"dout": unaligned(2, 6, 4, 16)}),
    "workspace unaligned": (full, "workspace", {"workspace": np.zeros((1 << 19) + 1, np.uint8)[1:]}),
    "workspace with gaps": (full, "workspace", {"workspace": np.zeros(1 << 20, np.uint8)[::2]}),
    "dq read-only": (batch, "dq", {"dq": readonly(poisoned(f32(2, 6, 4, 16)))}),
    "dbias read-only": (full, "dbias", {"dbias": readonly(poisoned(f32(2, 4, 6, 8)))}),
    "workspace read-only": (full, "workspace", {"workspace": readonly(np.zeros(1 << 19, np.uint8))}),
    "dq is q": (batch, "dq", {"q": SHARED.reshape(2, 6, 4, 16), "dq": SHARED.reshape(2, 6, 4, 16)}),
    "dk is dv": (batch, "dk", {"dk": SHARED[:512].reshape(2, 8, 2, 16), "dv": SHARED[:512].reshape(2, 8, 2, 16)}),
    "dv overlaps dout": (batch, "dv", {"dout": SHARED.reshape(2, 6, 4, 16), "dv": SHARED[:512].reshape(2, 8, 2, 16)}),
    "delta is lse": (full, "delta", {"lse": SHARED[:48].reshape(2, 4, 6), "delta": SHARED[:48].reshape(2, 4, 6)}),
    # things that are no arrays
    "dout a list": (batch, "dout", {"dout": [[1.0]]}),
    "dq a flag": (batch, "dq", {"dq": True}),
    "dbias a word": (full, "dbias", {"dbias": "yes"}),
    "workspace a number": (full, "workspace", {"workspace": 4096}),
    # what does not go together
    "dbias without bias": (batch, "dbias", {"dbias": poisoned(f32(2, 4, 6, 8))}),
    "a new dbias without bias": (batch, "dbias", {"dbias": True}),
    "d_sink without sink": (batch, "d_sink", {"d_sink": poisoned(f32(4))}),
    "a new d_sink without sink": (batch, "d_sink", {"d_sink": True}),
    "randval without dropout": (full, "randval", {"dropout_p": 0.0}),
    "bias with alibi_slopes": (full, "bias", {"alibi_slopes": f32(4)}),
    # numbers
    "softmax_scale NaN": (batch, "softmax_scale", {"softmax_scale": float("nan")}),
    "softcap negative": (batch, "softcap", {"softcap": -1.0}),
    "dropout_p 1": (batch, "dropout_p", {"dropout_p": 1.0}),
    "rng of one": (batch, "rng", {"dropout_p": 0.5, "rng": (1,)}),
    "window below -1": (batch, "window", {"window": (-2, 0)}),
    "deterministic a word": (batch, "deterministic", {"deterministic": "yes"}),
    "workers negative": (batch, "workers", {"deterministic": True, "workers": -1}),
    "workers too many": (batch, "workers", {"deterministic": True, "workers": 10**9}),
    "workers a float": (batch, "workers", {"deterministic": True, "workers": 2.5}),
    "workers without deterministic": (batch, "workers", {"workers": 4}),
    "layout unknown": (batch, "layout", {"layout": "sbhd"}),
    "num_threads negative": (batch, "num_threads", {"num_threads": -1}),
    "instance too large": (batch, "instance", {"instance": 10**6}),
    "instance of the forward": (batch, "instance", {"instance": "fmha_fwd"}),
    "stream a number": (batch, "stream", {"stream": 7}),
    # lengths
    "group without lengths of q": (group, "cu_seqlens_q", {"cu_seqlens_q": None}),
    "cu_seqlens_k decreasing": (group, "cu_seqlens_k", {"cu_seqlens_k": i32(0, 8, 4, 12)}),
    "cu_seqlens_q beyond the data": (group, "cu_seqlens_q", {"cu_seqlens_q": i32(0, 3, 6, 11)}),
    "seqlen_k and cu_seqlens_k": (group, "seqlen_k", {"seqlen_k": i32(4, 4, 4)}),
    "seqstart_q in batch mode": (batch, "seqstart_q", {"seqstart_q": i32(0, 6, 12)}),
}  # fmt: skip


def test_there_are_enough():
    assert len(CASES) >= 40


@pytest.fixture(scope="session")
def fp32(load):
    return load("aiter")


def call_of(case: str) -> tuple[dict, str]:
    good, name, changes = CASES[case]
    return {**good(), **changes}, name


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(fp32, case):
    call, name = call_of(case)
    written = {key: call[key] for key in WRITTEN if isinstance(call.get(key), np.ndarray)}
    before = {key: array.tobytes() for key, array in written.items()}
    with pytest.raises(tk.ArgumentError) as error:
        fp32.fmha_bwd(**call)
    assert str(error.value).startswith(f"{name}: ")
    assert "must" in str(error.value)
    assert "\n" not in str(error.value)
    for key, array in written.items():
        assert array.tobytes() == before[key], f"{key} was written"


@pytest.mark.parametrize("case", CASES)
def test_refused_by_the_other_ways_in(fp32, case, monkeypatch):
    """find, why, workspace_size and attention_backward check alike."""
    call, name = call_of(case)
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [fp32])
    ways = [tk.attention_backward]
    if case != "workspace too small":  # its size is known when the stages are chosen
        ways += [fp32.fmha_bwd_find, fp32.fmha_bwd_why]
    for way in ways:
        with pytest.raises(tk.ArgumentError, match=f"^{name}: "):
            way(**call)
    if name != "workspace":
        with pytest.raises(tk.ArgumentError, match=f"^{name}: "):
            fp32.fmha_bwd_workspace_size(**call)


@pytest.mark.parametrize("case", CASES)
def test_without_gradients_the_inputs_are_named(fp32, case):
    """New gradients are only shaped after inputs that make sense."""
    call, name = call_of(case)
    if name not in ("dq", "dk", "dv") and not name.startswith("d_"):
        call |= dict.fromkeys(("dq", "dk", "dv"))
        if name != "dbias" and "dbias" in call:
            call["dbias"] = call["d_sink"] = True
        with pytest.raises(tk.ArgumentError) as error:
            fp32.fmha_bwd(**call)
        assert str(error.value).startswith(f"{name}: ")


@pytest.mark.parametrize("good", [batch, group, full])
def test_good_calls_are_good(fp32, good):
    """Else the cases above prove nothing."""
    fp32.fmha_bwd(**good())


def test_calls_that_python_refuses(fp32):
    good = list(batch().values())[:6]
    with pytest.raises(TypeError, match="has no argument 'deterministc'; did you mean deterministic"):
        fp32.fmha_bwd(*good, deterministc=True)
    with pytest.raises(TypeError, match="needs the argument lse"):
        fp32.fmha_bwd(*good[:5])
    with pytest.raises(TypeError, match="needs the argument out"):
        fp32.fmha_bwd(*good[:4], None, good[5])
    with pytest.raises(TypeError, match="takes dout, q, k, v, out and lse by position and everything else by name; 7"):
        fp32.fmha_bwd(*good, good[1])
    with pytest.raises(TypeError, match="got out by position and by name"):
        fp32.fmha_bwd(*good, out=good[4])
