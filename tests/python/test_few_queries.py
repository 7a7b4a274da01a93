# SPDX-License-Identifier: MIT
"""Few queries: split-KV answers every entry of fmha_fwd by its declaration, with the same results to rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY, WORDS

TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
OPTIONS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"causal": True, "mask_origin": "top_left"}, {"window": (9, 2)}, {"alibi_slopes": (4,)},
    {"softmax_scale": 0.3, "layout": "bhsd"}, {"softcap": 0.0},
    {"softcap": 3.0},
]  # fmt: skip
LACKED = OPTIONS[-1:]
"""Features of flash in the forward alone."""


@pytest.fixture(autouse=True)
def only_flash(flash: tk.Library, finds: Callable[..., None]) -> None:
    finds(flash)


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


def family(library: tk.Library, *arrays: Any, **given: Any) -> str:
    """The family of the kernel that a call of fmha_fwd takes."""
    name = library.instance_name(library.fmha_fwd_find(*arrays, **given))
    return "fmha_fwd_splitkv" if name.startswith("fmha_fwd_splitkv") else "fmha_fwd"


def forwards(library: tk.Library, *arrays: Any, **given: Any) -> int:
    """The instance of fmha_fwd for a call, were its queries more."""
    axis = 2 if given.get("layout") == "bhsd" else 1
    return int(library.fmha_fwd_find(np.concatenate([arrays[0]] * 9, axis), *arrays[1:], **given))


CASES = list(itertools.product(OPTIONS, TOLERANCE))


@pytest.mark.parametrize(("options", "dtype"), CASES, ids=lambda one: one if isinstance(one, str) else "-".join(one))
def test_it_is_what_the_forward_gives(options: dict[str, Any], dtype: str, flash: tk.Library) -> None:
    for queries, keys in ((1, 8), (1, 300), (3, 70), (4, 9)):
        arrays, given = problem(queries, keys, dtype, options)
        given["return_lse"] = True
        wanted = flash.fmha_fwd(*arrays, instance=forwards(flash, *arrays, **given), **given)
        expected = "fmha_fwd" if options in LACKED else "fmha_fwd_splitkv"
        assert family(flash, *arrays, **given) == expected
        assert f"chosen: {expected}_" in flash.fmha_fwd_why(*arrays, **given)
        for call in (tk.attention, flash.fmha_fwd):
            ours = call(*arrays, **given)
            for one, other in zip(ours, wanted, strict=True):
                one, other = one.astype(np.float32), other.astype(np.float32)
                np.testing.assert_array_equal(np.isinf(one), np.isinf(other))
                np.testing.assert_allclose(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_other_calls_stay_the_forwards(flash: tk.Library) -> None:
    """More queries, heads that are few but no queries, few keys, dropout, lengths, packed sequences."""
    arrays, _ = problem(5, 40, "float32", {})
    heads_first, _ = problem(40, 40, "float32", {"layout": "bhsd"})
    few, _ = problem(1, 40, "float32", {})
    starts = {"cu_seqlens_q": np.array([0, 1, 2], np.int32), "cu_seqlens_k": np.array([0, 40, 80], np.int32)}
    for given, options in (
        (arrays, {}),
        (heads_first, {"layout": "bhsd"}),
        (problem(1, 7, "float32", {})[0], {}),
        (few, {"dropout_p": 0.5, "rng": (1, 2)}),
        (few, {"seqlen_k": np.array([3, 40], np.int32)}),
        ([one.reshape(-1, *one.shape[2:]) for one in few], starts),
    ):
        assert family(flash, *given, **options) == "fmha_fwd"
    with pytest.raises(tk.ArgumentError, match="k: batch was 3"):
        tk.attention(few[0], *(np.concatenate([one, one[:1]]) for one in few[1:]))


def test_a_library_without_split_kv_is_taken_last(
    flash: tk.Library, load: Callable[..., tk.Library], finds: Callable[..., None]
) -> None:
    """fp32_min has the forward alone, which takes 3 times as long for a token."""
    other = load("fp32_min")
    finds(other, flash)
    few = [np.random.default_rng(i).standard_normal((2, (1, 300, 300)[i], 2, 128), np.float32) for i in range(3)]
    assert family(other, *few) == "fmha_fwd"
    np.testing.assert_array_equal(tk.attention(*few), flash.fmha_fwd_splitkv(*few))


def test_an_instance_by_number_is_its_operators(flash: tk.Library) -> None:
    """The number that fmha_fwd_find gives is taken back; one of the forward makes the call the forward's."""
    few, _ = problem(2, 40, "float32", {})
    split, forward = flash.fmha_fwd_find(*few), forwards(flash, *few)
    assert flash.fmha_fwd_find(*few, instance=split) == split
    assert flash.fmha_fwd_find(*few, instance=forward) == forward
    np.testing.assert_array_equal(flash.fmha_fwd(*few, instance=split), flash.fmha_fwd_splitkv(*few))
    many, _ = problem(40, 40, "float32", {})
    with pytest.raises(tk.ArgumentError, match=r"^instance: was .*, must be one of fmha_fwd$"):
        flash.fmha_fwd(*many, instance=split)


