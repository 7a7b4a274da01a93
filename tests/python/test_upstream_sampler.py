# SPDX-License-Identifier: MIT
"""The sampler and the judge of the upstream matrices find what they must find."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch

AXES = {"a": range(7), "b": "xyz", "c": [False, True], "d": range(5)}


def forbids(case):
    return not (case["a"] == 3 and case["b"] == "x")


def test_every_allowed_pair_meets_in_few_cases():
    cases = upstream.pairwise(AXES, forbids)
    assert all(forbids(case) for case in cases)
    for (a, those), (b, these) in itertools.combinations(AXES.items(), 2):
        for x, y in itertools.product(those, these):
            met = any(case[a] == x and case[b] == y for case in cases)
            assert met == (not (a == "a" and b == "b" and x == 3 and y == "x")), (a, x, b, y)
    assert len(cases) <= 1.4 * 7 * 5  # 210 in all; 35 at least


def test_the_cases_are_the_same_every_time():
    assert upstream.pairwise(AXES) == upstream.pairwise(AXES)


def test_the_judge_sees_a_wrong_element():
    exact = torch.linspace(-1, 1, 100)
    same = exact.bfloat16()
    upstream.judge("out", same.clone(), exact, same, 2)
    wrong = same.clone()
    wrong[50] += 0.05
    with pytest.raises(AssertionError, match=r"out: error 0\.05"):
        upstream.judge("out", wrong, exact, same, 2)
    wrong[50] = float("nan")
    with pytest.raises(AssertionError, match="not finite"):
        upstream.judge("out", wrong, exact, same, 2)


def test_the_plain_attention_is_attention():
    """Against torch's own, with a dead row, whose output and gradients are 0."""
    q, k, v = (
        upstream.normal(2, s, h, 16, dtype=torch.float32, seed=s, grad=True) for s, h in ((5, 4), (4, 2), (3, 2))
    )
    v = torch.cat([v, v[:, :1]], 1)
    seen = upstream.visible(5, 4, causal=True)
    out, lse = upstream.attention(q, k, v, seen=seen)
    assert seen.sum(1).tolist() == [0, 1, 2, 3, 4]
    assert (out[:, 0] == 0).all()
    assert torch.isneginf(lse[..., 0]).all()
    [dq] = torch.autograd.grad(out.sum(), q, retain_graph=True)
    assert (dq[:, 0] == 0).all()
    heads = [q.transpose(1, 2), *(x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))]
    exact = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=seen).transpose(1, 2)
    torch.testing.assert_close(out[:, 1:], exact[:, 1:])
