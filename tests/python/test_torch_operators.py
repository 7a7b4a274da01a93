# SPDX-License-Identifier: MIT
"""The custom operators: opcheck on each, and what traces or transforms the calls."""

from __future__ import annotations

import itertools

import pytest
import tilekiln as tk
from tilekiln import dtypes

from tests.gpu_run import DEVICE, WIDEST

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

HEADS, HDIM = 2, 32
WIDE = dtypes.TORCH[WIDEST]


@pytest.fixture(autouse=True)
def libraries(load, finds):
    finds(load("flash"), load("ck_default"))


@pytest.fixture(scope="module")
def calls(binding):
    from tilekiln.torch import calls

    return calls


def randn(*shape: int, dtype=WIDE, grad: bool = False):
    return (torch.randn(shape) * 0.5).to(dtype).requires_grad_(grad)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def forward_cases():
    q, k, v = randn(2, 9, 4, HDIM, grad=True), randn(2, 12, 2, HDIM, grad=True), randn(2, 12, 2, HDIM, grad=True)
    yield (q, k, v), {"causal": True, "window_left": 5, "window_right": 0, "softmax_scale": 0.2}
    half = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    yield (
        tuple(half),
        {"bias": randn(1, 4, 9, 12, dtype=torch.bfloat16, grad=True), "sink": randn(4, dtype=torch.float32, grad=True)},
    )
    state = torch.tensor([3, 5])
    drawn = {"return_randval": True} if DEVICE == "cpu" else {}  # a GPU stores none
    yield (q, k, v), {"dropout_p": 0.25, "rng_state": state, "deterministic": True, **drawn}
    packed = randn(12, 4, HDIM, grad=True), randn(12, 2, HDIM), randn(12, 2, HDIM, grad=True)
    yield packed, {"cu_seqlens_q": ints(0, 5, 12), "cu_seqlens_k": ints(0, 7, 12), "layout": "bshd"}
    plain = [x.detach() for x in (q, k, v)]
    yield tuple(x.transpose(1, 2).contiguous() for x in plain), {"layout": "bhsd", "return_lse": False}
    yield tuple(plain), {"alibi_slopes": torch.rand(4)}


