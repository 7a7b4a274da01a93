# SPDX-License-Identifier: MIT
"""Operators in the code that inductor makes: C++ of ours and no Python, answers and refusals."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def native(flash: tk.Library, torch_kernels: object, finds: Callable[..., None]) -> Iterator[Any]:
    from tilekiln.torch import native

    finds(flash)
    assert native.load(), native.why_not
    native.forget()
    import torch._inductor.config

    with torch.compiler.config.patch(force_disable_caches=True):
        yield native


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, options=options)


def frames_of_ours(call: Callable[[], object]) -> list[str]:
    """Functions of Tilekiln's Python that a call enters."""
    seen: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/tilekiln/" in frame.f_code.co_filename:
            seen.append(f"{frame.f_code.co_filename}: {frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def attend(q: Any, k: Any, v: Any) -> Any:
    return torch.ops.tilekiln.fmha_fwd(q, k, v, causal=True, softcap=5.0, return_lse=False)[0]


@pytest.mark.parametrize("cpp_wrapper", [False, True])
def test_a_compiled_call_enters_no_python_of_ours(
    native: Any, cpp_wrapper: bool, request: pytest.FixtureRequest
) -> None:
    if cpp_wrapper and not request.config.option.full:
        pytest.skip("a minute of g++ over PyTorch's headers: --full runs it")
    q, k, v = (torch.randn(2, 9, heads, 32) for heads in (4, 2, 2))
    function = compiled(attend, cpp_wrapper=cpp_wrapper)
    with torch.no_grad():
        assert torch.equal(function(q, k, v), attend(q, k, v))
        assert frames_of_ours(lambda: function(q, k, v)) == []
        native.forget()
        assert frames_of_ours(lambda: function(q, k, v)) != []  # asks which library serves it, once
        assert frames_of_ours(lambda: function(q, k, v)) == []
        assert torch.equal(function(q, k, v), attend(q, k, v))


def test_functions_of_ctypes_that_others_declare_differently(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX gives PyCapsule_New, one object for the process, a destructor's type."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    monkeypatch.setattr(ctypes.pythonapi.PyCapsule_New, "argtypes", [ctypes.c_void_p, ctypes.c_char_p, kind])
    q, k, v = (torch.randn(2, 9, 2, 32) for _ in "qkv")
    with torch.no_grad():
        assert torch.equal(compiled(attend)(q, k, v), attend(q, k, v))


def test_compiled_gradients_enter_no_python_of_ours(native: Any) -> None:
    q, k, v = (torch.randn(1, 9, 2, 32, requires_grad=True) for _ in "qkv")
    step = lambda f: torch.autograd.grad(f(q, k, v).sum(), (q, k, v))  # noqa: E731
    function = compiled(lambda q, k, v: torch.ops.tilekiln.fmha_fwd(q, k, v, causal=True)[0])
    expected = step(lambda q, k, v: tk.attention(q, k, v, causal=True))
    for one, its in zip(step(function), expected, strict=True):
        assert torch.equal(one, its)
    assert frames_of_ours(lambda: step(function)) == []


def test_the_facade_and_sizes_that_change(native: Any) -> None:
    function = compiled(lambda q, k, v: tk.attention(q, k, v, window=(3, 0)))
    for tokens in (9, 11, 12, 33):
        q, k, v = (torch.randn(1, tokens, 2, 32) for _ in "qkv")
        assert torch.allclose(function(q, k, v), tk.attention(q, k, v, window=(3, 0)), atol=2e-6)


def test_what_native_code_leaves_python_answers(native: Any) -> None:
    """Rows whose probabilities are asked for."""
    q, k, v = (torch.randn(1, 9, 2, 32) for _ in "qkv")
    state = torch.tensor([7, 9])
    call = lambda q, k, v: torch.ops.tilekiln.fmha_fwd(  # noqa: E731
        q, k, v, dropout_p=0.25, rng_state=state, return_randval=True
    )
    for one, its in zip(compiled(call)(q, k, v), call(q, k, v), strict=True):
        assert torch.equal(one, its)


def test_refusals_name_the_argument(native: Any) -> None:
    q, k, v = (torch.randn(1, 8, 2, 32) for _ in "qkv")
    operator = torch.ops.tilekiln.fmha_fwd
    for named, error, word in (
        ({"dropout_p": 2.0}, ValueError, "dropout_p"),
        ({"layout": "sbhd"}, ValueError, "layout"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"instance": "nothing"}, (ValueError, LookupError), "instance|nothing"),
    ):
        call = lambda q, k, v, named=named: operator(q, k, v, **named)[0]  # noqa: E731
        with pytest.raises((tk.ArgumentError, tk.NoKernelError)) as eager:
            call(q, k, v)
        with pytest.raises(error, match=word) as refusal:
            compiled(call)(q, k, v)
        assert str(eager.value) in str(refusal.value)
    short = torch.randn(1, 8, 2, 16)
    with pytest.raises(ValueError, match="k"):
        compiled(lambda q, k, v: operator(q, k, v)[0])(q, short, v)


def test_operators_that_cached_code_names(native: Any) -> None:
    """In a process that has never lowered them, with and without the kernels in C++."""
    from tilekiln.torch import compiled as module

    q = torch.randn(1, 8, 2, 32)
    spelled = "fmha_fwd__3__softcap__sink_size"
    assert spelled not in module.forms
    named = getattr(torch.ops.tilekiln_native, spelled).default
    expected = torch.ops.tilekiln.fmha_fwd(q, q, q, softcap=3.0)
    for one, its in zip(named(q, q, q, 3.0, 0), expected, strict=True):
        assert torch.equal(one, its)
    for one, its in zip(module.forms[spelled].answer(q, q, q, 3.0, 0), expected, strict=True):
        assert torch.equal(one, its)
    with pytest.raises(AttributeError):
        _ = torch.ops.tilekiln_native.fmha_fwd__3__no_such_argument
    every = torch.ops.tilekiln_native.fmha_fwd.default
    values = (module.forms["fmha_fwd"].defaults | dict.fromkeys("qkv", q)).values()
    assert torch.equal(every(*values)[0], torch.ops.tilekiln.fmha_fwd(q, q, q)[0])
