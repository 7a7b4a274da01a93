"""Functions of other packages hand max_seqlen on where index arrays are on a device: seen in a trace, without one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("binding")


def traced(call: Callable[..., Any], device: str) -> list[tuple[str, Any, Any]]:
    """(operator, max_seqlen_q, max_seqlen_k) of what `call` calls with tensors of a device that need not be there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    found = []
    with FakeTensorMode():

        def empty(*shape: int, dtype: Any = torch.bfloat16) -> Any:
            return torch.empty(shape, dtype=dtype, device=device)

        def ints(*shape: int) -> Any:
            return empty(*shape, dtype=torch.int32)

        graph = make_fx(lambda _: call(empty, ints))(empty(1)).graph
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.name.startswith("tilekiln::"):
            continue
        given = dict(zip((one.name for one in schema.arguments), node.args, strict=False)) | node.kwargs
        found.append((schema.name.removeprefix("tilekiln::"), given.get("max_seqlen_q"), given.get("max_seqlen_k")))
    return found


def varlen(empty: Any, ints: Any) -> Any:
    from tilekiln import flash_attn

    q = empty(50, 4, 64)
    return flash_attn.flash_attn_varlen_func(q, q, q, ints(3), ints(3), 30, 40)


def packed(empty: Any, ints: Any) -> Any:
    from tilekiln import flash_attn

    made = flash_attn.flash_attn_varlen_kvpacked_func(empty(50, 4, 64), empty(80, 2, 4, 64), ints(3), ints(3), 30, 40)
    return made, flash_attn.flash_attn_varlen_qkvpacked_func(empty(50, 3, 4, 64), ints(3), 40)


def gradients(empty: Any, ints: Any) -> Any:
    from tilekiln.flash_attn.flash_attn_interface import _flash_attn_varlen_backward

    q, lse = empty(50, 4, 64), empty(4, 50, dtype=torch.float32)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    return _flash_attn_varlen_backward(
        q, q, q, q, q, lse, dq, dk, dv, ints(3), ints(3), 30, 40, 0.0, 0.125, True, -1, -1, 0.0, None, False
    )


def pages(empty: Any, ints: Any) -> Any:
    from tilekiln import flash_attn

    cache = empty(8, 16, 4, 64)
    return flash_attn.flash_attn_varlen_func(
        empty(50, 4, 64), cache, cache, ints(3), ints(3), 30, 0, block_table=ints(2, 4)
    )


def decode(empty: Any, ints: Any) -> Any:
    from tilekiln import flash_attn

    q, cache, table = empty(2, 1, 4, 64), empty(8, 16, 4, 64), ints(2, 4)
    new = empty(2, 1, 4, 64)
    return (
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=20, block_table=table),
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=ints(2), block_table=table, softcap=30.0),
        flash_attn.flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=ints(2), block_table=table),
    )


def of_aiter(empty: Any, ints: Any) -> Any:
    from tilekiln.aiter.ops import mha

    q, cache = empty(50, 4, 64), empty(8, 16, 4, 64)
    return (
        mha.flash_attn_varlen_func(q, q, q, ints(3), ints(3), 30, 40),
        mha.mha_batch_prefill_func(
            q, cache, cache, ints(3), ints(3), ints(8), 30, 40, causal=True, kv_last_page_lens=ints(2)
        ),
    )


FACES: dict[Callable[..., Any], list[tuple[str, Any, Any]]] = {
    varlen: [("fmha_fwd", 30, 40)],
    packed: [("fmha_fwd", 30, 40), ("fmha_fwd", 40, 40)],
    gradients: [("fmha_bwd", 30, 40)],
    pages: [("fmha_fwd_splitkv", 30, 1)],  # both or neither, so 0 is said as 1
    decode: [("fmha_fwd_splitkv", 1, 64), ("fmha_fwd_pagedkv", 1, 64), ("fmha_fwd_appendkv", None, 64)],
    of_aiter: [("fmha_fwd", 30, 40), ("fmha_batch_prefill", 30, 40)],
}


@pytest.mark.parametrize("face", FACES)
def test_max_seqlen_is_handed_on(face: Callable[..., Any]) -> None:
    assert [(name.removesuffix("_out"), *rest) for name, *rest in traced(face, "meta")] == FACES[face]
    for _, *longest in traced(face, "cpu"):
        assert longest in ([0, 0], [None, 0], [None, None])


def test_head_dims_are_filled_up_where_kernels_read_eight_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As flash_attn does, with the scale of the headdim that was given; gradients are of the given elements."""
    from tilekiln import flash_attn
    from tilekiln.flash_attn import _arguments, flash_attn_interface

    q, k = torch.empty(1, 8, 2, 60, device="meta"), torch.empty(1, 8, 2, 64, device="meta")
    assert [x.shape[-1] for x in _arguments.in_vectors(q, k)] == [64, 64]
    assert _arguments.in_vectors(k, k)[0] is k
    assert _arguments.in_vectors(torch.empty(1, 8, 2, 60))[0].shape[-1] == 60  # kernels of the CPU read any
    torch.manual_seed(3)
    tensors = [torch.randn(1, 9, 2, 60, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    made = []
    for fills in (False, True):
        if fills:
            monkeypatch.setattr(flash_attn_interface, "in_vectors", _arguments.filled)
        out = flash_attn.flash_attn_func(*tensors, causal=True)
        one, _, _ = flash_attn.flash_attn_qkvpacked_func(torch.stack(tensors, 2), return_attn_probs=True)
        made.append((out, one, *torch.autograd.grad(out, tensors, torch.ones_like(out))))
    for ours, plain in zip(*reversed(made), strict=True):
        assert ours.shape[-1] == 60
        torch.testing.assert_close(ours, plain, rtol=0.02, atol=0.02)


FACTORIES = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "zeros"}
OF_THE_HOST = {
    "aiter/_arguments.py",  # absent results, and what a generator has drawn, which stays on the host
    "aiter/_kernels.py",
    "aiter/ops/mha.py",
    "flash_attn/flash_attn_interface.py",
    "torch/_optimize.py",  # models of the CPU
    "torch/fused_decoder.py",
    "torch/packed.py",
}


def made_anywhere(path: Path) -> Iterator[int]:
    """Lines that make a tensor without saying on which device."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of = node.func.value
        if not (isinstance(of, ast.Name) and of.id == "torch" and node.func.attr in FACTORIES):
            continue
        if not {"device", None} & {word.arg for word in node.keywords}:
            yield node.lineno


def test_tensors_are_made_on_a_device_that_is_said() -> None:
    """One that is not would be of the host, beside arguments of a GPU; a default device hides it in other tests."""
    package = Path(__file__).resolve().parents[2] / "python" / "tilekiln"
    found = {str(path.relative_to(package)): list(made_anywhere(path)) for path in package.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines and path not in OF_THE_HOST} == {}
    assert all(found[path] for path in OF_THE_HOST)
