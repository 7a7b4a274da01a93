"""tk.attention and sdpa of few queries: split-KV by the forward's declaration, the same results to rounding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tilekiln._core.dtypes import NUMPY, WORDS

pytestmark = pytest.mark.usefixtures("binding")
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
OPTIONS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"causal": True, "mask_origin": "top_left"}, {"window": (9, 2)}, {"alibi_slopes": (4,)},
    {"softmax_scale": 0.3, "layout": "bhsd"}, {"softcap": 0.0},
    {"softcap": 3.0},
]  # fmt: skip
LACKED = OPTIONS[-1:]
"""Features of flash in the forward alone."""


@pytest.fixture
def called(load, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that were run."""
    import tilekiln.api.operators as facade

    monkeypatch.setattr(facade, "_at_hand", lambda: [load("flash")])
    monkeypatch.setattr(facade, "_served", {})
    names: list[str] = []
    plain = facade._choose

    def choose(operator: str, *given: Any) -> Any:
        names.append(operator)
        return plain(operator, *given)

    monkeypatch.setattr(facade, "_choose", choose)
    return names


def problem(queries: int, keys: int, dtype: str, options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    random = np.random.default_rng(queries * 1000 + keys)
    kind = NUMPY[WORDS[dtype]]
    shapes = (2, queries, 4, 32), (2, keys, 2, 32), (2, keys, 2, 32)
    if options.get("layout") == "bhsd":
        shapes = tuple((b, h, s, d) for b, s, h, d in shapes)  # type: ignore[assignment]
    arrays = [random.standard_normal(shape).astype(np.float32).astype(kind) for shape in shapes]
    given = dict(options)
    if "alibi_slopes" in given:
        given["alibi_slopes"] = random.random(given["alibi_slopes"]).astype(np.float32)
    return arrays, given


CASES = list(itertools.product(OPTIONS, TOLERANCE))


@pytest.mark.parametrize(("options", "dtype"), CASES, ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_it_is_what_the_forward_gives(options: dict[str, Any], dtype: str, load, called: list[str]) -> None:
    import tilekiln as tk

    forward = load("flash").fmha_fwd
    for queries, keys in ((1, 8), (1, 300), (3, 70), (4, 9)):
        arrays, given = problem(queries, keys, dtype, options)
        ours, wanted = (call(*arrays, return_lse=True, **given) for call in (tk.attention, forward))
        for one, other in zip(ours, wanted, strict=True):
            one, other = one.astype(np.float32), other.astype(np.float32)
            np.testing.assert_array_equal(np.isinf(one), np.isinf(other))
            np.testing.assert_allclose(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert tk.attention(*arrays, **given).shape == ours[0].shape
    assert set(called) == {"fmha_fwd_splitkv", *(["fmha_fwd"] if options in LACKED else [])}


def test_other_calls_go_to_the_forward(called: list[str]) -> None:
    """More queries, heads that are few but no queries, few keys, dropout, lengths, and libraries without split-KV."""
    import tilekiln as tk

    arrays, _ = problem(5, 40, "float32", {})
    tk.attention(*arrays)
    heads_first, _ = problem(40, 40, "float32", {"layout": "bhsd"})
    tk.attention(*heads_first, layout="bhsd")
    tk.attention(*problem(1, 7, "float32", {})[0])
    few, _ = problem(1, 40, "float32", {})
    tk.attention(*few, dropout_p=0.5, rng=(1, 2))
    tk.attention(*few, seqlen_k=np.array([3, 40], np.int32))
    assert set(called) == {"fmha_fwd"}
    with pytest.raises(tk.ArgumentError, match="k: batch was 3"):
        tk.attention(few[0], *(np.concatenate([one, one[:1]]) for one in few[1:]))


def test_one_query_of_many_heads(called: list[str], load) -> None:
    """As decode, whatever the number of keys: units of 16 lanes of queries would be empty but for one."""
    import tilekiln as tk

    q, k, v = (np.random.default_rng(i).standard_normal((2, 1, 8, 32), np.float32) for i in range(3))
    np.testing.assert_allclose(tk.attention(q, k, v), load("flash").fmha_fwd(q, k, v), atol=1e-6)
    assert called == ["fmha_fwd_splitkv"]
    tk.attention(q[:, :, :7], k[:, :, :7], v[:, :, :7])
    assert called == ["fmha_fwd_splitkv", "fmha_fwd"]


def test_sdpa_of_one_query(called: list[str]) -> None:
    torch = pytest.importorskip("torch")
    from tilekiln.torch import sdpa

    q, k, v = (torch.randn(2, heads, tokens, 64) for heads, tokens in ((8, 1), (2, 200), (2, 200)))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(sdpa(q, k, v, enable_gqa=True), wanted, atol=1e-5, rtol=1e-5)
    assert set(called) == {"fmha_fwd_splitkv"}
    q.requires_grad_()
    sdpa(q, k, v, enable_gqa=True).sum().backward()
    assert "fmha_fwd" in called
