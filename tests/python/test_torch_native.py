# SPDX-License-Identifier: MIT
"""Kernels on PyTorch's stable ABI: what they answer, and what they leave to the operators themselves."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
F = torch.nn.functional


@pytest.fixture
def native(flash: tk.Library, torch_kernels: object, finds: Callable[..., None]) -> Any:
    from tilekiln.torch import native

    finds(flash)
    assert native.load(), native.why_not
    native.forget()
    return native


@pytest.fixture
def python(native: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """python(call) -> how many calls of the facade it makes."""
    from tilekiln.torch import calls, dot_product, lower_calls, operators

    count = []
    for module in (calls, lower_calls, operators, dot_product):
        run = module._call
        monkeypatch.setattr(module, "_call", lambda *given, run=run: count.append(1) or run(*given))

    def counted(call: Callable[[], object]) -> int:
        count.clear()
        call()
        return len(count)

    return counted


def test_a_library_of_an_older_tree_is_left_alone(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels would read calls of this one by another schema: attention without its mask, once."""
    monkeypatch.setattr(native, "_find", lambda: pathlib.Path("libm.so.6"))
    assert native._start() == "libm.so.6 was built of an older tree: tools/dev --with torch scons torch"


def draw(*shape: int, dtype: Any = torch.float32, inside: bool = False) -> Any:
    """(batch, heads, tokens, hdim), heads inside tokens in memory or not."""
    b, h, s, d = shape
    return torch.randn(b, s, h, d).to(dtype).transpose(1, 2) if inside else torch.randn(shape).to(dtype)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 5, 77])
def test_sdpa(native: Any, python: Callable[..., int], inside: bool, causal: bool, rows: int) -> None:
    q, (k, v) = draw(2, 4, rows, 32, inside=inside), (draw(2, 2, 77, 32, inside=inside) for _ in range(2))
    call = lambda: tk.torch.sdpa(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)  # noqa: E731
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=True)
    for _ in range(2):
        assert torch.allclose(call(), expected, atol=2e-6)
        assert call().stride() == (torch.empty_like(q).stride() if inside else call().contiguous().stride())
    assert python(call) == 0


