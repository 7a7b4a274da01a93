# SPDX-License-Identifier: MIT
"""fmha_mla_decode against its reference: every ISA, pages, masks, splits, special values, memory, bad input."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS
from tilekiln.reference import drawn, mla

from tests.python.guard import guarded
from tests.python.rows import instances

DTYPES = FLOATS | {"bf16_fp8": FLOATS["bf16"]}
SCALE = 192**-0.5


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("flash", targets="all", where="family=fmha_mla_decode")


def problem(
    dtype: str, heads: int, keys: tuple[int, ...], queries: int = 1, hdim: int = 576, page: int = 0
) -> dict[str, Any]:
    """Arguments: sequences of so many keys, in scattered pages of `page` keys or in one array."""
    random = np.random.default_rng([heads, *keys, queries, page])
    kind, room = DTYPES[dtype], max(keys)
    blocks = -(-room // page) if page else 0
    shape = (len(keys) * blocks + 2, page, hdim) if page else (len(keys), room, hdim)
    cache = random.standard_normal(shape, np.float32).astype(kind)
    given: dict[str, Any] = {
        "q": random.standard_normal((len(keys), queries, heads, hdim), np.float32).astype(kind),
        "cache": mla.packed(cache) if dtype == "bf16_fp8" else cache,
        "seqlen_k": np.array(keys, np.int32),
        "softmax_scale": SCALE,
    }
    if page:
        pages = random.permutation(shape[0])[: len(keys) * blocks]
        given["block_table"] = pages.reshape(len(keys), blocks).astype(np.int32)
    return given


def compare(lib: tk.Library, given: dict[str, Any], **how: Any) -> tuple[Any, Any]:
    out, lse = lib.fmha_mla_decode(**given, **how, return_lse=True)
    assert mla.answer(given, {"out": out, "lse": lse}) <= 1
    return out, lse


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [0, 1, 48, 64])
def test_every_isa(lib: tk.Library, dtype: str, page: int) -> None:
    for one in instances(lib, "fmha_mla_decode", dtype=dtype):
        compare(lib, problem(dtype, 20, (70, 0, 131), page=page), instance=one)
        compare(lib, problem(dtype, 24, (3, 66), queries=3, page=page) | {"causal": True}, instance=one, num_splits=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 16, 40, 128])
def test_heads_are_rows_of_one_product(lib: tk.Library, dtype: str, heads: int) -> None:
    compare(lib, problem(dtype, heads, (200, 65)))
    compare(lib, problem(dtype, heads, (130,), queries=4, page=16) | {"causal": True})


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("hdim", "hdim_v"), [(1, 1), (7, 5), (48, 32), (67, 67), (576, 512), (576, 576), (520, 3)])
def test_rows_of_any_width(lib: tk.Library, dtype: str, hdim: int, hdim_v: int) -> None:
    for one in instances(lib, "fmha_mla_decode", dtype=dtype):
        compare(lib, problem(dtype, 5, (67, 9), 2, hdim) | {"hdim_v": hdim_v, "causal": True}, instance=one)


def test_the_value_is_512_of_a_row_unless_it_is_shorter(lib: tk.Library) -> None:
    for hdim, width in ((576, 512), (512, 512), (48, 48)):
        assert lib.fmha_mla_decode(**problem("fp32", 2, (5,), hdim=hdim)).shape == (1, 1, 2, width)


def test_queries_beyond_the_keys_see_none(lib: tk.Library) -> None:
    given = problem("fp32", 3, (2, 0), queries=4) | {"causal": True}
    out, lse = compare(lib, given)
    assert (out[0, :2] == 0).all()
    assert (lse[0, :, :2] == -np.inf).all()
    assert (out[0, 2:] != 0).all()
    assert np.isfinite(lse[0, :, 2:]).all()
    assert (out[1] == 0).all()
    assert (lse[1] == -np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads_pages_or_streams(lib: tk.Library, dtype: str) -> None:
    given = problem(dtype, 16, (1900, 700), queries=2, page=64) | {"causal": True}
    one = lib.fmha_mla_decode(**given, num_threads=1)
    with tk.Stream() as stream:
        later = lib.fmha_mla_decode(**given, stream=stream)
    plain = dict(given)
    table = plain.pop("block_table")
    plain["cache"] = np.stack([given["cache"][row].reshape(-1, given["cache"].shape[-1]) for row in table])
    for made in (lib.fmha_mla_decode(**given, num_threads=2), later, lib.fmha_mla_decode(**plain, num_threads=2)):
        assert made.tobytes() == one.tobytes()


@pytest.mark.parametrize("num_splits", [1, 2, 7, 128])
def test_splits_differ_by_rounding(lib: tk.Library, num_splits: int) -> None:
    compare(lib, problem("fp32", 17, (400, 3, 0), queries=2, page=16) | {"causal": True}, num_splits=num_splits)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_what_a_hidden_key_holds_takes_no_part(lib: tk.Library, dtype: str) -> None:
    """Queries of 5 heads end within a vector of rows, so that a lane's neighbours see keys that it does not."""
    given = problem(dtype, 5, (40, 66), queries=3) | {"causal": True}
    clean = [np.asarray(one, np.float32) for one in lib.fmha_mla_decode(**given, return_lse=True)]
    for bad in (np.nan, np.inf):
        given["cache"][0, 39], given["cache"][1, 65], given["cache"][0, 40:] = bad, bad, bad
        for one in instances(lib, "fmha_mla_decode", dtype=dtype):
            out, lse = lib.fmha_mla_decode(**given, return_lse=True, instance=one)
            assert np.isnan(np.asarray(out, np.float32)[:, 2]).all()
            assert np.isnan(lse[:, :, 2]).all()
            ours = lib.fmha_mla_decode(**problem(dtype, 5, (40, 66), queries=3) | {"causal": True}, instance=one)
            np.testing.assert_array_equal(np.asarray(out, np.float32)[:, :2], np.asarray(ours, np.float32)[:, :2])
    assert np.isfinite(clean[0]).all()


