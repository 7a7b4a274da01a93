# SPDX-License-Identifier: MIT
"""tilekiln.torch.sdpa against torch's own function, and `use`, which puts it in its place."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import dtypes, reference
from tilekiln._core.dropout import unbiased

from tests.gpu_run import DEVICE, WIDEST

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ON_GPU = DEVICE != "cpu"
DTYPES = {word: dtypes.TORCH[word] for word in ("fp32", "fp16", "bf16")}
CLOSE = {"fp32": 3e-5, "fp16": 4e-3, "bf16": 3e-2}


@pytest.fixture(autouse=True)
def libraries(load, finds):
    """flash, and for masks pytorch (16 bits) and fp32: what the page about PyTorch says to build."""
    torch.manual_seed(0)
    finds(load("flash"), load("pytorch"), load("fp32"))
    from tilekiln.torch import routing

    routing._refusal.cache_clear()
    yield
    routing._refusal.cache_clear()


@pytest.fixture(scope="module")
def tkt(binding):
    import tilekiln.torch

    return tilekiln.torch


def theirs(*arrays, **options):
    """Torch's own function; on a GPU the form that takes every mask and gives zeros where nothing is seen."""
    from tilekiln.torch import routing

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH) if ON_GPU else contextlib.nullcontext():
        return routing._torchs_own(*arrays, **options)


def randn(*shape: int, dtype=WIDEST, grad: bool = True):
    return (torch.randn(shape) * 0.7).to(DTYPES[dtype]).requires_grad_(grad)


def compare(ours, expected, dtype=WIDEST, terms=1):
    """terms: how many numbers, each rounded, were added up."""
    assert ours.dtype == expected.dtype
    assert ours.shape == expected.shape
    size = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(ours, expected, atol=CLOSE[dtype] * size * terms**0.5, rtol=CLOSE[dtype])