def test_use_asks_about_a_kind_of_call_once(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import routing

    q = draw(2, 4, 9, 32)
    expected = F.scaled_dot_product_attention(q, q, q)
    with tk.torch.use():
        F.scaled_dot_product_attention(q, q, q)
        monkeypatch.setattr(routing, "why_not", lambda *_: pytest.fail("asked again"))
        assert torch.allclose(F.scaled_dot_product_attention(q, q, q), expected, atol=2e-6)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_sdpa(native: Any, python: Callable[..., int], inside: bool, causal: bool) -> None:
    q, k, v = (draw(2, heads, 33, 32, inside=inside).requires_grad_() for heads in (4, 2, 2))
    dout = torch.randn(2, 4, 33, 32)
    ours = tk.torch.sdpa(q, k, v, is_causal=causal, enable_gqa=True)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    assert torch.allclose(ours, theirs, atol=2e-6)
    for grad in (dout, dout[:1, :1, :1, :1].expand(2, 4, 33, 32)):  # dense, and as sum() gives it
        mine = torch.autograd.grad(ours, (q, k, v), grad, retain_graph=True)
        its = torch.autograd.grad(theirs, (q, k, v), grad, retain_graph=True)
        for one, other, leaf in zip(mine, its, (q, k, v), strict=True):
            assert torch.allclose(one, other, atol=2e-5)
            assert one.stride() == leaf.stride()
    both = lambda: tk.torch.sdpa(q, k, v, is_causal=causal, enable_gqa=True).sum().backward()  # noqa: E731
    assert python(both) == 0
    native.forget()  # a backward whose forward is past
    torch.autograd.grad(ours, q, dout)
    (first,) = torch.autograd.grad(tk.torch.sdpa(q, k, v, enable_gqa=True).sum(), q, create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="derivative"):
        torch.autograd.grad(first.sum(), q)


def test_any_operator(native: Any, python: Callable[..., int]) -> None:
    q, k, v = (torch.randn(2, 9, heads, 32) for heads in (4, 2, 2))
    operator = torch.ops.tilekiln.fmha_fwd
    state = torch.tensor([7, 9])
    for named in (
        {"causal": True},
        {"window_left": 3, "window_right": 0, "softcap": 5.0, "softmax_scale": 0.5, "return_lse": False},
        {"causal": True, "mask_origin": "top_left", "num_threads": 1},
        {"dropout_p": 0.25, "rng_state": state},
        {"alibi_slopes": torch.rand(4)},
    ):
        first = operator(q, k, v, **named)
        assert python(lambda named=named: operator(q, k, v, **named)) == 0
        for one, its in zip(operator(q, k, v, **named), first, strict=True):
            assert torch.equal(one, its)
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = [x[0] for x in (q, k, v)]
    given = {"seqstart_q": starts, "seqstart_k": starts}
    assert torch.equal(operator(*packed, **given)[0], operator.default(*packed, **given)[0])


def test_a_call_spelled_in_any_way_is_the_same_call(native: Any, python: Callable[..., int]) -> None:
    q, k, v = (torch.randn(1, 9, 2, 32) for _ in "qkv")
    operator = torch.ops.tilekiln.fmha_fwd
    slopes = torch.rand(2)
    ways = (
        lambda: operator(q, k, v, None, slopes, softmax_scale=0.5, window_left=3),
        lambda: operator(q, k, v, window_left=3, softmax_scale=0.5, alibi_slopes=slopes),
        lambda: operator(v=v, alibi_slopes=slopes, k=k, window_left=3, q=q, softmax_scale=0.5, sink=None),
        lambda: operator.default(q, k, v=v, alibi_slopes=slopes, window_left=3, softmax_scale=0.5, return_lse=True),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", None)
        expected = ways[0]()
    for way in ways:
        way()
        assert python(way) == 0
        for one, its in zip(way(), expected, strict=True):
            assert torch.equal(one, its)
    assert operator(q, k, v, return_lse=False)[1].numel() == 0
    with pytest.raises(RuntimeError, match="softmax_skale"):
        operator(q, k, v, softmax_skale=0.5)
    with pytest.raises(RuntimeError, match="q"):
        operator(q, k, v, q=q)


def test_forgotten_sets_of_arguments_make_room(native: Any, python: Callable[..., int]) -> None:
    """Whatever sets the process has called before."""
    q = torch.randn(1, 8, 2, 32)
    call = lambda: torch.ops.tilekiln.fmha_fwd(q, q, q)  # noqa: E731
    native._twins["fmha_fwd"].update(dict.fromkeys(range(native._MOST_TWINS)))
    call()
    assert python(call) == 1
    native.forget()
    call()
    assert python(call) == 0


def test_what_is_not_plain_goes_through_python(native: Any, python: Callable[..., int]) -> None:
    q = torch.randn(1, 8, 2, 32)
    operator = torch.ops.tilekiln.fmha_fwd
    operator(q, q, q)
    assert python(lambda: operator(q, q, q)) == 0
    with torch.inference_mode():
        assert python(lambda: operator(q, q, q)) == 0
    leaf = q.clone().requires_grad_()
    out = operator(leaf, q, q)[0]
    assert out.grad_fn is not None
    out.sum().backward()
    assert leaf.grad.abs().max() > 0
    with torch.no_grad():
        assert python(lambda: operator(leaf, q, q)) == 0
    assert torch.equal(operator(torch._neg_view(q), q, q)[0], operator(-q, q, q)[0])
    lazy = python(lambda: torch.vmap(lambda x: operator(x, q, q)[0])(torch.stack([q, q])))
    assert lazy <= 1
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        operator(q, q, q)
        tk.torch.sdpa(leaf, q, q)
        tk.torch.sdpa(q, q, q)
    assert set(seen) >= {"tilekiln.fmha_fwd.default"}
    assert not [name for name in seen if "native" in name or "overrideable" in name], seen
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(q)
        assert operator(fake, fake, fake)[0].shape == q.shape
        assert tk.torch.sdpa(fake, fake, fake).shape == q.shape
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: operator(x, x, x)[0])(q).graph
    first = next(node for node in graph.nodes if node.op == "call_function")
    assert str(first.target) == "tilekiln.fmha_fwd.default"
    meta = q.to("meta")
    assert operator(meta, meta, meta)[0].device.type == "meta"


def test_errors_are_those_of_python(native: Any) -> None:
    q = torch.randn(1, 8, 2, 32)
    torch.ops.tilekiln.fmha_fwd(q, q, q)
    with pytest.raises(tk.ArgumentError, match="dropout_p"):
        torch.ops.tilekiln.fmha_fwd(q, q, q, dropout_p=2.0, rng_state=torch.tensor([1, 2]))
    with pytest.raises(tk.ArgumentError, match="layout"):
        torch.ops.tilekiln.fmha_fwd(q, q, q, layout="sbhd")
    with pytest.raises(RuntimeError, match="tilekiln::fmha_fwd"):
        torch.ops.tilekiln.fmha_fwd(q, q)
    with pytest.raises(RuntimeError, match="same dtype"):
        tk.torch.sdpa(q, q.double(), q)


def at_once() -> None:
    """A program: eight threads make the first call of each set of arguments; then come more sets than twins."""
    import threading

    from tilekiln.torch import native

    assert native.library is not None, native.why_not
    values = {"causal": True, "return_lse": True, "num_threads": 1, "window_left": 3, "window_right": 2}
    looks = [dict(one) for n in range(6) for one in itertools.permutations(values.items(), n)]
    q, errors, operator = torch.randn(1, 9, 2, 32), [], torch.ops.tilekiln.fmha_fwd
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for named in looks[:16]:
        gate = threading.Barrier(8)

        def call(gate: Any = gate, named: Any = named) -> None:
            gate.wait()
            try:
                operator(q, q, q, **named)
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.setswitchinterval(interval)
    twins = [len(native._defined)]
    operator(q, q, q, **looks[20])
    twins.append(len(native._defined))
    native._MOST_TWINS = 1000
    results = {}
    for named in looks * 2:
        result = operator(q, q, q, **named)[0]
        assert torch.equal(result, results.setdefault(tuple(sorted(named)), result)), named
    made = sum(native._defined.values())
    assert made < len(native._defined) == len(looks), (made, len(looks))
    print(json.dumps({"errors": errors, "twins": twins, "made": made}))


@pytest.fixture(scope="module")
def alone(flash: tk.Library, torch_kernels: object) -> Any:
    """Results of at_once in a process of its own: twins are for the life of a process."""
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(root / "python"), str(root))),
        "TILEKILN_LIBRARY_PATH": str(pathlib.Path(flash.path).parent),
    }
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({__file__!r})['at_once']()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.host_only("these kernels are for tensors of the CPU")
def test_first_calls_of_eight_threads(alone: Any) -> None:
    assert alone["errors"] == []  # without the lock 13 to 39 of 128 calls


@pytest.mark.host_only("these kernels are for tensors of the CPU")
def test_calls_past_the_last_twin_go_through_python(alone: Any) -> None:
    assert alone["twins"] == [16, 16]  # of one operator
    assert 200 < alone["made"] <= 256  # of all