@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-30, 3e3])
def test_any_finite_scale(lib: tk.Library, scale: float) -> None:
    compare(lib, problem("fp32", 4, (70,), hdim=40) | {"softmax_scale": scale})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, dtype: str, where: str) -> None:
    for page in (0, 5):
        given = problem(dtype, 3, (66, 7), queries=2, page=page) | {"causal": True}
        given |= {
            name: guarded(given[name], where) for name in ("q", "cache", "seqlen_k", "block_table") if name in given
        }
        out = guarded(np.zeros((2, 2, 3, 512), DTYPES[dtype]), where)
        for one in instances(lib, "fmha_mla_decode", dtype=dtype):
            lib.fmha_mla_decode(**given, out=out, instance=one)
            assert mla.answer(given, {"out": out}) <= 1


def test_arrays_may_have_strides(lib: tk.Library) -> None:
    given = problem("bf16", 6, (70, 33), queries=2, page=16)
    plain = lib.fmha_mla_decode(**given)
    wide = np.zeros((*given["cache"].shape[:2], 600), given["cache"].dtype)
    wide[..., 11:587] = given["cache"]
    turned = np.ascontiguousarray(given["q"].transpose(2, 1, 0, 3)).transpose(2, 1, 0, 3)
    room = np.full((2, 2, 6, 520), 7, given["q"].dtype)
    lib.fmha_mla_decode(**given | {"cache": wide[..., 11:587], "q": turned}, out=room[..., 4:516])
    assert room[..., 4:516].tobytes() == plain.tobytes()
    assert (room[..., :4] == 7).all()
    assert (room[..., 516:] == 7).all()


def test_a_row_of_fp8_is_what_the_page_says() -> None:
    rows = np.random.default_rng(0).standard_normal((9, 576), np.float32) * np.float32(3)
    packed = mla.packed(rows)
    assert packed.shape == (9, 656)
    back = mla.unpacked(packed).astype(np.float32)
    np.testing.assert_array_equal(back[:, 512:], rows[:, 512:].astype(ml_dtypes.bfloat16).astype(np.float32))
    largest = np.abs(rows[:, :512].reshape(9, 4, 128)).max(-1).repeat(128, -1)
    assert (np.abs(back[:, :512] - rows[:, :512]) <= largest * (2.0**-4 + 2.0**-8)).all()