def agree(tkt, arrays, dtype=WIDEST, mask=None, **options):
    """Results and all gradients, of the mask too, are torch's: judged in fp32, where fp16 and bf16 are exact."""
    exact = [x.detach().float().requires_grad_(x.requires_grad) for x in arrays]
    exact_mask = mask
    if mask is not None and mask.dtype != torch.bool:
        exact_mask = mask.detach().float().requires_grad_(mask.requires_grad)
    ours = tkt.sdpa(*arrays, attn_mask=mask, **options)
    expected = theirs(*exact, attn_mask=exact_mask, **options)
    compare(ours, expected.to(ours.dtype), dtype)
    inputs = [*arrays, *([mask] if mask is not None and mask.requires_grad else [])]
    exact_inputs = [*exact, *([exact_mask] if mask is not None and mask.requires_grad else [])]
    dout = torch.randn(ours.shape).to(ours.dtype)
    made, exact_made = (
        torch.autograd.grad(ours, inputs, dout),
        torch.autograd.grad(expected, exact_inputs, dout.float()),
    )
    for mine, its in zip(made, exact_made, strict=True):
        scores = ours.numel() // max(1, ours.shape[-1]) * arrays[1].shape[-2]
        compare(mine, its.to(mine.dtype), dtype, max(1, scores // max(1, mine.numel())) if len(made) == 4 else 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(20, 20), (9, 33), (33, 9)])
def test_no_mask(tkt, dtype, is_causal, seqlen_q, seqlen_k):
    """Top-left alignment shows when the lengths differ."""
    arrays = randn(2, 3, seqlen_q, 32, dtype=dtype), *(randn(2, 3, seqlen_k, 32, dtype=dtype) for _ in "kv")
    agree(tkt, arrays, dtype, is_causal=is_causal, scale=0.3)
    with torch.no_grad():
        compare(tkt.sdpa(*arrays, is_causal=is_causal), theirs(*arrays, is_causal=is_causal), dtype)


SHAPES = {
    "2d": [(20, 16), (30, 16), (30, 24)],
    "3d": [(3, 20, 16), (3, 30, 16), (3, 30, 16)],
    "5d": [(2, 3, 2, 20, 16), (2, 3, 2, 30, 16), (2, 3, 2, 30, 16)],
    "batch broadcasts": [(2, 2, 20, 16), (1, 2, 30, 16), (2, 30, 16)],
    "leading broadcast": [(2, 1, 2, 20, 16), (3, 2, 30, 16), (2, 3, 2, 30, 16)],
    "one head of k": [(2, 4, 20, 16), (2, 1, 30, 16), (2, 1, 30, 16)],
    "one head of v": [(2, 4, 20, 16), (2, 4, 30, 16), (2, 1, 30, 16)],
    "one head of q": [(2, 1, 20, 16), (2, 4, 30, 16), (2, 4, 30, 16)],
    "hdim 40, v 24": [(1, 2, 20, 40), (1, 2, 30, 40), (1, 2, 30, 24)],
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(tkt, shapes):
    agree(tkt, [randn(*shape) for shape in shapes])
    with torch.no_grad():
        arrays = [randn(*shape) for shape in shapes]
        compare(tkt.sdpa(*arrays), theirs(*arrays))


@pytest.mark.parametrize(("of_k", "of_v"), [(2, 2), (1, 1), (2, 1), (4, 2)])
def test_enable_gqa(tkt, of_k, of_v):
    arrays = randn(2, 4, 20, 16), randn(2, of_k, 30, 16), randn(2, of_v, 30, 16)
    agree(tkt, arrays, enable_gqa=True)
    agree(tkt, [x[0] for x in arrays], enable_gqa=True)


MASKS = [
    (20, 30),
    (1, 30),
    (20, 1),
    (1, 1),
    (3, 20, 30),
    (3, 1, 30),
    (1, 3, 20, 30),
    (2, 1, 20, 30),
    (2, 1, 1, 30),
    (2, 3, 20, 30),
]


@pytest.mark.parametrize("kind", ["bool", "fp32", "bf16"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(tkt, kind, shape):
    dtype = WIDEST if kind == "bool" else kind
    arrays = [randn(2, 3, n, 32, dtype=dtype) for n in (20, 30, 30)]
    mask = torch.rand(shape) > 0.3 if kind == "bool" else randn(*shape, dtype=dtype)
    agree(tkt, arrays, dtype, mask=mask)


@pytest.mark.parametrize("additive", [False, True])
def test_rows_that_see_nothing_are_zero(tkt, additive):
    """As in the torch installed; older ones gave NaN."""
    arrays = [randn(2, 3, n, 32) for n in (20, 30, 30)]
    mask = torch.rand(20, 30) > 0.3
    mask[3] = mask[17] = False
    if additive:
        mask = torch.zeros(20, 30).masked_fill(~mask, -torch.inf).requires_grad_()
    agree(tkt, arrays, mask=mask)
    assert not tkt.sdpa(*arrays, attn_mask=mask)[:, :, [3, 17]].any()


def test_mask_with_is_causal(tkt):
    """Both hold."""
    arrays = [randn(2, 3, 20, 32, grad=False) for _ in "qkv"]
    mask = torch.rand(2, 1, 20, 20) > 0.3
    both = mask & torch.ones(20, 20, dtype=torch.bool).tril()
    compare(tkt.sdpa(*arrays, attn_mask=mask, is_causal=True), theirs(*arrays, attn_mask=both))


@pytest.mark.parametrize("tokens_first", [True, False])
def test_a_mask_that_is_a_bias_gives_the_bits_of_one_that_is_expanded(tkt, tokens_first):
    leaves = [randn(2, 20, 3, 32) if tokens_first else randn(2, 3, 20, 32) for _ in "qkv"]
    arrays = [one.transpose(1, 2) if tokens_first else one for one in leaves]
    mask = randn(3, 20, 20, grad=False)
    made = [tkt.sdpa(*arrays, attn_mask=one, is_causal=True, scale=0.3) for one in (mask[None], mask)]
    assert torch.equal(*made)
    assert made[0].stride() == made[1].stride() == arrays[0].stride()
    dout = randn(2, 3, 20, 32, grad=False)
    for one, other in zip(*(torch.autograd.grad(out, leaves, dout) for out in made), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        assert torch.equal(tkt.sdpa(*arrays, attn_mask=mask[None], is_causal=True, scale=0.3), made[0])


def test_an_fp32_mask_under_16_bits(tkt):
    arrays = [randn(2, 3, 20, 32, dtype="bf16", grad=False) for _ in "qkv"]
    mask = torch.randn(20, 20)
    compare(tkt.sdpa(*arrays, attn_mask=mask), theirs(*arrays, attn_mask=mask), "bf16")


class Named(torch.Tensor):
    """A subclass, whose results are of its class."""


def test_subclasses_and_views_that_negate(tkt):
    x = torch.randn(1, 2, 9, 16)
    ours = tkt.sdpa(*[x.as_subclass(Named)] * 3)
    assert type(ours) is Named
    compare(ours.as_subclass(torch.Tensor), theirs(x, x, x))
    negated = torch.randn(1, 2, 9, 16, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    compare(tkt.sdpa(negated, negated, negated), theirs(negated, negated, negated))


@pytest.mark.parametrize("call", ["sdpa", "facade", "operator", "mask"])
def test_tangents_are_refused(tkt, call):
    """Kernels read values: of a tensor that forward-mode autograd follows they would lose the tangent."""
    q = torch.randn(1, 2, 9, 32)
    mask = torch.zeros(9, 9)
    calls = {
        "sdpa": lambda x: tkt.sdpa(q, x, q),
        "mask": lambda x: tkt.sdpa(q, q, q, attn_mask=mask + x[0, 0, 0, 0]),
        "facade": lambda x: tk.attention(q, q, x, layout="bhsd"),
        "operator": lambda x: torch.ops.tilekiln.fmha_fwd(x, q, q, layout="bhsd")[0],
    }
    with torch.autograd.forward_ad.dual_level():
        calls[call](q)  # nothing is followed
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            calls[call](torch.autograd.forward_ad.make_dual(q, torch.ones_like(q)))


def test_five_dimensions_with_masks(tkt):
    arrays = [randn(2, 3, 2, n, 16) for n in (20, 30, 30)]
    for shape in ((20, 30), (2, 20, 30), (3, 1, 20, 30), (2, 3, 2, 20, 30), (2, 1, 1, 1, 30)):
        agree(tkt, arrays, mask=torch.rand(shape) > 0.3)


def test_dropout(tkt):
    q, k, v = (randn(1, 2, 64, 32) for _ in "qkv")
    torch.manual_seed(1)
    first = tkt.sdpa(q, k, v, dropout_p=0.25)
    torch.manual_seed(1)
    again = tkt.sdpa(q, k, v, dropout_p=0.25)
    assert torch.equal(first, again)
    assert not torch.equal(first, tkt.sdpa(q, k, v, dropout_p=0.25))
    ones = torch.ones(1, 2, 400, 32)
    assert tkt.sdpa(ones, ones, ones, dropout_p=0.25).mean().item() == pytest.approx(1, abs=0.02)
    nothing = tkt.sdpa(q, k, v, dropout_p=1.0)
    assert not nothing.any()
    assert not torch.autograd.grad(nothing.sum(), q)[0].any()


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.6, 0.9, 0.99, 0.995, 0.999])
def test_dropout_keeps_the_mean(tkt, p):
    """Of values that are 1, out of a row is binomial: 400 keys, each kept with probability n / 256."""
    torch.manual_seed(3)
    ones = torch.ones(1, 4, 400, 32, requires_grad=True)
    out = tkt.sdpa(ones, ones, ones, dropout_p=p)
    n = reference.keep_threshold(p) + 1
    deviation = ((256 / n - 1) / 400 / (4 * 400)) ** 0.5
    assert out.mean().item() == pytest.approx(1, abs=5 * deviation + 1e-6)
    dv = torch.autograd.grad(out.sum(), ones)[0]
    assert dv.mean().item() == pytest.approx(1, abs=5 * deviation + 1e-6)


def test_the_dropout_without_bias_keeps_the_same_bytes():
    for p in [*np.random.default_rng(0).random(2000).tolist(), 0.0, 1e-9, 0.2, 0.6, 1 - 1e-7]:
        kept = reference.keep_threshold(p) + 1
        exact = unbiased(p)
        assert exact == 1 - kept / 256
        assert reference.keep_threshold(exact) + 1 == kept


def test_empty(tkt):
    for sizes in ((2, 0, 5), (0, 4, 5), (2, 4, 0)):
        batch, seqlen_q, seqlen_k = sizes
        arrays = randn(batch, 3, seqlen_q, 32), *(randn(batch, 3, seqlen_k, 32) for _ in "kv")
        agree(tkt, arrays)


def test_results_lie_as_those_of_torch(tkt):
    """Heads inside tokens in, the same out, so that models' transposes stay views."""
    from tilekiln.torch import routing

    theirs = routing._torchs_own
    arrays = [randn(2, 20, 3, 32, grad=False).transpose(1, 2) for _ in "qkv"]
    assert tkt.sdpa(*arrays).stride() == theirs(*arrays).stride()
    leaves = [x.requires_grad_() for x in arrays]
    out = tkt.sdpa(*leaves)
    assert out.stride() == theirs(*leaves).stride()
    assert torch.autograd.grad(out.sum(), leaves[0])[0].transpose(1, 2).is_contiguous()
    odd = [x.detach().transpose(2, 3).contiguous().transpose(2, 3) for x in arrays]
    compare(tkt.sdpa(*odd), theirs(*odd))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(tkt, backend):
    arrays = [randn(2, 3, n, 32) for n in (20, 30, 30)]
    mask = torch.rand(20, 30) > 0.3
    compiled = torch.compile(lambda *x: tkt.sdpa(*x, attn_mask=mask) + 0, fullgraph=True, backend=backend)
    ours, plain = compiled(*arrays), tkt.sdpa(*arrays, attn_mask=mask)
    compare(ours, plain)
    for mine, its in zip(*(torch.autograd.grad(x.square().sum(), arrays) for x in (ours, plain)), strict=True):
        compare(mine, its)


def test_vmap_as_torch(tkt):
    arrays = [randn(4, 2, 3, n, 32, grad=False) for n in (20, 30, 30)]
    mask = torch.randn(4, 20, 30)
    compare(vmapped(tkt.sdpa, arrays, mask), vmapped(theirs, arrays, mask))


def vmapped(function, arrays, mask):
    return torch.vmap(lambda q, k, v, m: function(q, k, v, attn_mask=m))(*arrays, mask)


SAME = lambda q, k, v: (q, k, v)  # noqa: E731
WRONG = {
    "dtype": (lambda q, k, v: (q, k.bfloat16(), v), {}, RuntimeError, "same dtype"),
    "dimensions": (lambda q, k, v: (q[0, 0, 0], k, v), {}, RuntimeError, "at least 2 dimensional"),
    "no tensor": (lambda q, k, v: (q, k, "x"), {}, TypeError, "argument 'value'"),
    "device": (lambda q, k, v: (q, k.to("meta"), v), {}, RuntimeError, "same device type"),
    "heads": (lambda q, k, v: (q, k[:, :2], v[:, :2]), {}, RuntimeError, "heads"),
    "grouped heads": (lambda q, k, v: (q, k[:, :3], v), {"enable_gqa": True}, RuntimeError, "Number of heads"),
    "head dim": (lambda q, k, v: (q, k[..., :8], v), {}, RuntimeError, "last dimension"),
    "keys": (lambda q, k, v: (q, k, v[:, :, :5]), {}, RuntimeError, "sequence length"),
    "mask dtype": (SAME, {"attn_mask": torch.ones(20, 30).int()}, RuntimeError, "attn_mask.dtype"),
    "mask shape": (SAME, {"attn_mask": torch.ones(20, 29)}, RuntimeError, "attn_mask that fits"),
    "mask dims": (lambda *x: [y[0] for y in x], {"attn_mask": torch.ones(2, 1, 20, 30)}, RuntimeError, "broadcasts to"),
    "dropout": (SAME, {"dropout_p": 1.5}, RuntimeError, "between 0 and 1, but got 1.5"),
    "no dropout": (SAME, {"dropout_p": None}, TypeError, "argument 'dropout_p' must be float, not NoneType"),
    "no flag": (SAME, {"enable_gqa": "yes"}, TypeError, "argument 'enable_gqa' must be bool, not str"),
    "batch": (lambda q, k, v: (torch.cat([q, q]), torch.cat([k, k, k]), v), {}, RuntimeError, "batch dimensions"),
    "fp64": (lambda q, k, v: (q.double(), k.double(), v.double()), {}, "NoKernelError", "must be torch.float32"),
    "head dim 600": (lambda q, k, v: [torch.zeros(1, 1, 4, 600)] * 3, {}, "NoKernelError", "must be from 1 to 512"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "options", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_errors(tkt, change, options, error, text):
    arrays = change(*(randn(1, 4, n, 32, grad=False) for n in (20, 30, 30)))
    with pytest.raises(getattr(tk, error) if isinstance(error, str) else error, match=text):
        tkt.sdpa(*arrays, **options)
    if error is TypeError:  # torch's own, also of a kind of call that was served before
        with tkt.use():
            good = [randn(1, 4, n, 32, grad=False) for n in (20, 30, 30)]
            for _ in range(2):
                torch.nn.functional.scaled_dot_product_attention(*good)
            with pytest.raises(TypeError, match=text.partition(" must")[0]):
                torch.nn.functional.scaled_dot_product_attention(*arrays, **options)


class Counter:
    """Calls from `use` that sdpa answers, or kernels without Python."""

    def __init__(self, monkeypatch):
        from tilekiln.torch import routing

        self.calls = 0
        for name in ("sdpa", "served"):
            monkeypatch.setattr(routing, name, functools.partial(self._counted, getattr(routing, name)))

    def _counted(self, real, *arrays, **options):
        made = real(*arrays, **options)
        self.calls += made is not None
        return made


@pytest.fixture
def count(tkt, monkeypatch):
    return Counter(monkeypatch)


def call(dtype=DTYPES[WIDEST], **options):
    x = torch.ones(1, 2, 5, 32, dtype=dtype)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, **options)


def test_use_routes_nests_and_leaves_in_order(tkt, count):
    own = torch.nn.functional.scaled_dot_product_attention
    with tkt.use():
        call()
        with tkt.use():
            call(is_causal=True)
        call()
        assert count.calls == 3
    assert torch.nn.functional.scaled_dot_product_attention is own
    with pytest.raises(ZeroDivisionError), tkt.use(), tkt.use():
        raise ZeroDivisionError
    assert torch.nn.functional.scaled_dot_product_attention is own
    call()
    assert count.calls == 3

    @tkt.use()
    def decorated():
        return call()

    decorated()
    decorated()
    assert count.calls == 5
    assert torch.nn.functional.scaled_dot_product_attention is own
    assert torch.backends.mha.get_fastpath_enabled()


def test_use_is_of_its_thread(tkt, count):
    """A thread outside keeps torch's own; it leaves while the other is inside, and the other stays routed."""
    inside, outside_done, other_entered, other_leaves = (threading.Event() for _ in range(4))
    seen = []

    def other():
        inside.wait(20)
        before = count.calls
        call()
        seen.append(count.calls - before)
        with tkt.use():
            call()
            seen.append(count.calls - before)
            other_entered.set()
            other_leaves.wait(20)
        outside_done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with tkt.use():
        inside.set()
        assert other_entered.wait(20)
        other_leaves.set()
        assert outside_done.wait(20)
        before = count.calls
        call()
        assert count.calls == before + 1
    thread.join()
    assert seen == [0, 1]


def test_use_falls_back_and_says_why_once(tkt, count, monkeypatch, capfd):
    from tilekiln.torch import inside

    monkeypatch.setattr(inside, "_said", set())
    x = torch.ones(1, 2, 5, 600)
    with tkt.use():
        call(torch.float64)
        assert not capfd.readouterr().err
        monkeypatch.setenv("TILEKILN_VERBOSE", "dispatch")
        call(torch.float64)
        call(torch.float64)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        with torch.autograd.forward_ad.dual_level():
            call()
        torch.nn.functional.scaled_dot_product_attention(*[x.to("meta")] * 3)
    assert count.calls == 0
    said = capfd.readouterr().err
    assert said.count("dtype was torch.float64") == 1
    assert "must be from 1 to 512" in said
    assert "forward-mode" in said
    assert "was on meta" in said


@pytest.mark.parametrize("mode", ["train", "eval", "padded"])
def test_use_reaches_multihead_attention(tkt, count, mode):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True).train(mode == "train")
    layer, x = layer.to(DTYPES[WIDEST]), torch.randn(2, 11, 32, dtype=DTYPES[WIDEST])
    padding = torch.zeros(2, 11, dtype=torch.bool)
    if mode == "padded":
        padding[1, 7:] = True
    context = torch.enable_grad() if mode == "train" else torch.no_grad()
    with context:
        expected = layer(x, src_key_padding_mask=padding if mode == "padded" else None)
        with tkt.use():
            ours = layer(x, src_key_padding_mask=padding if mode == "padded" else None)
            assert count.calls == 1
    torch.testing.assert_close(ours[~padding], expected[~padding], atol=CLOSE[WIDEST], rtol=CLOSE[WIDEST])


def test_importing_does_not_bring_the_compiler(tkt):
    """torch._dynamo and sympy take 1.3 s, which most programs never need."""
    code = "import sys, tilekiln.torch, tilekiln.compat.flash_attn\n"
    code += "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_use_under_compile(tkt):
    """A function compiled inside is routed, and torch compiles anew outside."""
    x = randn(1, 2, 9, 32)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    graphs = []

    def spy(graph, _):
        graphs.append(graph.code)
        return graph

    g = torch.compile(lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x), backend=spy, fullgraph=True)
    with tkt.use():
        out = f(x)
        g(x)
        [dx] = torch.autograd.grad(out.square().sum(), x)
    assert "tilekiln.fmha_fwd" in graphs[0]
    g(x)
    assert "tilekiln" not in graphs[1]
    expected = theirs(x, x, x, is_causal=True)
    compare(out, expected)
    compare(dx, torch.autograd.grad(expected.square().sum(), x)[0])
