# SPDX-License-Identifier: MIT
"""FlexAttention's callables and block masks: traced to expressions, and attention with them beside PyTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import functions as reference

from tests.python.test_function_attention import store  # noqa: F401

pytestmark = pytest.mark.torch
SHAPE = (2, 3, 40, 50)  # batch, heads, seqlen_q, seqlen_k


def mods() -> dict[str, Any]:
    """Callables of users, by what they are; those of two or more tensors close over them."""
    import torch
    from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

    torch.manual_seed(0)
    slope, half = torch.rand(3), torch.rand(3, 95).bfloat16()
    document, seen = torch.arange(50) // 9, torch.rand(2, 40) > 0.5
    start, gain = torch.tensor([[3, 9, 11]]), torch.tensor(0.3)

    def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    return {
        "alibi": lambda s, b, h, q, k: s + slope[h] * (k - q),
        "relative": lambda s, b, h, q, k: s + half[h, q - k + 49].float() * gain,
        "chained": lambda s, b, h, q, k: s - half[h][k].to(s.dtype) + start[0][h],
        "chained at once": lambda s, b, h, q, k: s - half[h, k].to(s.dtype) + start[0, h],
        "soft cap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
        "where": lambda s, b, h, q, k: torch.where((q - k).abs() < 9, s, -float("inf")),
        "many": lambda s, b, h, q, k: (
            torch.sigmoid(-(s.square() ** 2)).clamp(min=0.2, max=0.4) - torch.relu(s) * (h % 2)
        ),
        "others": lambda s, b, h, q, k: torch.exp(torch.minimum(s, torch.ones_like(s))) * (q // 7 == k // 7).float(),
        "reversed": lambda s, b, h, q, k: 2 - (1 / (1 + s.abs())) * torch.rsub(q, 3),
        "causal": causal,
        "window": and_masks(causal, lambda b, h, q, k: q - k < 7),
        "documents": lambda b, h, q, k: document[q] == document[k],
        "prefix": or_masks(causal, lambda b, h, q, k: k < start[0, h]),
        "bits": lambda b, h, q, k: ((0b1011 >> (k % 5)) & 1).bool() & ~(q == 4) | seen[b, q],
        "all": noop_mask,
    }


NAMES = (
    "alibi", "relative", "chained", "soft cap", "where", "many", "others", "reversed", "causal", "window", "documents",
    "prefix", "bits", "all",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_callables_trace_to_what_they_compute(name: str) -> None:
    import torch

    mod = mods()[name]
    torch.manual_seed(1)
    indices = torch.meshgrid(*(torch.arange(one) for one in SHAPE), indexing="ij")
    names = dict(zip("bhqk", (one.numpy() for one in indices), strict=True))
    if mod.__code__.co_argcount == 5:
        score = torch.randn(SHAPE)
        function = tk.score_function(mod)
        # indices one after another are those of one pair, as FlexAttention has them, and not of all at once
        want = (mods()["chained at once"] if name == "chained" else mod)(score, *indices)
        names["score"] = score.double().numpy()
    else:
        function, want = tk.mask_function(mod), mod(*indices)
    again = type(function)(function.source, {name: one.dtype for name, one in function.tensors.items()})
    for one in (function, again):
        from tilekiln.api.functions import call

        tensors = {name: call.read_bound(array).numpy() for name, array in function.bound.items()}
        found = np.broadcast_to(reference.evaluate(one.node, names, tensors), SHAPE)
        assert np.allclose(found, want.expand(SHAPE).float().numpy(), rtol=1e-5, atol=1e-5)


def test_what_does_not_trace() -> None:
    import torch

    table = torch.rand(3, 9)
    for mod, sentence in {
        (lambda s, b, h, q, k: s if q > k else -s): "asks which value a number has, in an if, a loop or item()",
        (lambda s, b, h, q, k: s * torch.sin(s)): "calls sin; it must be made of + - * /",
        (lambda s, b, h, q, k: s + table[h]): "computes with Part",
        (lambda s, b, h, q, k: s + table[h, q, k]): "gives 3 indices of a tensor of 2 dimensions",
        (lambda s, b, h, q, k: s + table[:, q]): "takes a part of a tensor, slice",
        (lambda s, b, h, q, k: s + table[s, q]): "an index of s0 was no integer",
        (lambda s, b, h, q, k: (s, s)): "computes with tuple",
        (lambda s, b, h, q, k: s + len(table[h, q].numpy())): "calls numpy",
        (lambda s, q, k: s): "raised TypeError",
    }.items():
        with pytest.raises(tk.ArgumentError) as error:
            tk.score_function(mod)
        assert str(error.value).startswith("score_function: <lambda>(score, b, h, q, k) ")
        assert sentence in str(error.value)
    with pytest.raises(tk.ArgumentError, match=r"mask_function: .* is a number, must be a comparison"):
        tk.mask_function(lambda b, h, q, k: q - k)
    with pytest.raises(tk.ArgumentError, match="was a callable with tensors, must be a text, or a callable"):
        tk.score_function(lambda s, b, h, q, k: s, table=table)


def test_attention_beside_pytorch() -> None:
    import torch
    from tilekiln.torch import flex_attention
    from tilekiln.torch.functions.flex import mask_of
    from torch.nn.attention import flex_attention as flex

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 300, 32, requires_grad=True) for heads in (4, 2, 2))
    slope = torch.rand(4, requires_grad=True)
    document = torch.arange(300) // 90

    def mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + slope[h] * (k - q)

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (document[q] == document[k])

    slope_now = slope.detach()

    def mod_now(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + slope_now[h] * (k - q)

    mask = flex.create_block_mask(seen, None, None, 300, 300, device="cpu")
    arguments: dict[str, Any] = {"score_mod": mod, "block_mask": mask, "enable_gqa": True, "scale": 0.2}
    b, h, i, j = torch.meshgrid(*(torch.arange(one) for one in (2, 4, 300, 300)), indexing="ij")
    many_k, many_v = (one.repeat_interleave(2, 1) for one in (k, v))
    # by hand: that of PyTorch has no backward on CPUs
    logits = mod(0.2 * q @ many_k.mT, b, h, i, j).where(seen(b, h, i, j), -torch.inf)
    want = logits.softmax(-1) @ many_v
    dout, inputs = torch.randn_like(want), (q, k, v, slope)
    made = flex_attention(q, k, v, **arguments)
    assert torch.allclose(made, want, atol=1e-5)
    found = torch.autograd.grad(made, inputs, dout)
    for one, other in zip(found, torch.autograd.grad(want, inputs, dout), strict=True):
        assert torch.allclose(one, other, atol=1e-5 * float(other.abs().max()))
    with torch.no_grad():
        made, lse = flex_attention(q, k, v, return_lse=True, **arguments)
        _, aux = flex_attention(q, k, v, return_aux=flex.AuxRequest(lse=True), **arguments)
        _, wanted = flex.flex_attention(
            *(one.detach() for one in (q, k, v)), return_lse=True, **{**arguments, "score_mod": mod_now}
        )
    assert made.is_contiguous()
    assert torch.equal(lse, aux.lse)
    assert torch.allclose(lse, wanted, atol=1e-5)
    assert mask_of(mask) is mask_of(mask)

    for words, sentence in (
        ({"enable_gqa": False}, "enable_gqa: was False, must be True where query has 4 heads and key 2"),
        ({"return_aux": flex.AuxRequest(max_scores=True)}, "return_aux: had max_scores=True"),
        (
            {"block_mask": flex.create_block_mask(seen, None, None, 128, 300, device="cpu")},
            "block_mask: was of seqlens",
        ),
        ({"block_mask": flex.create_block_mask(seen, 3, None, 300, 300, device="cpu")}, "block_mask: was of batch 3"),
    ):
        with pytest.raises(tk.ArgumentError, match=sentence):
            flex_attention(q, k, v, **{**arguments, **words})
    with pytest.raises(tk.ArgumentError, match="query: had 3 dimensions, must have 4"):
        flex_attention(q[0], k, v)
