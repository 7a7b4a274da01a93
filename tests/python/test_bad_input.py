# SPDX-License-Identifier: MIT
"""Bad input is refused before any kernel runs: the exception names the argument, and no output is written."""

from __future__ import annotations

import numpy as np
import pytest
import tilekiln as tk
from numpy.lib.stride_tricks import as_strided
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import problems


def f32(*shape: int) -> np.ndarray:
    return np.full(shape, 0.5, np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def batch() -> dict:
    """A good call: batch 2, seqlen 6 and 8, 4 and 2 heads, hdim 16."""
    return {
        "q": f32(2, 6, 4, 16),
        "k": f32(2, 8, 2, 16),
        "v": f32(2, 8, 2, 16),
        "out": problems.poisoned(f32(2, 6, 4, 16)),
        "lse": problems.poisoned(f32(2, 4, 6)),
    }


def group() -> dict:
    """A good call: three sequences, total 10 and 12."""
    return {
        "q": f32(10, 4, 16),
        "k": f32(12, 2, 16),
        "v": f32(12, 2, 16),
        "out": problems.poisoned(f32(10, 4, 16)),
        "lse": problems.poisoned(f32(4, 10)),
        "cu_seqlens_q": i32(0, 3, 6, 10),
        "cu_seqlens_k": i32(0, 4, 8, 12),
    }


def fp8() -> dict:
    return {
        "q": f32(1, 6, 4, 64).astype(NUMPY["fp8"]),
        "k": f32(1, 8, 2, 64).astype(NUMPY["fp8"]),
        "v": f32(1, 8, 2, 64).astype(NUMPY["fp8"]),
        "out": problems.poisoned(f32(1, 6, 4, 64).astype(NUMPY["bf16"])),
        "q_descale": f32(1),
        "k_descale": f32(1),
        "v_descale": f32(1),
    }


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def unaligned(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32).reshape(shape)


SHARED = f32(2 * 6 * 4 * 16)
PAST = i32(0, 3, 6, 11)

# id: (good call, the argument that the text must name, what to change)
CASES = {
    # shapes
    "q of 2 dimensions": (batch, "q", {"q": f32(6, 16)}),
    "q of 5 dimensions": (batch, "q", {"q": f32(1, 2, 6, 4, 16)}),
    "q of 6 dimensions": (batch, "q", {"q": f32(1, 1, 2, 6, 4, 16)}),
    "k of 3 dimensions": (batch, "k", {"k": f32(8, 2, 16)}),
    "v of 3 dimensions": (batch, "v", {"v": f32(8, 2, 16)}),
    "k of another batch": (batch, "k", {"k": f32(3, 8, 2, 16)}),
    "v of another batch": (batch, "v", {"v": f32(3, 8, 2, 16)}),
    "k of another head dim": (batch, "k", {"k": f32(2, 8, 2, 15)}),
    "v of another seqlen": (batch, "v", {"v": f32(2, 7, 2, 16)}),
    "v of another head count": (batch, "v", {"v": f32(2, 8, 1, 16)}),
    "heads that do not divide": (batch, "k", {"k": f32(2, 8, 3, 16), "v": f32(2, 8, 3, 16)}),
    "no key heads": (batch, "k", {"k": f32(2, 8, 0, 16), "v": f32(2, 8, 0, 16)}),
    "no head dim": (batch, "q", {"q": f32(2, 6, 4, 0), "k": f32(2, 8, 2, 0)}),
    "out of another seqlen": (batch, "out", {"out": problems.poisoned(f32(2, 5, 4, 16))}),
    "out of another head dim": (batch, "out", {"out": problems.poisoned(f32(2, 6, 4, 17))}),
    "out of 3 dimensions": (batch, "out", {"out": problems.poisoned(f32(6, 4, 16))}),
    "lse of another order": (batch, "lse", {"lse": problems.poisoned(f32(2, 6, 4))}),
    "lse of 2 dimensions": (batch, "lse", {"lse": problems.poisoned(f32(4, 6))}),
    "bias of too many heads": (batch, "bias", {"lse": None, "bias": f32(2, 3, 6, 8)}),
    "bias of another seqlen": (batch, "bias", {"bias": f32(2, 4, 6, 9)}),
    "bias of 2 dimensions": (batch, "bias", {"bias": f32(6, 8)}),
    "alibi_slopes of another length": (batch, "alibi_slopes", {"alibi_slopes": f32(5)}),
    "alibi_slopes of another batch": (batch, "alibi_slopes", {"alibi_slopes": f32(3, 4)}),
    "sink of another length": (batch, "sink", {"sink": f32(2)}),
    "randval of another shape": (batch, "randval", {"randval": np.zeros((2, 4, 6, 7), np.uint8), "dropout_p": 0.5}),
    "seqlen_q of another length": (batch, "seqlen_q", {"seqlen_q": i32(6)}),
    "cu_seqlens_k of another length": (batch, "cu_seqlens_k", {"cu_seqlens_k": i32(0, 8)}),
    "layouts mixed": (batch, "v", {"layout": "bhsd", "k": f32(2, 2, 8, 16)}),
    # dtypes
    "q of float64": (batch, "q", {"q": f32(2, 6, 4, 16).astype(np.float64)}),
    "q of int32": (batch, "q", {"q": np.zeros((2, 6, 4, 16), np.int32)}),
    "q of complex64": (batch, "q", {"q": f32(2, 6, 4, 16).astype(np.complex64)}),
    "q of bool": (batch, "q", {"q": np.zeros((2, 6, 4, 16), bool)}),
    "q of strings": (batch, "q", {"q": np.full((2, 6, 4, 16), "x")}),
    "q of e5m2": (batch, "q", {"q": f32(2, 6, 4, 16).astype(NUMPY["bf8"])}),
    "q of another byte order": (batch, "q", {"q": f32(2, 6, 4, 16).astype(">f4")}),
    "k of fp16": (batch, "k", {"k": f32(2, 8, 2, 16).astype(np.float16)}),
    "v of bf16": (batch, "v", {"v": f32(2, 8, 2, 16).astype(NUMPY["bf16"])}),
    "out of fp16": (batch, "out", {"out": problems.poisoned(f32(2, 6, 4, 16).astype(np.float16))}),
    "lse of fp16": (batch, "lse", {"lse": problems.poisoned(f32(2, 4, 6).astype(np.float16))}),
    "bias of another dtype": (batch, "bias", {"bias": f32(2, 4, 6, 8).astype(np.float16)}),
    "alibi_slopes of float64": (batch, "alibi_slopes", {"alibi_slopes": np.ones(4)}),
    "sink of bf16": (batch, "sink", {"sink": f32(4).astype(NUMPY["bf16"])}),
    "randval of int32": (batch, "randval", {"randval": np.zeros((2, 4, 6, 8), np.int32), "dropout_p": 0.5}),
    "seqlen_k of int64": (batch, "seqlen_k", {"seqlen_k": np.array([8, 8])}),
    "cu_seqlens_q of int64": (group, "cu_seqlens_q", {"cu_seqlens_q": np.array([0, 3, 6, 10])}),
    "fp8 out of fp16": (fp8, "out", {"out": problems.poisoned(f32(1, 6, 4, 64).astype(np.float16))}),
    "out_dtype without fp8": (batch, "out_dtype", {"out_dtype": "fp32"}),
    "out_dtype against out": (fp8, "out_dtype", {"out_dtype": "fp32"}),
    "out_dtype unknown": (fp8, "out_dtype", {"out_dtype": "fp16"}),
    # strides and memory
    "q with a strided last dimension": (batch, "q", {"q": f32(2, 6, 4, 32)[..., ::2]}),
    "v with a reversed last dimension": (batch, "v", {"v": f32(2, 8, 2, 16)[..., ::-1]}),
    "out with a strided last dimension": (batch, "out", {"out": problems.poisoned(f32(2, 6, 4, 32))[..., ::2]}),
    "lse with a strided last dimension": (batch, "lse", {"lse": problems.poisoned(f32(2, 4, 12))[..., ::2]}),
    "bias with a strided last dimension": (batch, "bias", {"bias": f32(2, 4, 6, 16)[..., ::2]}),
    "q unaligned": (batch, "q", {"q": unaligned(2, 6, 4, 16)}),
    "k with odd strides": (batch, "k", {"k": np.zeros((2, 8, 2, 70), np.uint8)[..., :64].view(np.float32)}),
    "out read-only": (batch, "out", {"out": readonly(problems.poisoned(f32(2, 6, 4, 16)))}),
    "lse read-only": (batch, "lse", {"lse": readonly(problems.poisoned(f32(2, 4, 6)))}),
    "out is q": (batch, "out", {"q": SHARED.reshape(2, 6, 4, 16), "out": SHARED.reshape(2, 6, 4, 16)}),
    "out overlaps k": (batch, "out", {"k": SHARED[:512].reshape(2, 8, 2, 16), "out": SHARED.reshape(2, 6, 4, 16)}),
    "lse overlaps out": (batch, "out", {"out": SHARED.reshape(2, 6, 4, 16), "lse": SHARED[8:56].reshape(2, 4, 6)}),
    "out overlaps itself": (batch, "out", {"out": as_strided(SHARED, (2, 6, 4, 16), (0, 256, 64, 4))}),
    # things that are no arrays
    "q a list": (batch, "q", {"q": [[1.0]]}),
    "k a number": (batch, "k", {"k": 3.0}),
    "out a string": (batch, "out", {"out": "out"}),
    "cu_seqlens_q a list": (group, "cu_seqlens_q", {"cu_seqlens_q": [0, 3, 6, 10]}),
    # numbers
    "softmax_scale NaN": (batch, "softmax_scale", {"softmax_scale": float("nan")}),
    "softmax_scale infinite": (batch, "softmax_scale", {"softmax_scale": float("inf")}),
    "softmax_scale a string": (batch, "softmax_scale", {"softmax_scale": "1"}),
    "softcap negative": (batch, "softcap", {"softcap": -1.0}),
    "softcap NaN": (batch, "softcap", {"softcap": float("nan")}),
    "bias with alibi_slopes": (batch, "bias", {"bias": f32(2, 4, 6, 8), "alibi_slopes": f32(4)}),
    "dropout_p 1": (batch, "dropout_p", {"dropout_p": 1.0}),
    "dropout_p negative": (batch, "dropout_p", {"dropout_p": -0.1}),
    "dropout_p NaN": (batch, "dropout_p", {"dropout_p": float("nan")}),
    "randval without dropout": (batch, "randval", {"randval": np.zeros((2, 4, 6, 8), np.uint8)}),
    "rng of one": (batch, "rng", {"dropout_p": 0.5, "rng": (1,)}),
    "rng negative": (batch, "rng", {"dropout_p": 0.5, "rng": (-1, 0)}),
    "rng too large": (batch, "rng", {"dropout_p": 0.5, "rng": (0, 2**64)}),
    "rng of floats": (batch, "rng", {"dropout_p": 0.5, "rng": (0.5, 0)}),
    "window a number": (batch, "window", {"window": 5}),
    "window of three": (batch, "window", {"window": (1, 2, 3)}),
    "window below -1": (batch, "window", {"window": (-2, 0)}),
    "window of floats": (batch, "window", {"window": (1.5, 0)}),
    "window too large": (batch, "window", {"window": (2**31, 0)}),
    "causal a word": (batch, "causal", {"causal": "no"}),
    "causal an array": (batch, "causal", {"causal": np.zeros(2)}),
    "mask_origin unknown": (batch, "mask_origin", {"mask_origin": "top_right"}),
    "layout unknown": (batch, "layout", {"layout": "sbhd"}),
    "sink_size negative": (batch, "sink_size", {"sink_size": -1}),
    "num_threads negative": (batch, "num_threads", {"num_threads": -1}),
    "num_threads a float": (batch, "num_threads", {"num_threads": 1.5}),
    "instance too large": (batch, "instance", {"instance": 10**6}),
    "instance below -1": (batch, "instance", {"instance": -2}),
    "instance unknown": (batch, "instance", {"instance": "fmha_fwd_fp32"}),
    "instance that does not fit": (batch, "instance", {"instance": 0, "softcap": 3.0, "causal": True}),
    "stream a number": (batch, "stream", {"stream": 7}),
    # lengths
    "group without lengths of q": (group, "cu_seqlens_q", {"cu_seqlens_q": None}),
    "group without lengths of k": (group, "cu_seqlens_k", {"cu_seqlens_k": None}),
    "group of other batch": (group, "cu_seqlens_k", {"cu_seqlens_k": i32(0, 4, 12)}),
    "cu_seqlens_q decreasing": (group, "cu_seqlens_q", {"cu_seqlens_q": i32(0, 6, 3, 10)}),
    "cu_seqlens_q negative": (group, "cu_seqlens_q", {"cu_seqlens_q": i32(-1, 3, 6, 10)}),
    "cu_seqlens_q beyond the data": (group, "cu_seqlens_q", {"cu_seqlens_q": PAST}),
    "cu_seqlens_k of 2 dimensions": (group, "cu_seqlens_k", {"cu_seqlens_k": i32(0, 4, 8, 12)[None]}),
    "cu_seqlens_k empty": (group, "cu_seqlens_k", {"cu_seqlens_k": i32()}),
    "seqstart_q beyond the data": (group, "seqstart_q", {"seqstart_q": PAST}),
    "seqlen_q longer than its place": (
        group, "seqlen_q", {"seqstart_q": i32(0, 3, 6, 10), "cu_seqlens_q": None, "seqlen_q": i32(3, 4, 1)}
    ),
    "seqlen_k negative": (
        group, "seqlen_k", {"seqstart_k": i32(0, 4, 8, 12), "cu_seqlens_k": None, "seqlen_k": i32(1, -1, 1)}
    ),
    "seqlen_q and cu_seqlens_q": (group, "seqlen_q", {"seqlen_q": i32(3, 3, 4)}),
    "seqstart_q in batch mode": (batch, "seqstart_q", {"seqstart_q": i32(0, 6, 12)}),
    "seqlen_q beyond the row": (batch, "seqlen_q", {"seqlen_q": i32(6, 7)}),
    "min_seqlen_q negative": (group, "min_seqlen_q", {"min_seqlen_q": -2}),
    "bias too narrow for the longest": (group, "bias", {"lse": None, "bias": f32(4, 10, 3)}),
    # scales
    "one descale missing": (fp8, "v_descale", {"v_descale": None}),
    "descale NaN": (fp8, "k_descale", {"k_descale": np.full(1, np.nan, np.float32)}),
    "descale infinite": (fp8, "q_descale", {"q_descale": np.full(1, np.inf, np.float32)}),
    "descale of two": (fp8, "q_descale", {"q_descale": f32(2)}),
    "descale of fp16": (fp8, "q_descale", {"q_descale": f32(1).astype(np.float16)}),
    "block descale of other heads": (
        fp8, "k_descale", {"q_descale": f32(1, 4, 1), "k_descale": f32(1, 4, 1), "v_descale": f32(1, 2, 1)}
    ),
    "block scale starts in batch mode": (fp8, "block_scale_seqstart_q", {"block_scale_seqstart_q": i32(0, 1)}),
}  # fmt: skip


def test_there_are_enough():
    assert len(CASES) >= 60


@pytest.mark.parametrize("case", CASES)
def test_refused_by_name(flash, case):
    good, name, changes = CASES[case]
    call = {**good(), **changes}
    written = {key: call[key] for key in ("out", "lse", "randval") if isinstance(call.get(key), np.ndarray)}
    before = {key: array.tobytes() for key, array in written.items()}
    with pytest.raises(tk.ArgumentError) as error:
        flash.fmha_fwd(**call)
    assert str(error.value).startswith(f"{name}: ")
    assert "must" in str(error.value)
    assert "\n" not in str(error.value)
    for key, array in written.items():
        assert array.tobytes() == before[key], f"{key} was written"


@pytest.mark.parametrize("case", CASES)
def test_refused_by_the_other_ways_in(flash, case, monkeypatch):
    """find, why and attention check alike."""
    good, name, changes = CASES[case]
    call = {**good(), **changes}
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    for way in (flash.fmha_fwd_find, flash.why, tk.attention):
        with pytest.raises(tk.ArgumentError, match=f"^{name}: "):
            way(**call)


@pytest.mark.parametrize("good", [batch, group])
def test_good_calls_are_good(flash, good):
    """Else the cases above prove nothing."""
    flash.fmha_fwd(**good())


@pytest.mark.parametrize("which", range(3))
def test_arrays_of_no_dimensions(flash, which, monkeypatch):
    arrays = [f32(1, 4, 2, 16) for _ in range(3)]
    arrays[which] = f32()
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash])
    for way in (flash.fmha_fwd, flash.fmha_fwd_find, tk.attention):
        with pytest.raises(tk.ArgumentError, match=f"^{'qkv'[which]}: had 0 dimensions, must have "):
            way(*arrays)


