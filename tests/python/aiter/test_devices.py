# SPDX-License-Identifier: MIT
"""Calls of tilekiln.compat.aiter in a trace: kernels, nothing of the host for another device, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
HALF = torch.bfloat16


def _rope(a: Any, t: Callable[..., Any]) -> Any:
    x, cos = t(7, 2, 3, 16), t(9, 1, 1, 8, dtype=torch.float32)
    return a.rope_cached_positions_fwd(x, cos, cos, t(7, 2, dtype=torch.int64), 0, True, False)


def _pair(a: Any, t: Callable[..., Any]) -> Any:
    return a.rope_fwd(t(7, 2, 3, 16), t(7, 1, 1, 16, dtype=torch.float32), 1, False, True)


def _quant(a: Any, t: Callable[..., Any]) -> Any:
    return a.per_group_quant_hip(t(6, 256), quant_dtype=torch.float8_e4m3fn)


def _norm(a: Any, t: Callable[..., Any]) -> Any:
    x = t(6, 64)
    return a.rmsnorm2d_fwd_with_add(t(6, 64), x, t(6, 64), t(6, 64), t(64), 1e-6)


def _gated(a: Any, t: Callable[..., Any]) -> Any:
    return a.silu_and_mul(t(6, 32), t(6, 64))


def _routed(a: Any, t: Callable[..., Any]) -> Any:
    weights, ids = t(6, 4, dtype=torch.float32), t(6, 4, dtype=torch.int32)
    return a.topk_gating(weights, ids, t(6, 16), None, True, 1.0, "sigmoid")


def _experts(a: Any, t: Callable[..., Any]) -> Any:
    from tilekiln.compat.aiter.fused_moe import fused_moe

    ids, weights = t(6, 4, dtype=torch.int32), t(6, 4, dtype=torch.float32)
    return fused_moe(t(6, 32), t(8, 48, 32), t(8, 32, 24), weights, ids)


def _product(a: Any, t: Callable[..., Any]) -> Any:
    scale = t(6, 1, dtype=torch.float32), t(1, 16, dtype=torch.float32)
    return a.gemm_a8w8(t(6, 32, dtype=torch.float8_e4m3fn), t(16, 32, dtype=torch.float8_e4m3fn), *scale)


def _paged(a: Any, t: Callable[..., Any]) -> Any:
    key, value = t(12, 2, 8, 16, 8), t(12, 2, 2, 64, 8)
    return a.pa_fwd_asm(t(3, 4, 64), key, value, t(3, 5, dtype=torch.int32), t(3, dtype=torch.int32), 5)


def _lines(a: Any, t: Callable[..., Any]) -> Any:
    cache, table = t(12, 16, 2, 64), t(3, 5, dtype=torch.int32)
    given = t(3, 4, 64), t(0), t(3, 4, 64), cache, cache, 0.1, table, None, t(3, dtype=torch.int32), 80, None
    return a.paged_attention_v1(*given, "auto", "NHD", 0.0, t(1), t(1))


@pytest.mark.parametrize(
    ("call", "operators"),
    [
        (_rope, ["rotary"]), (_pair, ["rotary", "rotary"]), (_quant, ["smoothquant"]), (_norm, ["rmsnorm2d"]),
        (_gated, ["silu_and_mul"]), (_routed, ["topk_gating"]), (_experts, ["fused_moe"]), (_product, ["gemm"]),
        (_paged, ["fmha_batch_prefill"]), (_lines, ["fmha_fwd_splitkv"]),
    ],
)  # fmt: skip
def test_calls_stay_on_their_device(call: Callable[..., Any], operators: list[str]) -> None:
    import tilekiln.compat.aiter as face
    from torch.fx.experimental.proxy_tensor import make_fx

    def room(*shape: int, dtype: Any = HALF) -> Any:
        return torch.empty(shape, dtype=dtype, device="meta")

    graph = make_fx(lambda _: call(face, room))(room(1)).graph
    found, away = [], []
    for node in graph.nodes:
        made = node.meta.get("val")
        away += [node.name for one in (made if isinstance(made, tuple | list) else [made])
                 if isinstance(one, torch.Tensor) and one.device.type != "meta"]  # fmt: skip
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.name.startswith("tilekiln::"):
            found.append(schema.name.removeprefix("tilekiln::").removesuffix("_out"))
    assert found == operators
    assert away == []


def test_compiled(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torch.compile(fullgraph=True) results in place and new ones are the same bits."""
    from tests.python.aiter.calls import normal, over

    face = over(monkeypatch, load("norm_default"), load("aiter"))

    def layer(x: Any, weight: Any, residual: Any, cos: Any, at: Any) -> Any:
        out, total, gated = torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[0], 32)
        face.rmsnorm2d_fwd_with_add(out, x, residual, total, weight, 1e-6)
        face.silu_and_mul(gated, out)
        heads = out.view(2, 3, 4, 16)
        turned = face.rope_cached_positions_fwd(heads, cos, cos, at, 0, True, True)
        back = face.rope_cached_bwd(turned, cos, cos, 1, False, False)
        return out, total, gated, *face.per_token_quant_hip(gated), turned, back

    def decode(q: Any, key: Any, value: Any, table: Any, lengths: Any) -> Any:
        return (face.pa_fwd_asm(q, key, value, table, lengths, 2),)

    ints = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    places = torch.tensor([[3, 0, 8], [1, 2, 2]])
    calls = (
        (layer, (normal(6, 64), normal(64, seed=1), normal(6, 64, seed=2), normal(9, 1, 1, 4), places)),
        (decode, (normal(2, 4, 64, dtype=HALF), normal(6, 2, 8, 16, 8, dtype=HALF), normal(6, 2, 2, 64, 8, dtype=HALF),
                  ints, torch.tensor([20, 9], dtype=torch.int32))),
    )  # fmt: skip
    for function, given in calls:
        moved = [x.to(given[0].device) for x in given]
        want = function(*moved)
        made = torch.compile(function, fullgraph=True, backend="aot_eager")(*moved)
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(made, want, strict=True))
