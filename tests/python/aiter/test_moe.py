# SPDX-License-Identifier: MIT
"""Routing, sorting and experts of tilekiln.compat.aiter against float64."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal, over  # noqa: E402

pytestmark = pytest.mark.torch
TOKENS, EXPERTS, TOPK = 9, 16, 4


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("moe_default"))


@pytest.fixture
def moe(face):
    import tilekiln.compat.aiter.fused_moe

    return tilekiln.compat.aiter.fused_moe


def places(topk=TOPK, tokens=TOKENS):
    return torch.empty(tokens, topk, device=DEVICE), torch.empty(tokens, topk, dtype=torch.int32, device=DEVICE)


def chosen(logits, score, bias=None, groups=1, best=1, two=True, renormalise=True, scaling=1.0, topk=TOPK):
    """(weights, indices) in float64, the highest key first."""
    x = logits.double()
    scores = {
        "softmax": lambda: x.softmax(-1), "sigmoid": x.sigmoid,
        "sqrtsoftplus": lambda: torch.nn.functional.softplus(x).sqrt(),
    }[score]()  # fmt: skip
    keys = scores if bias is None else scores + bias.double()
    if groups > 1:
        parts = keys.view(len(x), groups, -1)
        of_group = parts.topk(2, -1)[0].sum(-1) if two else parts.amax(-1)
        kept = torch.zeros_like(of_group).scatter_(1, of_group.topk(best, -1)[1], 1).bool()
        keys = parts.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    indices = keys.topk(topk, -1)[1]
    weights = scores.gather(1, indices)
    return weights / weights.sum(-1, keepdim=True) * scaling if renormalise else weights * scaling, indices


def same(made, want):
    torch.testing.assert_close(made[0].double(), want[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(made[1].long(), want[1])


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_gating(face, score, renormalise):
    x, bias, made = normal(TOKENS, EXPERTS), normal(EXPERTS, seed=1), places()
    assert face.topk_gating(*made, x, None, renormalise, 2.5, score) is None
    same(made, chosen(x, score, None, renormalise=renormalise, scaling=2.5))
    face.topk_gating_fwd(*made, x, bias, renormalise, 2.5, score)
    same(made, chosen(x, score, bias, renormalise=renormalise, scaling=2.5))
    face.topk_gating_fwd(*made, x, bias[:0], renormalise, score_func=score)
    same(made, chosen(x, score, None, renormalise=renormalise))


@pytest.mark.parametrize("renormalise", [True, False])
def test_groups_of_experts(face, renormalise):
    x, bias = normal(TOKENS, EXPERTS), normal(EXPERTS, seed=1)
    want = chosen(x, "sigmoid", bias, 4, 2, renormalise=renormalise, scaling=2.5)
    for function in (face.biased_grouped_topk, face.biased_grouped_topk_hip):
        made = places()
        function(x, bias, *made, 4, 2, renormalise, 2.5)
        same(made, want)
    plain = chosen(x, "sigmoid", bias, 4, 2, renormalise=renormalise)
    same(face.biased_grouped_topk_torch(x, bias, TOPK, renormalise, 4, 2), plain)
    *made, scores = face.biased_grouped_topk_torch(x, bias, TOPK, renormalise, 4, 2, True)
    same(made, plain)
    torch.testing.assert_close(scores, x.sigmoid())
    if renormalise:
        made = places()
        assert face.moe_fused_gate(x, bias, *made, 4, 2, TOPK, 0, 2.5)[1] is made[1]
        same(made, want)
    for score in ("softmax", "sigmoid"):
        made, want = places(), chosen(x, score, None, 4, 2, False, renormalise, 1.5)
        face.grouped_topk(x, *made, 4, 2, renormalise, score == "softmax", 1.5)
        same(made, want)
        want = chosen(x, score, None, 4, 2, False, renormalise)
        same(face.grouped_topk_torch(x, TOPK, renormalise, 4, 2, score), want)


@pytest.mark.parametrize("renormalise", [True, False])
def test_softmax_and_sigmoid(face, moe, renormalise):
    x, rows = normal(TOKENS, EXPERTS, dtype=torch.bfloat16), normal(TOKENS, 8)
    want = chosen(x, "softmax", renormalise=renormalise)
    for function in (face.topk_softmax, face.topk_softmax_asm):
        made, source = places(), places()[1]
        function(*made, source, x, renormalise)
        same(made, want)
        assert source.tolist() == [[slot * TOKENS + token for slot in range(TOPK)] for token in range(TOKENS)]
    same(moe.fused_topk(rows, x, TOPK, renormalise), want)
    made = places()
    assert moe.fused_topk(rows, x, TOPK, renormalise, made[1], made[0])[0] is made[0]
    same(made, want)
    if not renormalise:
        face.topk_sigmoid(*made, x)
        same(made, chosen(x, "sigmoid", renormalise=False))
    sums = torch.empty(5, 6, device=DEVICE)
    face.moe_sum(normal(5, 3, 6), sums)
    torch.testing.assert_close(sums, normal(5, 3, 6).sum(1))


@pytest.mark.parametrize("masked", [False, True])
def test_sorting(face, moe, masked):
    ids = chosen(normal(TOKENS, EXPERTS), "sigmoid")[1].int()
    weights, unit = normal(TOKENS, TOPK).abs(), 8
    mask = (torch.arange(EXPERTS, device=DEVICE) % 2).int() if masked else None
    sorted_ids, sorted_weights, experts, count, buffer = moe.moe_sorting(
        ids, weights, EXPERTS, 24, torch.bfloat16, unit, mask
    )
    assert (buffer.shape, buffer.dtype, buffer.float().abs().sum()) == ((TOKENS, 24), torch.bfloat16, 0)
    assert sorted_ids.numel() == ids.numel() + EXPERTS * unit - TOPK
    used, tokens = count.tolist()
    assert tokens == TOKENS
    seen = []
    for block in range(used // unit):
        expert = int(experts[block]) * 2 + 1 if masked else int(experts[block])
        for place in range(block * unit, (block + 1) * unit):
            token, slot = int(sorted_ids[place]) & 0xFFFFFF, int(sorted_ids[place]) >> 24
            if token < TOKENS:
                assert int(ids[token, slot]) == expert
                assert sorted_weights[place] == weights[token, slot]
                seen.append((token, slot))
            else:
                assert (token, slot, float(sorted_weights[place])) == (TOKENS, TOPK, 0)
    wanted = [(t, s) for t in range(TOKENS) for s in range(TOPK) if mask is None or mask[ids[t, s]]]
    assert sorted(seen) == wanted
    again = [torch.empty_like(one) for one in (sorted_ids, sorted_weights, experts, count)]
    face.moe_sorting_fwd(ids, weights, *again, buffer.fill_(1), EXPERTS, unit, mask)
    assert torch.equal(again[0][:used], sorted_ids[:used])
    assert not buffer.any()
    assert moe.moe_sorting(ids, weights, EXPERTS, 24, torch.bfloat16, accumulate=False)[4].numel() == 0


def test_blocks_of_experts(face):
    """moe_align_block_size: places in topk_ids by expert, the expert of each block and how many of it are tokens."""
    ids = chosen(normal(TOKENS, EXPERTS), "sigmoid")[1].int()
    room = ids.numel() + EXPERTS * 7
    places_, experts, counts = (torch.full((room,), -1, dtype=torch.int32, device=DEVICE) for _ in range(3))
    total = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    face.moe_align_block_size(ids, EXPERTS, 8, places_, experts, counts, total)
    flat, seen = ids.view(-1).tolist(), []
    want = sum(-(-flat.count(e) // 8) for e in range(EXPERTS))
    assert total.tolist() == [want * 8]
    left = {e: flat.count(e) for e in range(EXPERTS)}
    for block in range(want):
        expert = int(experts[block])
        assert int(counts[block]) == left[expert]
        left[expert] -= 8
        held = [int(p) for p in places_[block * 8 : (block + 1) * 8] if p >= 0]
        assert all(flat[p] == expert for p in held)
        seen += held
    assert sorted(seen) == list(range(len(flat)))
    assert experts[want:].eq(-1).all()


@pytest.mark.parametrize("stable", [False, True])
def test_largest_of_long_rows(face, stable):
    logits = normal(5, 60)
    logits[1, 20:40] = 9.0  # equal ones: stable takes those further left
    starts, ends = (torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in ([0, 10, 3, 0, 5], [60, 50, 4, 2, 5]))
    indices, found = torch.empty(5, 8, dtype=torch.int32, device=DEVICE), torch.empty(5, 8, device=DEVICE)
    face.top_k_per_row_prefill(logits, starts, ends, indices, found, 5, 60, 1, 8, stable)
    for row, (a, e) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        want = logits[row, a:e].sort(descending=True, stable=True)
        count = min(8, e - a)
        assert torch.equal(found[row, :count], want.values[:count])
        assert indices[row, count:].eq(-1).all()
        assert torch.equal(logits[row, a + indices[row, :count].long()], want.values[:count])
        assert len(set(indices[row, :count].tolist())) == count
        if stable:
            assert torch.equal(indices[row, :count].long(), want.indices[:count])
    lengths = torch.tensor([4, 60], dtype=torch.int32, device=DEVICE)
    face.top_k_per_row_decode(logits, 2, lengths, indices, 4, 60, 1, 8, stable)
    for row, end in enumerate((3, 4, 59, 60)):
        want = logits[row, :end].sort(descending=True, stable=True).values[:8]
        assert torch.equal(logits[row, indices[row, : len(want)].long()], want)
        assert indices[row, len(want) :].eq(-1).all()
    wide = torch.empty(4, 2048, dtype=torch.int32, device=DEVICE)
    face.top_k_per_row_decode_fast(logits, 2, lengths, wide, 4, 60, 1)
    assert wide.ge(0).sum(1).tolist() == [3, 4, 59, 60]
    face.top_k_per_row_prefill_fast(logits, starts[:4], ends[:4], wide, None, 4, 60, 1)
    assert wide.ge(0).sum(1).tolist() == [60, 40, 1, 2]


def summed(x, w1, w2, weights, ids, act, bias1=None, bias2=None):
    """The experts in float64, token by token."""
    x, w1, w2 = x.double(), w1.double(), w2.double()
    inter, out = w2.shape[2], torch.zeros_like(x)
    for token in range(len(x)):
        for slot in range(ids.shape[1]):
            e = int(ids[token, slot])
            h = w1[e] @ x[token] + (0 if bias1 is None else bias1[e].double())
            h = act(h[:inter], h[inter:]) if h.numel() > inter else act(h, 1.0)
            out[token] += weights[token, slot].double() * (w2[e] @ h + (0 if bias2 is None else bias2[e].double()))
    return out


def experts(dtype, gated=True):
    w1 = normal(EXPERTS, (2 if gated else 1) * 24, 32, seed=1, dtype=dtype)
    return normal(TOKENS, 32, dtype=dtype), w1 / 4, normal(EXPERTS, 32, 24, seed=2, dtype=dtype) / 4


ACTS = {
    "Silu": lambda g, u: torch.nn.functional.silu(g) * u,
    "Gelu": lambda g, u: torch.nn.functional.gelu(g) * u,
    "Swiglu": lambda g, u: (u.clamp(-7, 7) + 1) * g.clamp(max=7) * torch.sigmoid(1.702 * g.clamp(max=7)),
}


@pytest.mark.parametrize("act", ACTS)
def test_fused_moe(face, moe, act):
    dtype = torch.bfloat16
    x, w1, w2 = experts(dtype)
    weights, ids = chosen(normal(TOKENS, EXPERTS), "softmax")
    weights, ids = weights.float(), ids.int()
    kind = face.ActivationType[act]
    want = summed(x, w1, w2, weights, ids, ACTS[act])
    made = moe.fused_moe(x, w1, w2, weights, ids, activation=kind)
    assert made.dtype == dtype
    torch.testing.assert_close(made.double(), want, rtol=0.03, atol=0.03)
    assert torch.equal(moe.fused_moe_(x, w1, w2, weights, ids, activation=kind.value), made)
    assert moe.fused_moe(x, w1, w2, weights, ids, activation=kind, dtype=torch.float32).dtype == torch.float32
    bias1, bias2 = normal(EXPERTS, 48, seed=5), normal(EXPERTS, 32, seed=6)
    made = moe.fused_moe(x, w1, w2, weights, ids, activation=kind, bias1=bias1, bias2=bias2)
    torch.testing.assert_close(
        made.double(), summed(x, w1, w2, weights, ids, ACTS[act], bias1, bias2), rtol=0.03, atol=0.05
    )


def test_fused_moe_of_experts_that_are_here(face, moe):
    x, w1, w2 = experts(torch.float32)
    weights, ids = chosen(normal(TOKENS, EXPERTS), "softmax")
    mask = (torch.arange(EXPERTS) % 2).int().to(DEVICE)
    here = mask.bool()
    want = summed(x, w1, w2, weights * mask[ids], ids, ACTS["Silu"])
    made = moe.fused_moe(x, w1[here], w2[here], weights.float(), ids.int(), mask)
    torch.testing.assert_close(made.double(), want, rtol=1e-4, atol=1e-4)
    assert torch.equal(moe.get_topk_valid_mask(ids, mask), mask[ids])
    assert moe.get_topk_valid_mask(ids).all()
    few = torch.tensor([4], dtype=torch.int32, device=DEVICE)
    made = moe.fused_moe(x, w1, w2, weights.float(), ids.int(), num_local_tokens=few)
    assert made[:4].any(1).all()
    assert not made[4:].any()


@pytest.mark.parametrize("gated", [True, False])
def test_torch_moe(face, moe, gated):
    x, w1, w2 = experts(torch.float32, gated)
    weights, ids = chosen(normal(TOKENS, EXPERTS), "softmax")
    want = summed(x, w1, w2, weights, ids, ACTS["Gelu"])
    made = moe.torch_moe(x, w1, w2, weights, ids, activation=face.ActivationType.Gelu)
    torch.testing.assert_close(made.double(), want, rtol=1e-4, atol=1e-4)
    scale1, scale2 = normal(EXPERTS, w1.shape[1], 1, seed=8), normal(EXPERTS, 32, 1, seed=9)
    smooth1, smooth2 = normal(EXPERTS, 1, 32, seed=10), normal(EXPERTS, 1, 24, seed=11)
    want = summed(x, w1 * scale1 * smooth1, w2 * scale2 * smooth2, weights, ids, ACTS["Silu"])
    made = moe.torch_moe(x, w1, w2, weights, ids, scale1, scale2, smooth1, smooth2)
    torch.testing.assert_close(made.double(), want, rtol=1e-3, atol=1e-3)


def test_formulas_and_sizes(moe):
    gate, up = normal(5, 8) * 9, normal(5, 8, seed=1) * 9
    torch.testing.assert_close(moe.swiglu(gate, up).double(), ACTS["Swiglu"](gate.double(), up.double()))
    torch.testing.assert_close(moe.swiglu(gate, up, limit=None), moe.swiglu(gate, up))
    g, u = gate.double(), up.double()
    want = 4 * (g / 4).tanh() * g.sigmoid() * 25 * (u / 25).tanh()
    torch.testing.assert_close(moe.situv2(gate, up).double(), want, rtol=1e-5, atol=1e-5)
    both = torch.cat([gate, up], 1)
    assert torch.equal(moe.torch_moe_act(both, torch.relu, 8), torch.relu(gate) * up)
    assert torch.equal(moe.torch_moe_act(gate, torch.relu, 8), torch.relu(gate))
    assert [moe.nextPow2(n) for n in (0, 1, 2, 3, 1024, 1025)] == [1, 1, 2, 4, 1024, 2048]
    assert [moe.get_padded_M(n) for n in (5, 32767, 32768, 131071, 131072)] == [8, 32768, 32768, 32768, 131072]
    assert moe.get_inter_dim((8, 48, 4), (8, 32, 3)) == (8, 32, 24)


def test_wrong_arguments_are_named(face, moe):
    x, made = normal(TOKENS, EXPERTS), places()
    rows, w1, w2 = experts(torch.float32)
    good = rows, w1, w2, *(one.to(kind) for one, kind in zip(places(), (torch.float32, torch.int32), strict=True))
    good[4].zero_()
    for call, said in (
        (lambda: face.topk_gating(*made, x, score_func="tanh"), "score_func: was 'tanh', must be one of softmax"),
        (lambda: face.topk_gating(*made, x.long()), "gating_output: "),
        (lambda: face.topk_gating(*made, x, normal(3)), "correction_bias: "),
        (lambda: face.biased_grouped_topk(x, normal(EXPERTS), *made, 5, 2, True), "num_expert_group: "),
        (lambda: face.moe_fused_gate(x, x, *made, 4, 2, 3, 0), "topk: was 3, must be 4, the columns of topk_ids"),
        (lambda: face.moe_fused_gate(x, x, *made, 4, 2, 4, 1), "n_share_experts_fusion: was 1, must be absent"),
        (lambda: face.topk_softmax(*made, made[1], x, True, 2), "num_shared_experts: was 2, must be absent"),
        (lambda: face.topk_softmax(made[0][:3], made[1], made[1], x, True), "topk_weights: "),
        (lambda: moe.fused_topk(normal(3, 8), x, 2, True), "gating_output: had 9 rows, must have 3"),
        (lambda: moe.moe_sorting(made[1], made[0], 16, 8, torch.float16, flat=True), "flat: was True, must be absent"),
        (lambda: moe.fused_moe(*good, quant_type=2), "quant_type: was per_Token, must be No: weights are packed"),
        (lambda: moe.fused_moe(*good, w1_scale=w1), "w1_scale: was a tensor, must be absent here"),
        (lambda: moe.fused_moe(*good, activation=3), "activation: was Situv2, must be one of Silu, Gelu, Swiglu"),
        (lambda: moe.fused_moe(*good, doweight_stage1=True), "doweight_stage1: was True, must be absent"),
        (lambda: moe.fused_moe(*good, gate_mode="interleave"), "gate_mode: was 'interleave', must be 'separated'"),
        (lambda: moe.fused_moe(*good, swiglu_limit=3.0), "swiglu_limit: was 3.0, must be absent without"),
        (lambda: moe.fused_moe(good[0], w1[:, :, :3], *good[2:]), "w1: "),
        (lambda: moe.fused_moe_(*good, ep_world_size=2), "ep_world_size: was 2, must be absent"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(said), (str(error.value), said)
