# SPDX-License-Identifier: MIT
"""Weights in place of the softmax, as HSTU's silu(score) / n, against float64; what goes with none."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tilekiln as tk

from tests.python.test_function_attention import TOLERANCE, problem, store

__all__ = ["store"]
HSTU = "score / (1 + exp(-score)) / 64"


def expected(arrays: list[Any], shown: np.ndarray | None) -> np.ndarray:
    """shown: pairs, (seqlen_q, seqlen_k); None: all."""
    q, k, v = (np.swapaxes(one.astype(np.float64), 1, 2) for one in arrays)
    group = q.shape[1] // k.shape[1]
    score = q @ np.repeat(k, group, 1).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weight = score / (1 + np.exp(-score)) / 64
    return np.swapaxes((weight if shown is None else np.where(shown, weight, 0)) @ np.repeat(v, group, 1), 1, 2)


@pytest.mark.day
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=pytest.mark.turns(0))])
def test_hstu_against_float64(dtype: str) -> None:
    """Whole, short and partial blocks; rows that see no key are 0, and hidden values take no part."""
    arrays, _ = problem((2, 70, 130, 4, 2, 64, 40), dtype)
    row, key = np.mgrid[:70, :130]
    masks = {"whole": (None, {}), "mask": ((key <= row - 5) & (key % 7 != 1), {"mask": "k <= q - 5 and k % 7 != 1"})}
    masks["window"] = ((key - row - 60 <= 0) & (key - row - 60 >= -20), {"window": (20, 0)})
    for shown, more in masks.values():
        given = [one.copy() for one in arrays]
        if "mask" in more:
            given[2][:, 1] = np.nan  # hidden from all
        out = tk.function_attention(*given, weight=HSTU, **more)
        want = expected(arrays, shown)
        assert out.dtype == arrays[0].dtype
        assert np.abs(out.astype(np.float64) - want).max() <= TOLERANCE[dtype] * np.abs(want).max()
        assert not (shown is not None and "mask" in more and out[:, :5].any())


def test_what_is_refused() -> None:
    arrays, _ = problem((1, 5, 3, 2, 1, 33, 17))
    weight = tk.weight_function(HSTU)

    def refused(said: str, **arguments: Any) -> None:
        with pytest.raises(tk.ArgumentError, match=f"^{re.escape(said)}"):
            tk.function_attention(*arrays, **arguments)

    refused("weight: was 3, must be of weight_function", weight=3)
    refused("weight: was <tilekiln.ScoreFunction 'score'>, must", weight=tk.score_function("score"))
    refused("score: was <tilekiln.WeightFunction", score=weight)
    refused("score: was given beside weight, must be None", score="score", weight=weight)
    refused("return_lse: was True beside weight, must be False", weight=weight, return_lse=True)
    with pytest.raises(tk.ArgumentError, match=r"^weight_function: 'score > 1' is a comparison, must be a number"):
        tk.weight_function("score > 1")


@pytest.mark.day
@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.turns(0))])
def test_gradients_against_float64(dtype: str) -> None:
    """Of q, k, v and a factor a head: short and partial blocks, rows that see no key, weights of 0 with a slope."""
    torch = pytest.importorskip("torch")
    (q, k, v), _ = problem((2, 70, 130, 4, 2, 64, 40), "fp32")
    q[:, 7] = 0  # scores of 0, whose weight is 0
    given = [torch.from_numpy(one).to(getattr(torch, dtype)).requires_grad_() for one in (q, k, v)]
    factor = torch.linspace(0.5, 2, 4).requires_grad_()
    seen = torch.ones(70, 130, dtype=torch.bool).tril(-5)
    out = tk.function_attention(
        *given, weight="f[h] * score / (1 + exp(-score)) / 64", mask="k <= q - 5", tensors={"f": factor}, num_threads=2
    )
    dout = torch.linspace(-1, 1, out.numel()).sin().reshape(out.shape).to(out.dtype)
    out.backward(dout)
    wide = [one.detach().double().requires_grad_() for one in (*given, factor)]
    of_heads = [one.transpose(1, 2) for one in wide[:3]]
    score = of_heads[0] @ of_heads[1].repeat_interleave(2, 1).transpose(-1, -2) / 8
    weight = torch.where(seen, torch.nn.functional.silu(score) / 64, 0) * wide[3][:, None, None]
    (weight @ of_heads[2].repeat_interleave(2, 1)).transpose(1, 2).backward(dout.double())
    for got, want in zip((*given, factor), wide, strict=True):
        error = (got.grad.double() - want.grad).abs().max()
        assert error <= {"float32": 1e-5, "bfloat16": 2e-2}[dtype] * want.grad.abs().max()
    assert given[0].grad[:, 7, :, 0].any()
    assert not given[0].grad[:, :5].any()


@pytest.mark.torch
def test_what_derivatives_a_weight_has_not_is_said() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.ones(1, 3, 1, 8) for _ in range(3))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        tk.function_attention(torch.autograd.forward_ad.make_dual(q, q), k, v, weight=HSTU)
    with pytest.raises(NotImplementedError, match="has no rule of vmap"):
        torch.func.vmap(lambda *of: tk.function_attention(*(one[None] for one in of), weight=HSTU))(q, k, v)


@pytest.mark.day
@pytest.mark.torch
def test_compiled_in_one_graph() -> None:
    torch = pytest.importorskip("torch")
    arrays, _ = problem((2, 9, 21, 4, 2, 64, 40), "fp32")

    def attend(q: Any, k: Any, v: Any) -> Any:
        return tk.function_attention(q, k, v, weight=HSTU, mask="k <= q + 3")

    given = [torch.from_numpy(one) for one in arrays]
    want = attend(*given)
    assert torch.equal(torch.compile(attend, backend="aot_eager", fullgraph=True)(*given), want)