def cases(name: str):
    """(arguments by place, arguments by name) of calls of an operator."""
    q, pool = randn(2, 1, HEADS, HDIM), [randn(6, 16, HEADS, HDIM) for _ in "kv"]
    table, lengths = ints(0, 1, 2, 3).view(2, 2), ints(20, 31)
    if name == "fmha_fwd":
        yield from forward_cases()
    elif name == "fmha_bwd":
        for (q, k, v), named in forward_cases():
            q, k, v = (x.detach() for x in (q, k, v))
            named = {key: x.detach() if isinstance(x, torch.Tensor) else x for key, x in named.items()}
            out, lse, _ = torch.ops.tilekiln.fmha_fwd(q, k, v, **{**named, "return_lse": True})
            kept = {key: x for key, x in named.items() if key not in ("return_lse", "return_randval")}
            wants = {"dbias": "bias" in kept, "d_sink": "sink" in kept, "deterministic": True}
            yield (torch.randn_like(out), q, k, v, out, lse), {**kept, **wants}
    elif name == "fmha_fwd_splitkv":
        yield (q, *pool), {"block_table": table, "seqlen_k": lengths, "causal": True, "return_lse": True}
        yield (q, *(x[:2] for x in pool)), {"num_splits": 2}
    elif name == "fmha_fwd_pagedkv":
        yield (q, *pool), {"block_table": table, "seqlen_k": lengths}
    elif name == "fmha_fwd_appendkv":
        new = [randn(2, 3, HEADS, HDIM) for _ in "kv"]
        where = {"block_table": table, "seqlen_k": ints(10, 20)}
        yield (q, *pool, *new), {**where, "return_lse": True}
        angles = torch.rand(40, 16)
        yield (q, *pool, *new), {**where, "rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "causal": True}
        yield (None, *pool, *new), where
    else:
        half = [x.half() for x in pool]
        named = {"cu_seqlens_q": ints(0, 3, 5), "block_table": table, "seqlen_k": lengths, "return_lse": True}
        yield (randn(5, HEADS, HDIM, dtype=torch.float16), *half), {**named, "causal": True}


OPERATORS = (
    "fmha_fwd", "fmha_bwd", "fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_fwd_appendkv", "fmha_batch_prefill",
)  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(calls, name):
    operator = getattr(torch.ops.tilekiln, name)
    for arrays, named in cases(name):
        torch.library.opcheck(operator, arrays, named)


@pytest.mark.parametrize("name", ["fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_batch_prefill"])
def test_opcheck_of_the_twin_that_writes_out(calls, name):
    for arrays, named in itertools.islice(cases(name), 1):
        arrays = tuple(x.detach() for x in arrays)
        expected = getattr(torch.ops.tilekiln, name)(*arrays, **named)
        first = expected[0] if isinstance(expected, tuple) else expected
        out, twin = torch.empty_like(first), getattr(torch.ops.tilekiln, name + "_out")
        before = out._version
        twin(out, *arrays, **named)
        assert torch.equal(out, first)
        assert out._version > before
        torch.library.opcheck(twin, (out, *arrays), named)


def attend(calls, q, k, v):
    return calls.forward(q, k, v, causal=True, window=(7, 0), softcap=5.0)[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_gradients(calls, dynamic):
    compiled = torch.compile(lambda *x: attend(calls, *x), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for batch, seqlen in ((2, 20), (3, 33)):
        inputs = [randn(batch, seqlen, HEADS, HDIM, grad=True) for _ in "qkv"]
        expected, out = attend(calls, *inputs), compiled(*inputs)
        assert torch.equal(out, expected)
        theirs, ours = (torch.autograd.grad(x.square().sum(), inputs) for x in (expected, out))
        for mine, its in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, its)


def test_inductor_and_dropout(calls):
    """Inputs that are views of one projection; the same bits for the same seed."""
    compiled = torch.compile(
        lambda x: calls.forward(*(x * 2).view(2, 20, 3, HEADS, HDIM).unbind(2), dropout_p=0.3)[0] + 1,
        fullgraph=True,
    )
    x = randn(2, 20, 3 * HEADS * HDIM, grad=True)
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        results.append(compiled(x))
    assert torch.equal(*results)
    assert torch.isfinite(torch.autograd.grad(results[0].sum(), x)[0]).all()
    assert not torch.equal(compiled(x), results[0])


def test_compile_writes_out_and_caches(calls):
    q, k, v = (randn(2, 5, HEADS, HDIM) for _ in "qkv")
    out = torch.zeros_like(q)
    made = torch.compile(
        lambda q, k, v, out: calls.forward(q, k, v, out=out)[0] * 2, backend="aot_eager", fullgraph=True
    )
    expected = calls.forward(q, k, v)[0]
    assert torch.equal(made(q, k, v, out), expected * 2)
    assert torch.equal(out, expected)

    caches, new, lengths = (
        [randn(2, 32, HEADS, HDIM) for _ in "kv"],
        [randn(2, 5, HEADS, HDIM) for _ in "kv"],
        ints(4, 9),
    )
    copies = [x.clone() for x in caches]
    step = torch.compile(
        lambda q, k, v, a, b: calls.appendkv(q, k, v, a, b, seqlen_k=lengths, causal=True),
        backend="aot_eager",
        fullgraph=True,
    )
    assert torch.equal(step(q, *caches, *new), calls.appendkv(q, *copies, *new, seqlen_k=lengths, causal=True))
    for cache, copy in zip(caches, copies, strict=True):
        assert torch.equal(cache, copy)
        assert torch.equal(cache[1, 9:14], new[0 if cache is caches[0] else 1][1])


def test_export(calls):
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(calls, q, k, v)

    inputs = [randn(2, 20, HEADS, HDIM) for _ in "qkv"]
    length = torch.export.Dim("length", min=2, max=100)
    for strict in (False, True):
        program = torch.export.export(Module(), tuple(inputs), dynamic_shapes=[{1: length}] * 3, strict=strict)
        assert "tilekiln.fmha_fwd" in program.graph_module.code
        longer = [randn(2, 31, HEADS, HDIM) for _ in "qkv"]
        assert torch.equal(program.module()(*longer), attend(calls, *longer))


def test_functorch(calls):
    inputs = [randn(3, 12, HEADS, HDIM) for _ in "qkv"]
    expected = attend(calls, *inputs)
    alone = torch.vmap(lambda *x: attend(calls, *(y[None] for y in x))[0])(*inputs)
    torch.testing.assert_close(alone, expected)
    heads_last = torch.vmap(lambda q, k, v: attend(calls, q[None], k[None], v[None])[0], in_dims=(3, 3, None))
    moved = heads_last(*(x.movedim(0, -1) for x in inputs[:2]), inputs[2][0])
    torch.testing.assert_close(moved, attend(calls, *inputs[:2], inputs[2][:1].expand_as(inputs[2])))

    leaves = [x.clone().requires_grad_() for x in inputs]
    theirs = torch.autograd.grad(attend(calls, *leaves).square().sum(), leaves)

    def loss(*x):
        return attend(calls, *(y[None] for y in x)).square().sum()

    for ours in (
        torch.func.grad(lambda *x: attend(calls, *x).square().sum(), (0, 1, 2))(*inputs),
        torch.vmap(torch.func.grad(loss, (0, 1, 2)))(*inputs),
        torch.func.grad(lambda *x: torch.vmap(loss)(*x).sum(), (0, 1, 2))(*inputs),
    ):
        for mine, its in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, its)
    jacobian = torch.func.jacrev(lambda q: attend(calls, q, *inputs[1:])[0, 0, 0])(inputs[0])
    assert jacobian.shape == (HDIM, *inputs[0].shape)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: attend(calls, q, *inputs[1:]), (inputs[0],), (inputs[0],))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_of_dropout(calls, randomness):
    x = randn(1, 12, HEADS, HDIM)
    both = torch.stack([x, x])
    out = torch.vmap(lambda x: calls.forward(x, x, x, dropout_p=0.5)[0], randomness=randomness)(both)
    assert torch.equal(out[0], out[1]) == (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(lambda x: calls.forward(x, x, x, dropout_p=0.5)[0])(both)


def test_autocast(calls):
    inputs = [randn(2, 12, HEADS, HDIM, grad=True) for _ in "qkv"]
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out = calls.forward(*inputs)[0]
        plain = calls.forward(*(x.detach() for x in inputs))[0]
        traced = torch.compile(lambda *x: calls.forward(*x)[0], backend="aot_eager", fullgraph=True)(*inputs)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, plain)
    assert torch.equal(out, traced)
    gradients = torch.autograd.grad(out.float().sum(), inputs)
    assert all(x.dtype == WIDE for x in gradients)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_replays_dropout(calls, reentrant):
    inputs = [randn(2, 12, HEADS, HDIM, grad=True) for _ in "qkv"]

    def call(*x):
        return calls.forward(*x, dropout_p=0.4)[0]

    results = []
    for run in (call, lambda *x: torch.utils.checkpoint.checkpoint(call, *x, use_reentrant=reentrant)):
        torch.manual_seed(4)
        out = run(*inputs)
        results.append(
            (out, *torch.autograd.grad(out.square().sum(), inputs))
            if not reentrant
            else (out, *run_backward(out, inputs))
        )
    for mine, its in zip(*results, strict=True):
        assert torch.equal(mine, its)


