# SPDX-License-Identifier: MIT
"""Upstream's autograd classes of flash_attn: `apply` against the functions; and what a plain call goes past."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def libraries(binding, load, monkeypatch):
    found = [load("flash"), load("norm_default", targets="all")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})


def normal(*shape: int) -> torch.Tensor:
    return upstream.normal(*shape, dtype=torch.float32, seed=len(shape), grad=True)


STARTS = torch.tensor([0, 3, 7], dtype=torch.int32)
PACKED = {
    "FlashAttnQKVPackedFunc": ([(2, 7, 3, 2, 16)], ()),
    "FlashAttnKVPackedFunc": ([(2, 5, 4, 16), (2, 7, 2, 2, 16)], ()),
    "FlashAttnVarlenQKVPackedFunc": ([(7, 3, 2, 16)], (STARTS, 4)),
    "FlashAttnVarlenKVPackedFunc": ([(7, 4, 16), (7, 2, 2, 16)], (STARTS, STARTS, 4, 4)),
    "FlashAttnVarlenFunc": ([(7, 4, 16), (7, 2, 16), (7, 2, 16)], (STARTS, STARTS, 4, 4)),
}


@pytest.mark.parametrize("name", PACKED)
def test_attention(name):
    from tilekiln.compat.flash_attn import flash_attn_interface as interface

    shapes, lengths = PACKED[name]
    tensors = [normal(*shape) for shape in shapes]
    words = name.removeprefix("FlashAttn").removesuffix("Func").lower().replace("varlen", "varlen_")
    function = getattr(interface, f"flash_attn_{words}{'_' if words and words[-1] != '_' else ''}func")
    options = 0.0, 0.3, True, (4, 0), 0.0, None, True
    right, right_lse, _ = function(*tensors, *lengths, *options, True)
    pages = (None,) if name == "FlashAttnVarlenFunc" else ()
    out, lse, _ = getattr(interface, name).apply(*tensors, *lengths, *options, True, *pages, True)
    assert torch.equal(out, right)
    assert torch.equal(lse, right_lse)
    for ours, theirs in zip(*(torch.autograd.grad(one.sum(), tensors) for one in (out, right)), strict=True):
        assert torch.equal(ours, theirs)
    assert not getattr(interface, name).apply(*tensors, *lengths, *options, False, *pages, False).requires_grad
    with pytest.raises(TypeError, match=r"^apply takes \d+ arguments, q.*, is_grad_enabled, had 1$"):
        getattr(interface, name).apply(tensors[0])


def test_multiples():
    from tilekiln.compat.flash_attn.flash_attn_interface import round_multiple

    assert [round_multiple(one, 8) for one in (0, 1, 8, 9)] == [0, 8, 8, 16]


def agree(apply: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    """The same results and gradients of fresh copies of the tensors that require grad."""
    made = []
    for one in (apply, function):
        given = [x.detach().clone().requires_grad_() if getattr(x, "requires_grad", False) else x for x in arguments]
        results = one(*given)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [x for x in given if getattr(x, "requires_grad", False)]
        loss = sum((i + 1) * x.square().sum() for i, x in enumerate(results))
        made.append([*results, *torch.autograd.grad(loss, wanted)])
    for ours, right in zip(*made, strict=True):
        assert torch.equal(ours, right)


def test_padding():
    from tilekiln.compat.flash_attn import bert_padding as face

    x, rows = normal(5, 3), torch.tensor([3, 1])
    agree(face.IndexFirstAxis.apply, face.index_first_axis, (x, rows))
    agree(face.IndexFirstAxisResidual.apply, face.index_first_axis_residual, (x, rows))
    agree(face.IndexPutFirstAxis.apply, face.index_put_first_axis, (normal(2, 3), rows, 5))


def test_rotary():
    from tilekiln.compat.flash_attn.layers import rotary as face

    cos, sin = normal(9, 8).detach().cos(), normal(9, 8).detach().sin()
    x = normal(2, 7, 3, 16)
    agree(face.ApplyRotaryEmb.apply, face.apply_rotary_emb, (x, cos, sin, True, False, 2, None, None))
    qkv = lambda x, *more: face.apply_rotary_emb_qkv_(x * 1.0, *more)  # noqa: E731
    agree(
        lambda x, *more: face.ApplyRotaryEmbQKV_.apply(x * 1.0, *more),
        qkv,
        (normal(2, 7, 3, 2, 16), cos, sin, None, None, False, 1, None),
    )
    agree(
        lambda x, *more: face.ApplyRotaryEmbKV_.apply(x * 1.0, *more),
        lambda x, *more: face.apply_rotary_emb_kv_(x * 1.0, *more),
        (normal(2, 7, 2, 2, 16), cos, sin, False, 1),
    )


def plain(*shape: int) -> torch.Tensor:
    return upstream.normal(*shape, dtype=torch.float32, seed=len(shape))


BATCH = [(2, 7, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)]
ROWS = [(7, 4, 16), (7, 2, 16), (7, 2, 16)]
CACHE = [(2, 1, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)]
NEW = [(2, 1, 2, 16)] * 2
LENGTHS = {"cache_seqlens": torch.tensor([4, 8], dtype=torch.int32), "causal": True}
PAGES = [(2, 1, 4, 16), (5, 16, 2, 16), (5, 16, 2, 16)]
TABLE = torch.tensor([[3, 1], [0, 4]], dtype=torch.int32)
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.0])
TWO, THREE, FOUR, MHA = "flash_attn", "flash_attn_3.flash_attn_interface", "flash_attn.cute.interface", "aiter.ops.mha"
STRAIGHT = [
    (TWO, "flash_attn_func", BATCH, {"causal": True, "window_size": (3, 5), "softcap": 20.0}),
    (TWO, "flash_attn_func", BATCH, {"alibi_slopes": SLOPES, "return_attn_probs": True, "window_size": (2, 40)}),
    (TWO, "flash_attn_kvpacked_func", [BATCH[0], (2, 9, 2, 2, 16)], {"softmax_scale": 0.3}),
    (TWO, "flash_attn_qkvpacked_func", [(2, 7, 3, 2, 16)], {"causal": True}),
    (TWO, "flash_attn_varlen_func", ROWS, {"max_seqlen_q": 4, "max_seqlen_k": 4, "window_size": (2, 1)}),
    (TWO, "flash_attn_varlen_kvpacked_func", [ROWS[0], (7, 2, 2, 16)], {"max_seqlen_q": 4, "max_seqlen_k": 4}),
    (TWO, "flash_attn_varlen_qkvpacked_func", [(7, 3, 2, 16)], {"max_seqlen": 4, "causal": True}),
    (TWO, "flash_attn_with_kvcache", CACHE, {**LENGTHS, "window_size": (3, 0), "return_softmax_lse": True}),
    (TWO, "flash_attn_with_kvcache", CACHE, {"cache_seqlens": 5, "num_splits": 2}),
    (TWO, "flash_attn_with_kvcache", CACHE + NEW, LENGTHS),
    (TWO, "flash_attn_with_kvcache", PAGES, {**LENGTHS, "block_table": TABLE, "alibi_slopes": SLOPES}),
    (THREE, "flash_attn_func", BATCH, {"window_size": (2, -1), "return_attn_probs": True}),
    (THREE, "flash_attn_qkvpacked_func", [(2, 7, 3, 2, 16)], {"softcap": 9.0}),
    (THREE, "flash_attn_varlen_func", ROWS, {"max_seqlen_q": 4, "max_seqlen_k": 4, "causal": True}),
    (THREE, "flash_attn_with_kvcache", CACHE + NEW, {**LENGTHS, "return_softmax_lse": True}),
    (THREE, "flash_attn_with_kvcache", PAGES, {**LENGTHS, "page_table": TABLE}),
    (FOUR, "flash_attn_func", BATCH, {"softcap": 20.0, "return_lse": True}),
    (FOUR, "flash_attn_varlen_func", ROWS, {"causal": True, "return_lse": True}),
    (MHA, "flash_attn_func", BATCH, {"alibi_slopes": SLOPES, "return_lse": True}),
    (MHA, "flash_attn_varlen_func", ROWS, {"max_seqlen_q": 4, "max_seqlen_k": 4, "logits_soft_cap": 9.0}),
]


@pytest.mark.parametrize("case", STRAIGHT, ids=lambda case: f"{case[0]} {case[1]} {' '.join(case[3])}")
def test_a_call_that_nothing_watches_goes_straight_to_the_facade(case, monkeypatch):
    """Past what looks at watchers in `calls`, and with the same bits as the longer way."""
    module, name, shapes, options = case
    call = getattr(importlib.import_module(f"tilekiln.compat.{module}"), name)
    if "varlen" in name:
        keys = ("cu_seqlens",) if "qkvpacked" in name else ("cu_seqlens_q", "cu_seqlens_k")
        options = {**options, **dict.fromkeys(keys, STARTS)}
    tensors = [plain(*shape) for shape in shapes]
    with monkeypatch.context() as longer:
        longer.setattr("tilekiln.compat.flash_attn._arguments.idle", lambda: False)
        right = call(*tensors, **options)
    if module in (TWO, MHA) and "kvcache" not in name:
        with pytest.raises(RuntimeError, match=r"^dropout_p: was '', must be a number"):
            call(*tensors, **options, dropout_p="")
    monkeypatch.setattr("tilekiln.torch.calls.untouched", None)
    made = call(*tensors, **options)
    pairs = zip(made, right, strict=True) if isinstance(made, tuple) else [(made, right)]
    for ours, theirs in pairs:
        assert ours is theirs is None or torch.equal(ours, theirs)
