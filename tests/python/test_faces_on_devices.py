# SPDX-License-Identifier: MIT
"""Functions of other packages hand max_seqlen on where index arrays are on a device: seen in a trace, without one."""

from __future__ import annotations

import ast
import itertools
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
    from tilekiln.compat import flash_attn

    q = empty(50, 4, 64)
    return flash_attn.flash_attn_varlen_func(q, q, q, ints(3), ints(3), 30, 40)


def packed(empty: Any, ints: Any) -> Any:
    from tilekiln.compat import flash_attn

    made = flash_attn.flash_attn_varlen_kvpacked_func(empty(50, 4, 64), empty(80, 2, 4, 64), ints(3), ints(3), 30, 40)
    return made, flash_attn.flash_attn_varlen_qkvpacked_func(empty(50, 3, 4, 64), ints(3), 40)


def gradients(empty: Any, ints: Any) -> Any:
    from tilekiln.compat.flash_attn.flash_attn_interface import _flash_attn_varlen_backward

    q, lse = empty(50, 4, 64), empty(4, 50, dtype=torch.float32)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    return _flash_attn_varlen_backward(
        q, q, q, q, q, lse, dq, dk, dv, ints(3), ints(3), 30, 40, 0.0, 0.125, True, -1, -1, 0.0, None, False
    )


def pages(empty: Any, ints: Any) -> Any:
    from tilekiln.compat import flash_attn

    cache = empty(8, 16, 4, 64)
    return flash_attn.flash_attn_varlen_func(
        empty(50, 4, 64), cache, cache, ints(3), ints(3), 30, 0, block_table=ints(2, 4)
    )


def decode(empty: Any, ints: Any) -> Any:
    from tilekiln.compat import flash_attn

    q, cache, table = empty(2, 1, 4, 64), empty(8, 16, 4, 64), ints(2, 4)
    new = empty(2, 1, 4, 64)
    return (
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=20, block_table=table),
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=ints(2), block_table=table, softcap=30.0),
        flash_attn.flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=ints(2), block_table=table),
    )


def of_aiter(empty: Any, ints: Any) -> Any:
    from tilekiln.compat.aiter.ops import mha

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


def test_kernels_of_gpus_read_eight_elements() -> None:
    from tilekiln.compat.flash_attn import _arguments

    q, k = torch.empty(1, 8, 2, 60, device="meta"), torch.empty(1, 8, 2, 64, device="meta")
    assert [x.shape[-1] for x in _arguments.in_vectors(q, k)] == [64, 64]
    assert _arguments.in_vectors(q, k)[1] is k
    assert (
        _arguments.in_vectors(torch.empty(1, 8, 2, 60, device="cpu"))[0].shape[-1] == 60
    )  # kernels of the CPU read any


HEADDIM = 59


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, HEADDIM, device="cpu").to(torch.get_default_device(), torch.bfloat16)


def with_gradients(call: Callable[..., Any], *tensors: Any) -> list[Any]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    out, *others = call(*leaves)
    return [out, *others, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def of_functions() -> list[Any]:
    from tilekiln.compat import flash_attn

    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    tensors = [drawn(1, 9, 2) for _ in range(3)]
    flat = [x[0] for x in tensors]
    return [
        *with_gradients(lambda *x: (flash_attn.flash_attn_func(*x, causal=True),), *tensors),
        *with_gradients(
            lambda x: flash_attn.flash_attn_qkvpacked_func(x, return_attn_probs=True), torch.stack(tensors, 2)
        ),
        *with_gradients(lambda *x: (flash_attn.flash_attn_varlen_func(*x, starts, starts, 5, 5),), *flat),
    ]


def of_private_functions() -> list[Any]:
    from tilekiln.compat.flash_attn import flash_attn_interface as face

    q, k, v, dout = (drawn(1, 9, 2) for _ in range(4))
    made = []
    options = None, True, -1, -1, 0.0, None
    out, lse, *_ = face._flash_attn_forward(q, k, v, 0.0, *options, False)
    gradients = [torch.full_like(q, 7) for _ in range(3)]
    made += [out, lse, face._flash_attn_backward(dout, q, k, v, out, lse, *gradients, 0.0, *options, False), *gradients]
    starts = torch.tensor([0, 3, 7], dtype=torch.int32)  # rows 7 and 8 are nobody's
    flat = [x[0] for x in (dout, q, k, v)]
    sizes = starts, starts, 4, 4, 0.0
    out, lse, *_ = face._flash_attn_varlen_forward(*flat[1:], *sizes, *options, False)
    gradients = [torch.full_like(flat[0], 7) for _ in range(3)]
    made.append(face._flash_attn_varlen_backward(*flat, out, lse, *gradients, *sizes, *options, False)[:, :7])
    assert all((one[7:] == 7).all() for one in gradients), "rows of no sequence were written"
    return [*made, out[:7], lse[:, :7], *(one[:7] for one in gradients)]


def of_pages() -> list[Any]:
    from tilekiln.compat import flash_attn

    q, k, v = drawn(7, 2), drawn(4, 16, 2), drawn(4, 16, 2)
    table = torch.tensor([[0, 3], [2, 1]], dtype=torch.int32)
    starts = [torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 7], [0, 20, 50])]
    made = []
    for softcap in (0.0, 20.0):
        options = {"softcap": softcap, "causal": True, "block_table": table, "return_attn_probs": True}
        made += flash_attn.flash_attn_varlen_func(q, k, v, *starts, 4, 30, **options)[:2]
    return made


