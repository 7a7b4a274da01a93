# SPDX-License-Identifier: MIT
"""Gradients of attention with score and mask functions: against float64, PyTorch's autograd and its checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import functions as reference

from tests.python.test_function_attention import MASK, SCORE, SHAPES, problem, store  # noqa: F401

ALIBI = "score + slope[h] * (k - q) - tanh(table[h, q - k + 100])"


def gradients(
    score: Any, mask: Any, arrays: list[Any], tensors: dict[str, Any], **window: Any
) -> tuple[list[Any], list[Any]]:
    """Of a random dout, by the kernels and by the reference: dq, dk, dv, then of the tensors that the score reads."""
    from tilekiln.api.functions import call

    pair = call.pair_of(score, mask)
    given = pair.arrays({name: one for name, one in tensors.items() if name in pair.declared})
    nodes = {"score": score and score.node, "mask": mask and mask.node}
    out, lse = reference.attention(*arrays, **nodes, tensors=given, **window)
    out, lse = out.astype(arrays[0].dtype), lse.astype(np.float32)
    dout = np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype)
    wanted = sorted(pair.learned())
    made = {f"gradient_{name}": np.full(given[name].shape, np.nan, np.float32) for name in wanted}
    functions = pair.functions(arrays[0], arrays[2], frozenset(wanted))
    found = call.backward(functions, (dout, *arrays, out, lse), {**given, **made, **window})
    *want, of_tensors = reference.attention_backward(dout, *arrays, **nodes, tensors=given, **window)
    return [*found, *made.values()], [*want, *(of_tensors[name] for name in wanted)]


@pytest.mark.parametrize("window", [{}, {"causal": True}, {"window": (30, 5), "sink_size": 2}], ids=str)
def test_all_operations_against_float64(window: dict[str, Any]) -> None:
    score, mask = tk.score_function(SCORE), tk.mask_function(MASK, kind="int32")
    for shape in SHAPES:
        found, want = gradients(score, mask, *problem(shape), **window)
        for at, (one, other) in enumerate(zip(found, want, strict=True)):
            assert np.abs(one - other).max() <= 3e-5 * np.abs(other).max(), (shape, at)  # sums that cancel


@pytest.mark.day
def test_16_bits() -> None:
    arrays, tensors = problem(SHAPES[0], "bf16")
    found, want = gradients(tk.score_function("score + slope[h] * (k - q)"), None, arrays, tensors)
    for one, other in zip(found, want, strict=True):
        assert np.abs(np.float64(one) - other).max() <= 3e-2 * np.abs(other).max()


@pytest.mark.day
def test_pairs_without_weight_take_no_part() -> None:
    """A score of -inf by a division by 0, whose derivative is no number."""
    (q, k, v), _ = problem(SHAPES[0])
    tensors = {"table": np.ones((4, 200), np.float32)}
    tensors["table"][:, ::3] = 0
    score = tk.score_function("score - 1 / table[h, k]")
    found, want = gradients(score, None, [q, k, v], tensors)
    for one, other in zip(found, want, strict=True):
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= 5e-6 * max(1, np.abs(other).max())


@pytest.mark.torch
def test_autograd_compile_and_checks() -> None:
    import torch

    (q, k, v), _ = problem(SHAPES[0])
    slope, table = np.float32([0.5, 0.25, 0.1, 0]), np.linspace(-1, 1, 4 * 250, dtype=np.float32).reshape(4, 250)
    arrays = [torch.from_numpy(one).requires_grad_() for one in (q, k, v, slope, table)]
    mask = tk.mask_function("k <= q + 60")

    def attend(q: Any, k: Any, v: Any, slope: Any, table: Any, **words: Any) -> Any:
        score = tk.score_function(ALIBI) if not torch.compiler.is_compiling() else made
        return tk.function_attention(q, k, v, score=score, mask=mask, tensors={"slope": slope, "table": table}, **words)

    made = tk.score_function(ALIBI)
    want = None
    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        out = function(*arrays)
        dout = torch.ones_like(out)
        found = torch.autograd.grad(out, arrays, dout)
        if want is None:
            tensors = {"slope": slope, "table": table}
            *three, of_tensors = reference.attention_backward(
                dout.numpy(), q, k, v, score=made.node, mask=mask.node, tensors=tensors
            )
            want = [*three, of_tensors["slope"], of_tensors["table"]]
        for one, other in zip(found, want, strict=True):
            assert np.abs(one.numpy() - other).max() <= 1e-5 * max(1, np.abs(other).max())
    arguments = *arrays[:3], arrays[3:], ["slope", "table"], made.source, mask.source
    torch.library.opcheck(torch.ops.tilekiln.function_attention.default, arguments)

    (dq,) = torch.autograd.grad(attend(*arrays).square().sum(), arrays[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="has no second derivative"):
        torch.autograd.grad(dq.sum(), arrays[0])
    with pytest.raises(NotImplementedError, match="has no rule of vmap"):
        torch.vmap(lambda one: attend(one, *arrays[1:]))(arrays[0].detach().expand(3, -1, -1, -1, -1))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda one: attend(one, *(a.detach() for a in arrays[1:])), (arrays[0],), (arrays[0],))
    with pytest.raises(tk.ArgumentError, match="out: was given, must be absent where an input requires grad"):
        attend(*arrays, out=torch.empty(2, 70, 4, 64))
