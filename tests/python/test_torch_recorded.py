# SPDX-License-Identifier: MIT
"""Calls under torch.jit.trace, make_fx, dispatch modes and torch.func; tensors that a call writes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tests.python.test_torch_declared import NAMES, calls, results, table  # noqa: E402

__all__ = ["table"]
Function = Callable[..., Any]


class Seen(TorchDispatchMode):
    """The operators that PyTorch's dispatcher shows to a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def flash(load: Callable[..., tk.Library], finds: Callable[..., None]) -> tk.Library:
    library = load("flash")
    finds(library)
    return library


Q = torch.randn(1, 9, 2, 16)
CALLS: dict[str, Callable[[tk.Library], Function]] = {
    "attention": lambda _: lambda q: tk.attention(q, q, q, causal=True),
    "few queries": lambda _: lambda q: tk.attention(q[:, :1].contiguous(), q, q),
    "library": lambda lib: lambda q: lib.fmha_fwd(q, q, q, window=(2, 0)),
    "lse": lambda lib: lambda q: lib.fmha_fwd(q, q, q, return_lse=True)[1],
    "out": lambda lib: lambda q: lib.fmha_fwd(q, q, q, out=torch.empty_like(q)),
    "dropout": lambda lib: lambda q: lib.fmha_fwd(q, q, q, dropout_p=0.5, rng=(1, 2)),
    "split": lambda lib: lambda q: lib.fmha_fwd_splitkv(q, q, q),
    "by name": lambda lib: lambda q: lib.fmha_fwd(softmax_scale=0.5, v=q, q=q, k=q),
    "a seed of 64 bits": lambda lib: lambda q: lib.fmha_fwd(q, q, q, dropout_p=0.5, rng=(2**64 - 3, 2**63)),
    "an instance's number": lambda lib: (
        lambda q: lib.fmha_fwd(q, q, q, return_lse=True, instance=lib.fmha_fwd_find(Q, Q, Q, return_lse=True))[0]
    ),
    "no instance": lambda lib: lambda q: lib.fmha_fwd(q, q, q, instance=-1),
    "one by name": lambda lib: lambda q: lib.fmha_fwd(q, q, v=q, causal=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_trace_has_the_call_and_not_its_result(flash: tk.Library, name: str) -> None:
    call = CALLS[name](flash)
    q, other = torch.randn(2, 1, 9, 2, 16).unbind(0)
    want = call(other)
    with torch.no_grad():
        assert torch.equal(torch.jit.trace(call, (q,))(other), want)
    for mode in ("real", "fake", "symbolic"):
        got = make_fx(call, tracing_mode=mode)(q)(other)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=0)  # symbolic: not split, whose bits are others
    with Seen() as seen:
        assert torch.equal(call(other), want)
    assert any(one.startswith("tilekiln.fmha_fwd") for one in seen.names)


@pytest.mark.parametrize("name", NAMES)
def test_a_mode_sees_every_operator(load: Callable[..., tk.Library], table: Any, name: str) -> None:
    from tests.python.drawn import receipt

    library = load(receipt(name))
    for arrays, named in calls(name, table):
        want = results(getattr(library, name)(*arrays, **named))
        for function in (getattr(library, name), getattr(tk, name, getattr(library, name))):
            with Seen() as seen:
                got = results(function(*arrays, **named))
            assert f"tilekiln.{name}.default" in seen.names
            for mine, theirs in zip(got, want, strict=True):
                assert torch.equal(mine, theirs)


def test_torch_func(flash: tk.Library) -> None:
    q = torch.randn(3, 1, 6, 2, 16)
    for call in (
        lambda q: tk.attention(q, q, q),
        lambda q: flash.fmha_fwd(q, q, q),
        lambda q: flash.fmha_fwd(q=q, k=q, v=q),
    ):
        torch.testing.assert_close(torch.vmap(call)(q), torch.stack([call(one) for one in q]))
    leaf = q[0].clone().requires_grad_()
    tk.attention(leaf, leaf, leaf).sum().backward()
    torch.testing.assert_close(torch.func.grad(lambda q: flash.fmha_fwd(q, q, q).sum())(q[0]), leaf.grad)


def test_a_result_that_is_asked_for_by_its_place(load: Callable[..., tk.Library]) -> None:
    library = load("aiter")
    q, bias = torch.randn(1, 8, 2, 128).bfloat16(), torch.randn(1, 2, 8, 8).bfloat16()
    out, lse = library.fmha_fwd(q, q, q, bias=bias, return_lse=True)
    want, got = torch.zeros_like(bias), torch.zeros_like(bias)
    library.fmha_bwd(q, q, q, q, out, lse, bias=bias, dbias=want, deterministic=True)
    with Seen() as seen:
        library.fmha_bwd(q, q, q, q, out, lse, bias=bias, dbias=got, deterministic=True)
    assert "tilekiln.fmha_bwd.default" in seen.names
    assert want.any()
    torch.testing.assert_close(got, want)


def test_a_place_of_the_longest_sequence(flash: tk.Library) -> None:
    """The operator makes random bytes for all rows of k, a caller's place has room for the keys of sequences."""
    q, k = torch.randn(9, 2, 64).bfloat16(), torch.randn(8, 2, 64).bfloat16()
    starts = {
        name: torch.tensor([0, end], dtype=torch.int32)
        for name, end in (("cu_seqlens_q", 9), ("cu_seqlens_k", 6), ("seqstart_q", 9), ("seqstart_k", 8))
    }
    bytes_ = [torch.zeros(2, 9, 6, dtype=torch.uint8) for _ in range(2)]
    flash.fmha_fwd(q, k, k, **starts, dropout_p=0.3, rng=(1, 2), randval=bytes_[0])
    with Seen() as seen:
        flash.fmha_fwd(q, k, k, **starts, dropout_p=0.3, rng=(1, 2), randval=bytes_[1])
    assert any(one.startswith("tilekiln.fmha_fwd") for one in seen.names)
    assert bytes_[0].any()
    assert torch.equal(*bytes_)


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "instance": lambda f, q: f(q, q, q, instance=10**9),
    "below": lambda f, q: f(q, q, q, instance=-5),
    "half": lambda f, q: f(q, q, q, instance=2.5),
    "rng": lambda f, q: f(q, q, q, dropout_p=0.5, rng=5),
    "seed": lambda f, q: f(q, q, q, dropout_p=0.5, rng=(2**64, 0)),
    "sign": lambda f, q: f(q, q, q, dropout_p=0.5, rng=(-1, 0)),
    "window": lambda f, q: f(q, q, q, window=3),
    "missing": lambda f, q: f(q, q),
    "twice": lambda f, q: f(q, q, q, q=q),
    "many": lambda f, q: f(q, q, q, q),
    "unknown": lambda f, q: f(q, q, q, nope=1),
    "none": lambda f, q: f(q, None, q),
    "small out": lambda f, q: f(q, q, q, out=q[:, 1:].clone()),
    "small lse": lambda f, q: f(q, q, q, lse=torch.empty(1, 2, 8)),
    "other dtype": lambda f, q: f(q, q.half(), q),
    "leaf": lambda f, q: f(q, q, q, out=q.clone().requires_grad_()),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_in_the_same_words(flash: tk.Library, name: str) -> None:
    """As where nothing is recorded, and before anything is written."""
    said = []
    for mode in (contextlib.nullcontext(), Seen()):
        with mode, pytest.raises((tk.ArgumentError, TypeError)) as error:
            WRONG[name](flash.fmha_fwd, Q)
        said.append((error.type, str(error.value)))
    assert said[0] == said[1]


def test_arguments_that_the_operator_lacks_are_named(flash: tk.Library) -> None:
    q = torch.randn(1, 6, 2, 16)
    with Seen(), pytest.raises(tk.ArgumentError, match=r"stream: was given, must be absent while"):
        flash.fmha_fwd(q, q, q, stream=tk.Stream())


WRITES: dict[str, Callable[[tk.Library, Any, Any], object]] = {
    "out": lambda lib, q, x: lib.fmha_fwd(q, q, q, out=x),
    "attention's out": lambda lib, q, x: tk.attention(q, q, q, out=x),
    "by name": lambda lib, q, x: lib.fmha_fwd(k=q, v=q, q=q, out=x),
    "beside arrays": lambda lib, q, x: lib.fmha_fwd(*[q.numpy()] * 3, out=x),
    "dq": lambda lib, q, x: lib.fmha_bwd(q, q, q, q, *lib.fmha_fwd(q, q, q, return_lse=True), dq=x),
    "a cache": lambda lib, q, x: lib.fmha_fwd_appendkv(None, x, torch.zeros_like(x), q, q, seqlen_k=0 * LENGTHS),
}
LENGTHS = torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize("name", WRITES)
def test_autograd_is_told_of_what_a_call_writes(flash: tk.Library, name: str) -> None:
    x = torch.randn(2, 9, 4, 64, requires_grad=True)
    q, place = torch.randn(2, 9, 4, 64), torch.zeros(2, 9, 4, 64)
    y = (x * place).sum()  # saves place
    WRITES[name](flash, q, place)
    assert place.any()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    with torch.inference_mode():
        WRITES[name](flash, q, torch.zeros(2, 9, 4, 64))  # which has no version


@pytest.mark.parametrize("name", WRITES)
def test_a_tensor_that_requires_grad_is_not_written(flash: tk.Library, name: str) -> None:
    q, place = torch.randn(2, 9, 4, 64), torch.zeros(2, 9, 4, 64, requires_grad=True)
    with pytest.raises(tk.ArgumentError, match=r": required grad, must not where it is written to"):
        WRITES[name](flash, q, place)
    assert not place.any()
    with torch.no_grad():
        WRITES[name](flash, q, place)
    assert place.any()


FIRST = """
import sys
import torch
import tilekiln as tk

library = tk.Library(sys.argv[1])
q, out = torch.randn(1, 9, 2, 16), torch.zeros(1, 9, 2, 16)
if sys.argv[2] == "by name":
    library.fmha_fwd(q=q, k=q, v=q, out=out)
else:
    library.fmha_fwd(*[q.numpy()] * 3, out=out)
assert out.any() and out._version == 1, out._version
"""


@pytest.mark.parametrize("how", ["by name", "beside arrays"])
def test_the_first_call_of_a_process_counts_what_it_writes(flash: tk.Library, how: str) -> None:
    """A tensor by position was looked for, until then nothing was PyTorch's."""
    command = [sys.executable, "-c", FIRST, str(flash.path), how]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