def run_backward(out, inputs):
    for x in inputs:
        x.grad = None
    out.square().sum().backward()
    return [x.grad.clone() for x in inputs]


def test_inference_mode_and_fake_tensors(calls):
    with torch.inference_mode():
        inputs = [randn(2, 12, HEADS, HDIM) for _ in "qkv"]
        out = calls.forward(*inputs)[0]
        assert out.is_inference()
    assert torch.equal(out, calls.forward(*(x.clone() for x in inputs))[0])
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake, lse, _, _ = calls.forward(*(torch.empty(2, 12, HEADS, HDIM) for _ in "qkv"))
    assert fake.shape == out.shape
    assert lse.shape == (2, HEADS, 12)
    meta = calls.forward(*(torch.empty(2, 12, HEADS, HDIM, device="meta") for _ in "qkv"))[0]
    assert meta.shape == out.shape
    assert meta.is_meta


def test_kv_calls_are_those_of_the_library(calls, load):
    """Eager and traced, with rng_state in place of rng and without gradients."""
    library = load("flash")
    for name, call in (
        ("fmha_fwd_splitkv", calls.splitkv),
        ("fmha_fwd_pagedkv", calls.pagedkv),
        ("fmha_batch_prefill", calls.batch_prefill),
    ):
        for arrays, named in cases(name):
            expected = getattr(library, name)(*arrays, **named)
            leaf = arrays[0].requires_grad_()
            eager = call(leaf, *arrays[1:], **named)
            traced = torch.compile(lambda *x: call(*x, **named), backend="aot_eager", fullgraph=True)  # noqa: B023
            for made in (eager, traced(arrays[0].detach(), *arrays[1:])):
                for mine, its in zip(*(x if isinstance(x, tuple) else (x,) for x in (made, expected)), strict=True):
                    assert torch.equal(mine, its)
                    assert not mine.requires_grad
            arrays[0].requires_grad_(False)
    arrays, named = next(cases("fmha_batch_prefill"))
    state = torch.tensor([7, 8])
    drops = calls.batch_prefill(*arrays, **named, dropout_p=0.3, rng_state=state)
    expected = load("ck_default").fmha_batch_prefill(*arrays, **named, dropout_p=0.3, rng=(7, 8))
    assert torch.equal(drops[0], expected[0])


def test_what_a_kernel_writes_is_known_to_autograd(calls):
    caches, new = [randn(2, 32, HEADS, HDIM) for _ in "kv"], [randn(2, 5, HEADS, HDIM) for _ in "kv"]
    weight = randn(2, 32, HEADS, HDIM, grad=True)
    loss = (weight * caches[0]).sum()
    calls.appendkv(None, *caches, *new, seqlen_k=ints(4, 9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_errors(calls):
    q, k, v = (randn(2, 5, HEADS, HDIM) for _ in "qkv")
    with pytest.raises(tk.ArgumentError, match="k: dtype was bf16, must be fp"):
        calls.forward(q, k.bfloat16(), v)
    with pytest.raises(TypeError, match="did you mean"):
        calls.forward(q, k, v, causl=True)
    with pytest.raises(Exception, match="stream: was given, must be absent while the call is traced"):
        torch.compile(lambda q, k, v: calls.splitkv(q, k, v, stream=0), backend="aot_eager", fullgraph=True)(q, k, v)
    operator = torch.ops.tilekiln.fmha_fwd(q.requires_grad_(), k, v)[0]
    [dq] = torch.autograd.grad(operator.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dq.sum().backward()
    split = torch.ops.tilekiln.fmha_fwd_splitkv(q, k, v)[0]
    with pytest.raises(NotImplementedError, match="fmha_fwd_splitkv has no backward"):
        split.sum().backward()