def test_one_query_of_many_heads(flash: tk.Library) -> None:
    """As decode, whatever the number of keys: units of 16 lanes of queries would be empty but for one."""
    q, k, v = (np.random.default_rng(i).standard_normal((2, 1, 8, 32), np.float32) for i in range(3))
    assert family(flash, q, k, v) == "fmha_fwd_splitkv"
    fewer = [one[:, :, :7] for one in (q, k, v)]
    assert family(flash, *fewer) == "fmha_fwd"
    np.testing.assert_allclose(tk.attention(q, k, v)[:, :, :7], tk.attention(*fewer), atol=1e-6)


def _torch(call: str) -> Callable[[tk.Library, list[Any]], Any]:
    def run(library: tk.Library, arrays: list[Any]) -> Any:
        torch = pytest.importorskip("torch")
        import tilekiln.torch

        q, k, v = (torch.from_numpy(one) for one in arrays)
        if call == "ops":
            return torch.ops.tilekiln.fmha_fwd(q, k, v)[0].numpy()
        if call == "compile":
            return torch.compile(tk.attention, backend="aot_eager")(q, k, v).numpy()
        heads_first = (one.transpose(1, 2) for one in (q, k, v))
        return tilekiln.torch.sdpa(*heads_first, enable_gqa=True).transpose(1, 2).numpy()

    return run


def _jax(library: tk.Library, arrays: list[Any]) -> Any:
    jax = pytest.importorskip("jax")
    import tilekiln.jax

    return np.asarray(jax.jit(tilekiln.jax.attention)(*arrays))


def _stream(library: tk.Library, arrays: list[Any]) -> Any:
    stream = tk.Stream()
    made = library.fmha_fwd(*arrays, stream=stream)
    stream.synchronize()
    return made


ENTRIES: dict[str, Callable[[tk.Library, list[Any]], Any]] = {
    "library": lambda library, arrays: library.fmha_fwd(*arrays),
    "attention": lambda _, arrays: tk.attention(*arrays),
    "stream": _stream,
    "ops": _torch("ops"),
    "sdpa": _torch("sdpa"),
    "compile": _torch("compile"),
    "jax": _jax,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_takes_the_split_kernel(entry: str, flash: tk.Library, request: pytest.FixtureRequest) -> None:
    """By the bits of the result: those of fmha_fwd_splitkv, and not the forward's."""
    if entry == "jax":
        pytest.importorskip("jax")
        request.getfixturevalue("jax_handlers")
    arrays, _ = problem(2, 333, "float32", {})
    made = ENTRIES[entry](flash, arrays)
    np.testing.assert_array_equal(made, flash.fmha_fwd_splitkv(*arrays))
    assert (made != flash.fmha_fwd(*arrays, instance=forwards(flash, *arrays))).any()
