# SPDX-License-Identifier: MIT
"""gemm_list and `tilekiln.grouped_gemm` of lists against float64, on every ISA, with what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import gemm as reference

from tests.python.guard import guarded
from tests.python.test_gemm import TARGETS, draw
from tests.python.test_gemm_lists import FLOATS, check, kernel

F32 = np.float32
SIZES = [(3, 70, 33), (0, 5, 6), (1, 64, 5), (17, 3, 0), (5, 1, 129), (9, 0, 4), (65, 130, 64)]


@pytest.fixture(scope="module")
def library(load: Callable[..., tk.Library]) -> tk.Library:
    return load("gemm_default", targets="all")


@pytest.fixture
def at_hand(library: tk.Library, finds: Callable[..., None]) -> None:
    finds(library)


def flat(matrices: list[np.ndarray], columns: bool) -> tuple[np.ndarray, list[int], list[int]]:
    """One array before a guard page, where each begins and its stride; a line more lies between lines."""
    lines = [m.T if columns else m for m in matrices]
    wide = [np.concatenate([one, one[:, :1]], axis=1) if one.shape[1] else one for one in lines]
    parts = [one.ravel() for one in wide]
    whole = np.concatenate(parts) if parts else np.zeros(0, F32)
    if lines and lines[-1].size:
        whole = whole[:-1]  # the last element is beyond what is read
    starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
    return guarded(whole, "after"), starts, [one.shape[1] for one in wide]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("target", TARGETS)
def test_against_float64(library: tk.Library, target: str, dtype: str) -> None:
    products_of(library, target, dtype)


def products_of(library: tk.Library, target: str, dtype: str) -> None:
    random, bytes_of = np.random.default_rng(1), dtype in ("int8", "fp8")
    to = {"int8": "int32", "fp8": "bf16"}.get(dtype, dtype)
    for of_a, of_b in ((False, False), (False, True), (True, False), (True, True)):
        left = [draw(random, m, k, dtype, False) for m, n, k in SIZES]
        right = [draw(random, k, n, dtype, False) for m, n, k in SIZES]
        biases = [random.standard_normal(n).astype(F32) for m, n, k in SIZES]
        a, a_starts, lda = flat(left, of_a)
        b, b_starts, ldb = flat(right, of_b)
        outs = np.cumsum([2, *(m * (n + 3) for m, n, k in SIZES)])
        problems = np.array(
            [
                [m, n, k, a_starts[i], lda[i], b_starts[i], ldb[i], outs[i], n + 3, sum(len(x) for x in biases[:i])]
                for i, (m, n, k) in enumerate(SIZES)
            ]
        )
        out = np.full(outs[-1], 77, NUMPY[to])
        given: dict[str, Any] = {"activation": "gelu", "alpha": 0.5} if dtype != "int8" else {}
        call: dict[str, Any] = {
            **given,
            **({"bias": np.concatenate(biases)} if given else {}),
            "layout_a": "column" if of_a else "row",
            "layout_b": "column" if of_b else "row",
        }
        number = kernel(library, "gemm_list", target, a, b, problems, out=out, **call)
        assert library.gemm_list(a, b, problems, out=out, instance=number, **call) is out
        for i, (m, n, _) in enumerate(SIZES):
            rows = out[outs[i] : outs[i + 1]].reshape(m, n + 3)
            more = {**given, "bias": biases[i]} if given else {}
            check(rows[:, :n], reference.gemm(left[i], right[i], dtype=to if bytes_of else None, **more))
            assert (rows[:, n:] == 77).all()
        made = library.gemm_list(a, b, problems, out_length=len(out), instance=number, num_threads=3, **call)
        assert made[:2].tolist() == [0, 0]
        assert ((made == out) | ((made == 0) & (out == 77))).all()


def test_a_thousand_problems_and_none(library: tk.Library) -> None:
    random = np.random.default_rng(2)
    sizes = random.integers(0, 9, (1000, 3))
    ends = np.cumsum(
        np.stack([sizes[:, 0] * sizes[:, 2], sizes[:, 1] * sizes[:, 2], sizes[:, 0] * sizes[:, 1]]), axis=1
    )
    starts = np.concatenate([np.zeros((3, 1), np.int64), ends[:, :-1]], axis=1)
    a, b = (random.standard_normal(end).astype(F32) for end in ends[:2, -1])
    m, n, k = sizes.T
    problems = np.stack([m, n, k, starts[0], k, starts[1], k, starts[2], n, 0 * n], axis=1)
    out = library.gemm_list(a, b, problems, out_length=int(ends[2, -1]))
    for i, (rows, columns, depth) in enumerate(sizes.tolist()):
        one = a[starts[0, i] : ends[0, i]].reshape(rows, depth)
        other = b[starts[1, i] : ends[1, i]].reshape(columns, depth)
        check(out[starts[2, i] : ends[2, i]].reshape(rows, columns), reference.gemm(one, other.T))
    assert library.gemm_list(a, b, problems[:0], out_length=3).tolist() == [0, 0, 0]
    shared = np.array([[2, 3, 4, 0, 4, 0, 4, 0, 3, 0], [2, 3, 4, 3, -1, 0, 0, 12, -3, 0]])  # any strides but of out
    both = library.gemm_list(a, b, shared, out_length=15)
    check(both[:6].reshape(2, 3), reference.gemm(a[:8].reshape(2, 4), b[:12].reshape(3, 4).T))
    backwards = np.stack([a[3:7], a[2:6]])
    check(both[9:15].reshape(2, 3)[::-1], reference.gemm(backwards, np.stack([b[:4]] * 3).T))


GOOD = [2, 3, 4, 0, 4, 0, 4, 0, 3, 0]
COLUMNS = ["m", "n", "k", "a", "lda", "b", "ldb", "out", "ld_out", "bias"]
BIG = 2**62


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"m": -1}, "problems: m of problem 1 was -1, must be from 0 to 2147483647"),
        ({"k": 2**31}, "problems: k of problem 1 was 2147483648, must be from 0 to 2147483647"),
        ({"ld_out": 2}, "problems: ld_out of problem 1 was 2, must be at least its n, 3, or at most -n"),
        ({"a": 93}, "problems: a of problem 1 was 93 and reaches element 100, must stay in a, whose length is 100"),
        ({"a": -1}, "problems: a of problem 1 was -1 and reaches element -1, must stay in a, whose length is 100"),
        ({"lda": BIG}, f"problems: a of problem 1 was 0 and reaches element {BIG + 3}, must stay in a"),
        ({"ldb": -1}, "problems: b of problem 1 was 0 and reaches element -2, must stay in b, whose length is 100"),
        ({"ldb": -BIG}, f"problems: b of problem 1 was 0 and reaches element {-(2**63)}, must stay in b"),
        ({"out": 100}, "problems: out of problem 1 was 100 and reaches element 105, must stay in out"),
        ({"bias": 98}, "problems: bias of problem 1 was 98 and reaches element 100, must stay in bias"),
        ({"out": 3}, "out: shares memory between problems, must have its own for each"),
    ],
)
def test_bad_problems(library: tk.Library, changes: dict[str, int], sentence: str) -> None:
    a, bias, out = np.ones(100, F32), np.ones(100, F32), np.full(100, 7, F32)
    other = [changes.get(name, 50 if name == "out" else GOOD[i]) for i, name in enumerate(COLUMNS)]
    with pytest.raises(tk.ArgumentError) as raised:
        library.gemm_list(a, a, np.array([GOOD, other]), bias=bias, out=out)
    assert str(raised.value).startswith(sentence)
    assert (out == 7).all()


def test_out_shares_no_memory_with_what_is_read(library: tk.Library) -> None:
    whole, other = np.ones(100, F32), np.ones(100, F32)
    apart, onto = ([GOOD, [*GOOD[:7], at, 3, 0]] for at in (50, 5))
    library.gemm_list(whole, other, np.array(apart[1:]), out=whole)  # other elements of the same memory
    with pytest.raises(tk.ArgumentError, match="out: shares memory with a, must have its own"):
        library.gemm_list(whole, other, np.array(onto[1:]), out=whole)
    woven = np.array([[2, 3, 4, 0, 4, 0, 4, at, 6, 0] for at in (0, 3)])
    library.gemm_list(other, other, woven, out=whole)  # columns of one matrix
    table = np.array([GOOD])
    with pytest.raises(tk.ArgumentError, match="out: shares memory with problems, must have its own"):
        library.gemm_list(other, other, table, out=table.view(F32).reshape(-1))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.usefixtures("at_hand")
def test_lists_of_arrays(kind: str) -> None:
    as_kind: Callable[[Any], Any] = lambda x: x  # noqa: E731
    if kind == "torch":
        as_kind = pytest.importorskip("torch").from_numpy
    random = np.random.default_rng(3)
    left = [draw(random, m, k, "fp32", False) for m, n, k in SIZES]
    weights = [draw(random, n, k, "fp32", False) for m, n, k in SIZES]
    biases = [random.standard_normal(n).astype(F32) for m, n, k in SIZES]
    a, w, bias = ([as_kind(one) for one in many] for many in (left, weights, biases))
    out = tk.grouped_gemm(a, [one.T for one in w], bias=bias, activation="relu")
    assert all(type(one) is type(a[0]) for one in out)
    wide = [as_kind(np.full((m, n + 1), 7, F32)) for m, n, k in SIZES]
    places = [one[:, :-1] for one in wide]
    same = tk.grouped_gemm(a, [one.T for one in w], bias=bias, activation="relu", out=places)
    for i, one in enumerate(out):
        check(np.asarray(one), reference.gemm(left[i], weights[i].T, bias=biases[i], activation="relu"))
        assert same[i] is places[i]
        assert (np.asarray(places[i]) == np.asarray(one)).all()
        assert (np.asarray(wide[i])[:, -1] == 7).all()
    shared = tk.grouped_gemm([a[0], a[0]], [w[0].T, w[0].T])
    assert (np.asarray(shared[0]) == np.asarray(shared[1])).all()
    assert tk.grouped_gemm([], []) == []
    starts = as_kind(np.array([0, 2, 3], np.int32))
    check(
        np.asarray(tk.grouped_gemm(a[0], as_kind(np.stack([weights[0]] * 2)).swapaxes(1, 2), starts)),
        reference.gemm(left[0], weights[0].T),
    )


@pytest.mark.usefixtures("at_hand")
def test_bf16_of_torch() -> None:
    torch = pytest.importorskip("torch")
    a, w = (
        [torch.randn(3, 64).bfloat16(), torch.randn(70, 9).bfloat16()],
        [torch.randn(5, 64).bfloat16(), torch.randn(4, 9).bfloat16()],
    )
    for one, x, y in zip(tk.grouped_gemm(a, [y.T for y in w]), a, w, strict=True):
        torch.testing.assert_close(one, x @ y.T, rtol=2e-2, atol=2e-2)
    a[0].requires_grad_()
    with pytest.raises(tk.ArgumentError, match=r"^a\[0\]: requires grad"):
        tk.grouped_gemm(a, [y.T for y in w])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"b": [np.ones((4, 3), F32)]}, "b: had 1 arrays, must have 2, as many as a"),
        ({"b": [np.ones((4, 3), F32)] * 2}, r"b\[0\]: k was 4, must be 5, the k of a\[0\]"),
        ({"b": [np.ones((5, 3), F32), np.ones((5, 3))]}, r"b\[1\]: dtype was float64, must be float32"),
        ({"b": [np.ones((5, 3), F32), 3]}, r"b\[1\]: was a int, must be an array"),
        ({"b": np.ones((5, 3), F32)}, "b: was a ndarray, must be a list, as a is"),
        ({"b": [np.ones((5, 3), F32), np.ones((3, 5), F32).T]}, "b: had arrays of both layouts or of none"),
        ({"bias": [np.ones(3, F32), np.ones(4, F32)]}, r"bias\[1\]: n was 4, must be 3, the n of b\[1\]"),
        ({"out": [np.ones((2, 3), F32), np.ones((3, 3), F32)]}, r"out\[1\]: shape was \(3, 3\), must be \(2, 3\)"),
        ({"out": [np.ones((2, 3), F32)] * 2}, "out: shares memory between problems"),
        ({"starts": np.zeros(3, np.int32)}, "starts: was given with lists, must be None"),
        ({"beta": 2.0}, "beta: was given with lists, must be left out"),
    ],
)
@pytest.mark.usefixtures("at_hand")
def test_bad_lists(change: dict[str, Any], sentence: str) -> None:
    call: dict[str, Any] = {"a": [np.ones((2, 5), F32)] * 2, "b": [np.ones((5, 3), F32)] * 2}
    with pytest.raises(tk.ArgumentError, match=f"^{sentence}"):
        tk.grouped_gemm(**call | change)


@pytest.mark.usefixtures("at_hand")
def test_operator_of_torch() -> None:
    torch = pytest.importorskip("torch")
    import tilekiln.torch  # noqa: F401

    a, problems = torch.randn(100), torch.tensor([GOOD, [*GOOD[:7], 6, 3, 0]])
    made = torch.compile(lambda *x: torch.ops.tilekiln.gemm_list(*x, out_length=12), backend="aot_eager")(
        a, a, problems
    )
    want = (a[:8].reshape(2, 4) @ a[:12].reshape(3, 4).T).reshape(6)
    torch.testing.assert_close(made, torch.cat([want, want]))