def of_caches() -> list[Any]:
    from tilekiln.compat import flash_attn

    made = []
    lengths = torch.tensor([5, 20], dtype=torch.int32)
    angle = torch.rand(28, 16, device="cpu").to(torch.get_default_device())
    for softcap, appended, lse in itertools.product((0.0, 20.0), (0, 2), (False, True)):
        q, k_cache, v_cache = drawn(2, 3, 2), drawn(2, 32, 2), drawn(2, 32, 2)
        before = q.clone()
        new = {}
        if appended:
            new = {"k": drawn(2, 2, 2), "v": drawn(2, 2, 2), "rotary_cos": angle.cos(), "rotary_sin": angle.sin()}
        options = {"softcap": softcap, "causal": True, "return_softmax_lse": lse, "cache_seqlens": lengths, **new}
        out = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, **options)
        assert torch.equal(q, before)
        made += [*(out if lse else [out]), k_cache, v_cache]
    return made


@pytest.mark.parametrize("calls", [of_functions, of_private_functions, of_pages, of_caches])
def test_head_dims_are_filled_up_where_kernels_read_eight_elements(
    calls: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As flash_attn does, with the scale of the headdim that was given; what is written are the given elements."""
    from tilekiln.compat.flash_attn import _arguments

    torch.manual_seed(3)
    with torch.device("cpu"):
        plain_results = calls()
    asked: list[Any] = []

    def reads_vectors(tensor: Any) -> bool:
        asked.append(tensor)
        return True

    monkeypatch.setattr(_arguments, "reads_vectors", reads_vectors)
    torch.manual_seed(3)
    results = calls()
    assert asked
    for ours, plain in zip(results, plain_results, strict=True):
        assert ours.shape == plain.shape
        torch.testing.assert_close(ours.cpu(), plain, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("rows", "queries", "causal", "most"),
    [(40, 3, True, 32), (32, 5, True, 29), (20, 5, True, 17), (20, 5, False, 20), (3, 5, True, 32)],
)
def test_a_rotary_table_bounds_what_grows(rows: int, queries: int, causal: bool, most: int) -> None:
    """A cache of 32 on a device: a sequence that grows by 2 cannot have positions that the table lacks."""
    from tilekiln.compat import flash_attn

    def call(empty: Any, ints: Any) -> Any:
        q, cache, new = empty(2, queries, 4, 64), empty(2, 32, 4, 64), empty(2, 2, 4, 64)
        tables = empty(rows, 16), empty(rows, 16)
        options = {"cache_seqlens": ints(2), "causal": causal}
        return flash_attn.flash_attn_with_kvcache(q, cache, cache.clone(), new, new, *tables, **options)

    assert [longest for _, _, longest in traced(call, "meta")] == [most]


FACTORIES = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "tensor", "zeros"}
OF_THE_HOST = {
    "compat/aiter/_arguments.py",  # absent results, and what a generator has drawn, which stays on the host
    "compat/aiter/_kernels.py",
    "compat/aiter/ops/mha.py",
    "compat/flash_attn/flash_attn_interface.py",
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