def test_without_out_the_inputs_are_named(flash):
    """The output is only shaped after inputs that make sense."""
    for case, (good, name, changes) in CASES.items():
        if name in ("q", "k", "v"):
            call = {**good(), **changes, "out": None, "lse": None, "return_lse": True}
            with pytest.raises(tk.ArgumentError) as error:
                flash.fmha_fwd(**call)
            assert str(error.value).startswith(f"{name}: "), case


def test_calls_that_python_refuses(flash):
    good = batch()
    q, k, v = good.pop("q"), good.pop("k"), good.pop("v")
    with pytest.raises(TypeError, match="has no argument 'windows'; did you mean window"):
        flash.fmha_fwd(q, k, v, windows=(1, 1))
    with pytest.raises(TypeError, match="has no argument 'zzz'; it has q, k, v, out"):
        flash.fmha_fwd(q, k, v, zzz=1)
    with pytest.raises(TypeError, match="needs the argument v"):
        flash.fmha_fwd(q, k)
    with pytest.raises(TypeError, match="needs the argument k"):
        flash.fmha_fwd(q, None, v)
    with pytest.raises(TypeError, match="takes q, k and v by position and everything else by name; 4"):
        flash.fmha_fwd(q, k, v, good["out"])
    with pytest.raises(TypeError, match="got q by position and by name"):
        flash.fmha_fwd(q, k, v, q=q)