def test_drawn_calls(lib: tk.Library) -> None:
    for seed in range(40):
        dtype = list(DTYPES)[seed % 4]
        call = drawn.draw("fmha_mla_decode", drawn.Random(seed, drawn.EDGES["cpu"]), {"dtype": dtype})
        lib.fmha_mla_decode(**call.given, **call.made)
        assert mla.answer(call.given, call.made) <= 1, str(call)


@pytest.mark.parametrize("hdim", [16, 576])
def test_memory_does_not_grow_with_queries_times_keys(lib: tk.Library, hdim: int) -> None:
    """32,768 keys under 32 queries of 16 heads: a matrix of scores would be 64 MB; parts of results are 8.4 at most.

    With rows of 576 a copy of the cache would be seen too: 18 billion multiply-adds, eight minutes of an emulator.
    """
    if hdim == 576 and "HOST_PYTHON" in os.environ:
        pytest.skip("an emulator runs it with narrow rows alone")
    given = problem("bf16", 16, (32768,), queries=32, hdim=hdim) | {"causal": True}
    out = np.zeros((1, 32, 16, min(hdim, 512)), ml_dtypes.bfloat16)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak()
    lib.fmha_mla_decode(**given, out=out, num_threads=2)
    assert _peak() - before <= 16 << 20


def _peak() -> int:
    """Bytes of this process that were in memory at most."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"hdim_v": 577}, "hdim_v: was 577, must be 0 (512, or hdim_q where that is less) or from 1 to 576"),
    ({"cache": np.zeros((2, 9, 500), np.float32)}, "cache: width was 500, must be 576, the hdim of q"),
    ({"cache": np.zeros((3, 9, 576), np.float32)}, "cache: batch was 3, must be 2, the batch of q"),
    ({"cache": np.zeros((2, 9, 576), np.float16)}, "cache: dtype was fp16, must be fp32, the dtype of q"),
    ({"cache": np.zeros((2, 9, 656), ml_dtypes.float8_e4m3fn)}, "cache: dtype was fp8, must be fp32, the dtype of q"),
    ({"seqlen_k": np.array([9, 10], np.int32)}, "seqlen_k: entry 1 was 10, must be from 0 to 9, the seqlen of cache"),
    ({"seqlen_k": np.array([-1, 9], np.int32)}, "seqlen_k: entry 0 was -1, must be from 0 to 9"),
    ({"seqlen_k": np.array([9], np.int32)}, "seqlen_k: had 1 entries, must have 2"),
    ({"softmax_scale": float("nan")}, "softmax_scale: was nan, must be finite"),
    ({"num_splits": 129}, "num_splits: was 129, must be 0 (chosen from the sizes) or from 1 to 128"),
    (
        {"block_table": np.array([[0], [2]], np.int32)},
        "block_table: entry (1, 0) was 2, must be from 0 to 1, the last page of cache",
    ),
    ({"block_table": np.zeros((1, 1), np.int32)}, "block_table: batch was 1, must be 2, the batch of q"),
    ({"out": np.zeros((2, 1, 4, 576), np.float32)}, "out: shape was (2, 1, 4, 576), must be (2, 1, 4, 512)"),
]


@pytest.mark.parametrize(("changes", "sentence"), CHANGES, ids=[sentence for _, sentence in CHANGES])
def test_bad_input_is_refused_in_words_before_anything_is_written(
    lib: tk.Library, changes: dict[str, Any], sentence: str
) -> None:
    given = problem("fp32", 4, (9, 9))
    out = np.full((2, 1, 4, 512), 7, np.float32)
    with pytest.raises(tk.ArgumentError) as raised:
        lib.fmha_mla_decode(**{**given, "out": out, **changes})
    assert str(raised.value).startswith(sentence)
    assert (out == 7).all()


def test_rows_of_fp8_ask_for_their_shape(lib: tk.Library) -> None:
    given = problem("bf16_fp8", 4, (9, 9))
    for changes, sentence in (
        ({"cache": given["cache"][..., :576]}, "cache: width was 576, must be 656, the bytes of a row of fp8"),
        ({"q": given["q"][..., :512]}, "q: hdim was 512, must be 576 with a cache of fp8"),
        ({"hdim_v": 500}, "hdim_v: was 500, must be 512 with a cache of fp8"),
    ):
        with pytest.raises(tk.ArgumentError) as raised:
            lib.fmha_mla_decode(**given | changes)
        assert str(raised.value).startswith(sentence)
