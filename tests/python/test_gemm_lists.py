# SPDX-License-Identifier: MIT
"""gemm_multi_d, batched_gemm and grouped_gemm against float64, on every ISA, with what is theirs alone."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import gemm as reference

from tests.python.guard import guarded
from tests.python.test_gemm import DTYPES, TARGETS, draw, out_like

F32 = np.float32
FLOATS = [dtype for dtype in DTYPES if dtype != "int8"]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


@pytest.fixture(scope="module")
def multi_d(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_multi_d", targets="all")


@functools.cache
def instances(library: tk.Library, operator: str) -> dict[int, Any]:
    return {one.number: one for one in library.instances(f"family={operator}")}


def kernel(library: tk.Library, operator: str, target: str, *arrays: np.ndarray, **arguments: Any) -> int:
    """The instance of a target that answers a call."""
    every = instances(library, operator)
    found = every[getattr(library, f"{operator}_find")(*arrays, **arguments)]
    of_target = (one for one in every.values() if one.algorithm["target"] == target)
    number = next(one.number for one in of_target if one.signature == found.signature)
    if not library.instance_usable(number):
        pytest.skip(f"this machine has no {target}")
    return number


def check(out: np.ndarray, expected: reference.Result) -> None:
    fault = reference.faults(out, expected)
    assert not fault, fault


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_multi_d(multi_d: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    layouts = itertools.cycle(itertools.product((False, True), repeat=4))
    for (m, n, k), count, op in itertools.product([(7, 70, 33), (13, 64, 300), (3, 5, 0)], (1, 2), ("add", "multiply")):
        of_a, of_b, of_out, of_d = next(layouts)
        a, b = draw(random, m, k, dtype, of_a), draw(random, k, n, dtype, of_b)
        for shape in ((m, n), (1, n), (m, 1)):
            ds = [draw(random, *shape, dtype, of_d), draw(random, m, n, dtype, not of_d)][:count]
            call = {"elementwise": op, "activation": "silu", "alpha": 0.5, **({"d1": ds[1]} if count == 2 else {})}
            out = out_like(m, n, dtype, of_out)
            number = kernel(multi_d, "gemm_multi_d", target, a, b, ds[0], out=out, **call)
            expected = reference.gemm_multi_d(a, b, ds, elementwise=op, activation="silu", alpha=0.5)
            assert multi_d.gemm_multi_d(a, b, ds[0], out=out, instance=number, **call) is out
            check(out, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_multi_abd(multi_d: tk.Library, dtype: str) -> None:
    """Each side alone and both, of every layout and broadcast shape; strides of a1 and b1 are any."""
    random = np.random.default_rng(5)
    layouts = itertools.cycle(itertools.product((False, True), repeat=4))
    for m, n, k in [(7, 70, 33), (1, 5, 64), (3, 5, 0)]:
        for (a_op, b_op), a_shape, b_shape in zip(
            itertools.product(("add", "multiply"), repeat=2),
            [(m, k), (m, 1), (1, k), None],
            [(k, n), None, (k, 1), (1, n)],
            strict=True,
        ):
            of_a, of_b, of_out, of_more = next(layouts)
            a, b = draw(random, m, k, dtype, of_a), draw(random, k, n, dtype, of_b)
            d, out = draw(random, m, n, dtype, False), out_like(m, n, dtype, of_out)
            more = {"a_elementwise": a_op, "b_elementwise": b_op, "activation": "gelu", "alpha": 0.5}
            for name, shape in (("a1", a_shape), ("b1", b_shape)):
                if shape:
                    more[name] = np.repeat(draw(random, *shape, dtype, of_more), 2, axis=1)[:, ::2]
            for threads in (1, 3):
                assert multi_d.gemm_multi_d(a, b, d, out=out, num_threads=threads, **more) is out
                check(out, reference.gemm_multi_d(a, b, [d], **more))
    with pytest.raises(tk.ArgumentError, match=r"^b1: k was 3, must be 0, the k of a, or 1"):
        multi_d.gemm_multi_d(a, b, d, b1=draw(random, 3, 5, dtype, False))
    square = np.zeros((5, 5), b.dtype)
    with pytest.raises(tk.ArgumentError, match=r"^out: shares memory with a1"):
        multi_d.gemm_multi_d(b.T, b, np.ones((5, 5), b.dtype), a1=square[:1, :1], out=square)


def test_multi_d_in_place_and_guarded(multi_d: tk.Library) -> None:
    random = np.random.default_rng(2)
    a, b, row = (guarded(draw(random, *shape, "bf16", False), "after") for shape in ((7, 33), (33, 70), (1, 70)))
    d = guarded(draw(random, 7, 70, "bf16", False), "after")
    expected = reference.gemm_multi_d(a, b, [d, row])
    assert multi_d.gemm_multi_d(a, b, d, d1=row, out=d) is d
    check(d, expected)
    with pytest.raises(tk.ArgumentError, match="out: shares memory with d1"):
        multi_d.gemm_multi_d(a, b, d, d1=d, out=d)
    with pytest.raises(tk.ArgumentError, match="d0: n was 7, must be 70, the n of b, or 1"):
        multi_d.gemm_multi_d(a, b, d[:, :7])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_batched(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    layouts = itertools.cycle(itertools.product((False, True), repeat=3))
    for batch, m, n, k in [(3, 7, 70, 33), (2, 1, 64, 5), (5, 33, 3, 129), (0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 4, 0)]:
        of_a, of_b, of_out = next(layouts)

        def several(count: int, rows: int, columns: int, column_major: bool) -> np.ndarray:
            one = draw(random, count * rows, columns, dtype, False).reshape(count, rows, columns)
            return one.transpose(0, 2, 1).copy().transpose(0, 2, 1) if column_major else one

        a, b = several(batch, m, k, of_a), several(batch, k, n, of_b)
        whole = (
            np.stack([out_like(m, n, dtype, of_out)] * (2 * batch)) if batch else out_like(m, n, dtype, False)[None][:0]
        )
        out = whole[::2]
        extra = {} if dtype == "int8" else {"bias": random.standard_normal(n).astype(F32), "activation": "relu"}
        for x, y in ((a, b), (np.broadcast_to(a[:1], a.shape), b), (a, np.broadcast_to(b[:1], b.shape))):
            for c in (None,) if dtype == "int8" else (None, several(batch, m, n, not of_out)):
                added = {} if c is None else {"c": c, "beta": -0.5}
                number = kernel(library, "batched_gemm", target, x, y, out=out, **extra, **added)
                assert library.batched_gemm(x, y, out=out, instance=number, **extra, **added) is out
                for i in range(batch):
                    of_one = {} if c is None else {"c": c[i], "beta": -0.5}
                    check(out[i], reference.gemm(x[i], y[i], **extra, **of_one))
                assert (whole[1::2] == 77).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_grouped(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(4)
    for sizes, n, k in [([3, 0, 7, 50], 70, 33), ([1], 5, 64), ([0, 0], 5, 64), ([2] * 100, 6, 3), ([], 4, 4)]:
        rows, groups = 1 + sum(sizes) + 2, len(sizes)
        starts = np.cumsum([1, *sizes], dtype=np.int32)
        a, b = draw(random, rows, k, dtype, False), draw(random, groups * k, n, dtype, False).reshape(groups, k, n)
        if k == 64:
            b = b.transpose(0, 2, 1).copy().transpose(0, 2, 1)
        bias = random.standard_normal((groups, n)).astype(F32)
        out = out_like(rows, n, dtype, False)
        number = kernel(library, "grouped_gemm", target, a, b, starts, out=out, bias=bias, activation="gelu")
        library.grouped_gemm(a, b, starts, out=out, bias=bias, activation="gelu", instance=number)
        for g in range(groups):
            rows_of = slice(starts[g], starts[g + 1])
            check(out[rows_of], reference.gemm(a[rows_of], b[g], bias=bias[g], activation="gelu"))
        assert (np.concatenate([out[:1], out[starts[-1] :]]) == 77).all()
        made = library.grouped_gemm(a, b, starts, bias=bias, activation="gelu")
        assert (np.concatenate([made[:1], made[starts[-1] :]]) == 0).all()
        c = guarded(draw(random, rows, n, dtype, False), "after")
        number = kernel(library, "grouped_gemm", target, a, b, starts, c=c, beta=2.0)
        made = library.grouped_gemm(a, b, starts, c=c, beta=2.0, instance=number)
        for g in range(groups):
            rows_of = slice(starts[g], starts[g + 1])
            check(made[rows_of], reference.gemm(a[rows_of], b[g], c[rows_of], beta=2.0))


@pytest.mark.parametrize("target", TARGETS)
def test_grouped_fp8_with_factors_of_blocks(load: Callable[..., tk.Library], target: str) -> None:
    """Of groups that count no more than some of their rows, as those of masked layouts."""
    library, random = load("gemm_fp8", targets="all"), np.random.default_rng(8)
    for sizes, n, k in [([3, 0, 7, 250], 140, 300), ([1], 1, 1), ([5, 9], 5, 0)]:
        groups, rows, blocks = len(sizes), 1 + sum(sizes) + 2, -(-k // 128)
        starts = np.cumsum([1, *sizes], dtype=np.int32)
        counts = np.array([random.integers(0, size + 1) for size in sizes], np.int32)
        a = draw(random, rows, k, "fp8", False)
        b = draw(random, groups * n, k, "fp8", False).reshape(groups, n, k).transpose(0, 2, 1)
        a_scale = guarded(random.standard_normal((rows, blocks)).astype(F32), "after") if blocks else None
        b_scale = random.standard_normal((groups, -(-n // 128), blocks)).astype(F32)
        call = {"a_scale": np.zeros((rows, 0), F32) if a_scale is None else a_scale, "b_scale": b_scale}
        bias, out = random.standard_normal((groups, n)).astype(F32), out_like(rows, n, "bf16", False)
        call |= {"bias": bias, "activation": "silu", "counts": counts}
        number = kernel(library, "grouped_gemm", target, a, b, starts, out=out, **call)
        library.grouped_gemm(a, b, starts, out=out, instance=number, **call)
        free = np.ones(rows, bool)
        for g, (first, count) in enumerate(zip(starts, counts, strict=False)):
            own = slice(first, first + count)
            free[own] = False
            of = {"a_scale": call["a_scale"][own], "b_scale": b_scale[g], "dtype": "bf16"}
            check(out[own], reference.gemm(a[own], b[g], bias=bias[g], activation="silu", **of))
        assert (out[free] == 77).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"counts": np.array([1, 4], np.int32)},
            "counts: entry 1 was 4, must be 0 or above and at most 3, the rows of",
        ),
        ({"counts": np.array([-1, 3], np.int32)}, "counts: entry 0 was -1, must be 0 or above and at most 2"),
        ({"a_scale": None, "b_scale": None}, "a_scale: was null, must be given, as b_scale, with a of fp8"),
        ({"a_scale": np.zeros((5, 1), F32)}, "a_scale: shape was (5, 1), must be (5, 2)"),
        ({"b_scale": np.zeros((2, 2, 1), F32)}, "b_scale: shape was (2, 2, 1), must be (2, 1, 2)"),
    ],
)
def test_bad_groups_of_fp8(load: Callable[..., tk.Library], change: dict[str, Any], text: str) -> None:
    a, b = np.zeros((5, 130), NUMPY["fp8"]), np.zeros((2, 7, 130), NUMPY["fp8"]).transpose(0, 2, 1)
    call = {"a_scale": np.zeros((5, 2), F32), "b_scale": np.zeros((2, 1, 2), F32), **change}
    with pytest.raises(tk.ArgumentError) as error:
        load("gemm_fp8", targets="all").grouped_gemm(a, b, np.array([0, 2, 5], np.int32), **call)
    assert str(error.value).startswith(text), str(error.value)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_grouped_with_packed_weights(library: tk.Library, target: str, dtype: str) -> None:
    random = np.random.default_rng(6)
    for sizes, n, k in [([3, 0, 7, 250], 70, 33), ([1], 5, 64), ([0, 0], 5, 64), ([2] * 100, 6, 3), ([], 4, 4)]:
        rows, groups = 1 + sum(sizes) + 2, len(sizes)
        starts = np.cumsum([1, *sizes], dtype=np.int32)
        a = draw(random, rows, k, dtype, False)
        weight = draw(random, groups * n, k, dtype, False).reshape(groups, n, k)
        packed = tk.PackedWeight(weight)
        assert packed.unpack().tobytes() == weight.tobytes()
        panels, width = packed.panels, packed.panels.shape[1] * 64
        if groups:  # groups apart from each other, the last before a guard page
            apart = np.empty((groups, 2, *panels.shape[1:]), panels.dtype)[:, 1]
            apart[:] = panels
            panels = apart if groups % 2 else guarded(panels, "after")
        bias, c = np.zeros((groups, width), F32), draw(random, rows, width, dtype, False)
        bias[:, :n] = random.standard_normal((groups, n))
        call = {
            "bias": bias.reshape(groups, width // 64, 64),
            "c": c.reshape(rows, width // 64, 64),
            "activation": "silu",
        }
        number = kernel(library, "grouped_gemm", target, a, panels, starts, **call)
        made = library.grouped_gemm(a, panels, starts, instance=number, **call).reshape(rows, width)[:, :n]
        for g in range(groups):
            rows_of = slice(starts[g], starts[g + 1])
            want = reference.gemm(a[rows_of], weight[g].T, c[rows_of, :n], bias=bias[g, :n], activation="silu")
            check(made[rows_of], want)
        assert (np.concatenate([made[:1], made[starts[-1] :]]) == 0).all()
        plain = library.grouped_gemm(a, weight.transpose(0, 2, 1), starts)
        alone = library.grouped_gemm(a, panels, starts).reshape(rows, width)
        check(alone[starts[0] : starts[-1], :n], reference.Result(plain[starts[0] : starts[-1]], np.full((1, 1), 0.05)))


def test_out_may_be_c(library: tk.Library) -> None:
    random = np.random.default_rng(7)
    a, b = draw(random, 6, 9, "fp32", False), draw(random, 9, 70, "fp32", False)
    want = reference.gemm(a, b, c := draw(random, 6, 70, "fp32", False), beta=0.5)
    starts = np.array([0, 6], np.int32)
    panels = tk.PackedWeight(b.T.copy()).panels
    for run, more in (
        (lambda c, out: library.batched_gemm(a[None], b[None], c=c, beta=0.5, out=out), (1,)),
        (lambda c, out: library.grouped_gemm(a, b[None], starts, c=c, beta=0.5, out=out), ()),
    ):
        both = c.copy().reshape(*more, 6, 70)
        assert run(both, both) is both
        check(both.reshape(6, 70), want)
        with pytest.raises(tk.ArgumentError, match="out: shares memory with c"):
            run(both[..., ::-1, :], both)
    both = np.zeros((6, 2, 64), F32)
    both.reshape(6, 128)[:, :70] = c
    for run in (
        lambda c, out: library.flatmm(a, panels, c=c, beta=0.5, out=out),
        lambda c, out: library.grouped_gemm(a, panels[None], starts, c=c, beta=0.5, out=out),
    ):
        out = both.copy()
        assert run(out, out) is out
        check(out.reshape(6, 128)[:, :70], want)


PANELS = np.zeros((2, 1, 6, 64, 1), F32)
PACKED = [
    ({"b": PANELS[:, :, :5]}, "b: words was 5, must be 6, the k of a by word elements"),
    ({"b": PANELS[:, :, :, :32]}, "b: lane count was 32, must be 64, always"),
    ({"b": np.zeros((2, 1, 6, 64, 2), F32)}, "b: word elements was 2, must be 1, those of fp16 and fp32"),
    ({"b": np.zeros((2, 2, 6, 64, 1), F32)[:, ::2]}, ""),
    ({"b": np.zeros((2, 1, 12, 64, 1), F32)[:, :, ::2]}, "b: stride of dimension 2 was 128, must be 64"),
    ({"c": np.zeros((5, 2, 64), F32)}, "c: panels was 2, must be 1, the panel count of b"),
]


@pytest.mark.parametrize(("change", "text"), PACKED)
def test_bad_panels_of_groups(library: tk.Library, change: dict[str, Any], text: str) -> None:
    call: dict[str, Any] = {"b": PANELS, **change}
    b = call.pop("b")
    if not text:
        assert library.grouped_gemm(np.zeros((5, 6), F32), b, np.array([0, 3, 5], np.int32)).shape == (5, 1, 64)
        return
    with pytest.raises(tk.ArgumentError) as error:
        library.grouped_gemm(np.zeros((5, 6), F32), b, np.array([0, 3, 5], np.int32), **call)
    assert str(error.value).startswith(text), str(error.value)


def test_same_bits_for_any_threads(library: tk.Library) -> None:
    random = np.random.default_rng(5)
    a, b = (draw(random, 6 * 130, size, "bf16", False).reshape(6, 130, size) for size in (130, 300))
    one = library.batched_gemm(a, b, num_threads=1)
    starts = np.array([0, 400, 401, 401, 600, 700, 780], np.int32)
    grouped = library.grouped_gemm(a.reshape(780, 130), b, starts, num_threads=1)
    for threads in (2, 5):
        assert library.batched_gemm(a, b, num_threads=threads).tobytes() == one.tobytes()
        again = library.grouped_gemm(a.reshape(780, 130), b, starts, num_threads=threads)
        assert again.tobytes() == grouped.tobytes()
    stream = tk.Stream()
    later = library.grouped_gemm(a.reshape(780, 130), b, starts, stream=stream)
    starts[:] = 0  # read before the call returned
    stream.synchronize()
    assert later.tobytes() == grouped.tobytes()


STARTS = [
    ([0, 2], "starts: groups + 1 was 2, must be 3, the group count of b and 1"),
    ([-1, 2, 3], "starts: entry 0 was -1, must be at least 0, the first row"),
    ([0, 3, 2], "starts: entry 2 was 2, must be at least 3, the one before"),
    ([0, 3, 9], "starts: entry 2 was 9, must be at most 5, the row count of a"),
]


@pytest.mark.parametrize(("starts", "text"), STARTS, ids=[str(starts) for starts, _ in STARTS])
def test_bad_starts(library: tk.Library, starts: list[int], text: str) -> None:
    with pytest.raises(tk.ArgumentError) as error:
        library.grouped_gemm(np.zeros((5, 4), F32), np.zeros((2, 4, 3), F32), np.array(starts, np.int32))
    assert str(error.value) == text


def test_bad_batches(library: tk.Library) -> None:
    a = np.zeros((2, 4, 4), F32)
    with pytest.raises(tk.ArgumentError, match="b: batch was 3, must be 2, the batch of a"):
        library.batched_gemm(a, np.zeros((3, 4, 4), F32))
    with pytest.raises(tk.ArgumentError, match=r"a: strides were \(\d+, 2\), one of them must be 1"):
        library.batched_gemm(np.zeros((2, 8, 8), F32)[:, ::2, ::2], a)
    with pytest.raises(tk.ArgumentError, match="out: "):
        library.batched_gemm(a, a, out=np.broadcast_to(np.zeros((1, 4, 4), F32), (2, 4, 4)))
    with pytest.raises(tk.ArgumentError, match="alpha: was 2, must be 1 when a is int8"):
        library.batched_gemm(a.astype(np.int8), a.astype(np.int8), alpha=2.0)
