# SPDX-License-Identifier: MIT
"""fmha_fwd_appendkv with a norm of heads: the bits of rmsnorm2d, rotation and append one after another, and float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import kv as reference

DTYPES = ("fp32", "fp16", "bf16")
BATCH, NEW, HEADS, OF_K = 2, 3, 4, 2


@pytest.fixture(scope="module")
def libraries(load: Callable[..., tk.Library]) -> tuple[tk.Library, tk.Library]:
    return load("flash"), load("norm_default")


def problem(dtype: str, hdim: int, paged: bool, wide: bool, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def normal(*shape: int, of: str = dtype) -> Any:
        return random.standard_normal(shape).astype(NUMPY[of])

    angle = random.uniform(0, 6, (40, hdim // 2 - 8))  # the last dims are not turned
    rows = (6, 8) if paged else (BATCH, 24)
    given = {
        "q": normal(BATCH, NEW, HEADS, hdim), "k": normal(*rows, OF_K, hdim), "v": normal(*rows, OF_K, hdim),
        "knew": normal(BATCH, NEW, OF_K, hdim), "vnew": normal(BATCH, NEW, OF_K, hdim),
        "seqlen_k": np.array([14, 6], np.int32), "causal": True, "rotary_interleaved": False,
        "rotary_cos": np.cos(angle).astype(np.float32), "rotary_sin": np.sin(angle).astype(np.float32),
    }  # fmt: skip
    if paged:
        given["block_table"] = np.array([[5, 0, 2], [1, 4, 3]], np.int32)
    of = "fp32" if wide else dtype
    return given | {"q_gamma": normal(hdim, of=of), "k_gamma": normal(hdim, of=of), "norm_epsilon": 1e-5}


def appended(lib: tk.Library, given: dict[str, Any], **more: Any) -> tuple[Any, ...]:
    """q, k and v as the call leaves them, and out."""
    named = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
    arrays = [named.pop(name) for name in ("q", "k", "v", "knew", "vnew")]
    out = lib.fmha_fwd_appendkv(*arrays, **named, **more)
    return *arrays[:3], out


@pytest.mark.sampled
@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("rounding", ["pytorch", "transformers"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("hdim", [64, 80, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_the_chain(
    libraries: tuple[tk.Library, tk.Library], dtype: str, hdim: int, paged: bool, rounding: str, attend: bool
) -> None:
    flash, norms = libraries
    given = problem(dtype, hdim, paged, wide=False)
    made = appended(flash, given | {"norm_rounding": rounding}, attend=attend)
    chain = dict(given)
    for name, gamma in (("q", "q_gamma"), ("knew", "k_gamma")):
        rows = given[name].reshape(-1, hdim)
        y = norms.rmsnorm2d(rows, chain.pop(gamma), epsilon=1e-5, rounding=rounding)
        chain[name] = y.reshape(given[name].shape)
    del chain["norm_epsilon"]
    for mine, its in zip(made, appended(flash, chain, attend=attend), strict=True):
        assert (mine is None and its is None) or mine.tobytes() == its.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_beside_float64(libraries: tuple[tk.Library, tk.Library], dtype: str) -> None:
    """Factors in fp32, as Gemma's 1 + weight; a result may be off by a rounding of the norm and one more."""
    flash, _ = libraries
    for paged, rounding in itertools.product((False, True), ("pytorch", "transformers")):
        given = problem(dtype, 96, paged, wide=True) | {"norm_rounding": rounding}
        q, k, v, _ = appended(flash, given, attend=False)
        right = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
        reference.appendkv(**right, attend=False)
        assert v.tobytes() == right["v"].tobytes()
        unit = {"fp32": 2.0**-22, "fp16": 2.0**-9, "bf16": 2.0**-6}[dtype]
        for mine, its in ((q, right["q"]), (k, right["k"])):
            far = np.abs(mine.astype(np.float64) - its.astype(np.float64))
            assert (far <= unit * np.maximum(1, np.abs(its.astype(np.float64)).max())).all()
        assert np.abs(right["k"].astype(np.float64) - given["k"].astype(np.float64)).max() > 0.5


def test_bad_input(libraries: tuple[tk.Library, tk.Library]) -> None:
    flash, _ = libraries
    given = problem("bf16", 64, paged=False, wide=False)
    for change, text in (
        ({"k_gamma": None}, "k_gamma: was null, must be given: q_gamma and k_gamma go together"),
        ({"rotary_cos": None, "rotary_sin": None}, "q_gamma: was given without rotary_cos, must be null: heads are"),
        ({"k_gamma": given["k_gamma"][:63]}, "k_gamma: hdim_q was 63, must be 64"),
        (
            {"q_gamma": given["q_gamma"].astype(np.float32)},
            "k_gamma: dtype was bf16, must be fp32, the dtype of q_gamma",
        ),
        ({"q_gamma": given["q_gamma"].astype(np.float16)}, "q_gamma: dtype was fp16"),
        ({"norm_epsilon": -1.0}, "norm_epsilon: was -1"),
        ({"norm_rounding": "llama"}, "norm_rounding: was 'llama', must be"),
    ):
        with pytest.raises(tk.ArgumentError, match=text):
            appended(flash, given | change)
