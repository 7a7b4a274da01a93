# SPDX-License-Identifier: MIT
"""Index arrays that stay on a device: with max_seqlen_q and max_seqlen_k they are read when the call has its turn."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import tilekiln as tk

from tests.python.test_paper_device import TARGETS, WHERE, Made, Paper, ints, noise, zeros


@pytest.fixture(scope="module")
def flash(load: Made) -> tk.Library:
    return load("flash", targets=TARGETS, where=WHERE)


class Case(NamedTuple):
    operator: str
    arrays: dict[str, np.ndarray]
    index: dict[str, np.ndarray]
    results: dict[str, np.ndarray]
    longest: dict[str, int]
    options: dict[str, Any]
    wrong: tuple[str, list[int], str]  # an index array, what it says instead, and what is said of that


def table(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int32)


GROUPS = {"cu_seqlens_q": ints(0, 20, 50), "cu_seqlens_k": ints(0, 41, 80)}
DECREASES = ("cu_seqlens_q", [0, 60, 50], "cu_seqlens_q: must not decrease, but entry 2 is 50 after 60")
BOTH = {"max_seqlen_q": 30, "max_seqlen_k": 48}


def half(*shape: int) -> np.ndarray:
    return noise(*shape).astype(np.float16)


def backward(**options: Any) -> Case:
    q, k, v, out = noise(50, 4, 32), noise(80, 2, 32), noise(80, 2, 32), noise(50, 4, 32)
    arrays = {"dout": noise(50, 4, 32), "q": q, "k": k, "v": v, "out": out, "lse": noise(4, 50)}
    results = {"dq": np.zeros_like(q), "dk": np.zeros_like(k), "dv": np.zeros_like(v)}
    return Case("fmha_bwd", arrays, GROUPS, results, BOTH, options, DECREASES)


def cases() -> Iterator[tuple[str, Case]]:
    yield "backward", backward(causal=True)
    yield "backward, deterministic", backward(deterministic=True, workers=8)
    rows = {"q": noise(50, 4, 32), "k": noise(80, 2, 32), "v": noise(80, 2, 32)}
    out, lse = {"out": zeros(50, 4, 32)}, {"lse": zeros(4, 50)}
    yield "splits", Case("fmha_fwd_splitkv", rows, GROUPS, out | lse, BOTH, {"num_splits": 2}, DECREASES)
    cache = {"k": noise(4, 16, 2, 32), "v": noise(4, 16, 2, 32)}
    places = {"block_table": table([3, 1], [0, 2]), "seqlen_k": ints(30, 17), "cache_batch_idx": ints(1, 0)}
    yield (
        "splits of pages",
        Case(
            "fmha_fwd_splitkv",
            {"q": noise(2, 3, 4, 32)} | cache,
            places | {"cache_leftpad": ints(2, 16)},
            {"out": zeros(2, 3, 4, 32)},
            {"max_seqlen_q": 3, "max_seqlen_k": 32},
            {"num_splits": 3, "causal": True},
            ("block_table", [3, 1, 4, 2], "block_table: entry (1, 0) was 4, must be from 0 to 3: k has 4 pages"),
        ),
    )
    halves = {name: array.astype(np.float16) for name, array in cache.items()}
    gaps = {"cu_seqlens_q": ints(0, 2, 5), "seqstart_k": ints(3, 1), "seqlen_k": ints(20, 30)}
    yield (
        "gaps",
        Case(
            "fmha_fwd_pagedkv",
            {"q": half(5, 4, 32)} | halves,
            gaps | {"block_table": places["block_table"]},
            {"out": np.zeros((5, 4, 32), np.float16)},
            {"max_seqlen_q": 3, "max_seqlen_k": 30},
            {"is_gappy": True},
            ("seqlen_k", [20, 31], "max_seqlen_k: was 30, must be at least 31, the longest sequence"),
        ),
    )
    yield (
        "prefill",
        Case(
            "fmha_batch_prefill",
            {"q": half(5, 4, 32)} | halves,
            gaps | {"block_table": places["block_table"]},
            {"out": np.zeros((5, 4, 32), np.float16)},
            {"max_seqlen_q": 3, "max_seqlen_k": 30},
            {"causal": True},
            ("seqlen_k", [20, -1], "seqlen_k: entry 1 was -1, must be from 0 to 536870912"),
        )._replace(
            index={"cu_seqlens_q": ints(0, 2, 5), "block_table": places["block_table"], "seqlen_k": ints(20, 30)}
        ),
    )
    new = {"knew": noise(2, 3, 2, 32), "vnew": noise(2, 3, 2, 32)}
    angles = {"rotary_cos": noise(29, 16), "rotary_sin": noise(29, 16)}
    grown = {"block_table": table([3, 1], [0, 2]), "seqlen_k": ints(20, 10)}
    too_long = ("seqlen_k", [27, 10], "max_seqlen_k: was 29, must be at least 30, the longest sequence")
    yield (
        "append",
        Case("fmha_fwd_appendkv", new, grown, cache, {"max_seqlen_k": 29}, {}, too_long),
    )
    yield (
        "append and attend",
        Case(
            "fmha_fwd_appendkv",
            new | angles,
            grown,
            cache | {"q": noise(2, 3, 4, 32), "out": zeros(2, 3, 4, 32)},
            {"max_seqlen_k": 29},
            {"num_splits": 2, "causal": True},
            too_long,
        ),
    )


CASES = dict(cases())


@pytest.mark.parametrize("name", CASES)
def test_they_are_read_when_the_stream_has_come_to_the_call(name: str, flash: tk.Library) -> None:
    case = CASES[name]
    call = getattr(flash, case.operator)
    expected = {name: array.copy() for name, array in case.results.items()}
    call(**case.arrays, **case.index, **expected, **case.longest, **case.options)
    arrays = {name: Paper(array) for name, array in case.arrays.items()}
    results = {name: Paper(array) for name, array in case.results.items()}
    index = {name: Paper(np.full_like(array, -7)) for name, array in case.index.items()}
    given = arrays | results | index | case.longest | case.options

    def write() -> None:
        for name, array in case.index.items():
            index[name].seen[...] = array

    other = np.empty((1, 1, 1, 32), np.float32)
    with tk.Stream() as stream:
        gate = threading.Event()
        flash.fmha_fwd(other, other, other, stream=stream)  # launch_host has a queue from the first call on
        stream.launch_host(lambda: gate.wait(60))
        stream.launch_host(write)
        call(**given, stream=stream)
        gate.set()
    for name, array in expected.items():
        assert np.array_equal(array.view(np.uint8), results[name].seen.view(np.uint8)), name
        assert np.any(array != case.results[name])
    # Wrong values in them are told when they are read, before anything is written.
    wrong, says, said = case.wrong
    index[wrong].seen.reshape(-1)[...] = says
    before = {name: paper.seen.copy() for name, paper in results.items()}
    with pytest.raises(tk.ArgumentError) as caught:
        call(**given)
    assert str(caught.value) == said
    for name, array in before.items():
        assert np.array_equal(array, results[name].seen), name
    if "max_seqlen_q" in case.longest:
        with pytest.raises(tk.ArgumentError, match=r"^max_seqlen_k: was 0, must be given with max_seqlen_q$"):
            call(**given | {"max_seqlen_k": 0})
    # Lengths in the host's memory are read at once, and what the arguments say must be true.
    with pytest.raises(tk.ArgumentError) as at_once:
        call(**case.arrays, **case.index, **expected, **case.options, **dict.fromkeys(case.longest, 1))
    assert str(at_once.value).startswith(("max_seqlen_q: was 1, must be", "max_seqlen_k: was 1, must be"))


def test_the_size_of_a_workspace_is_enough_for_any_lengths(flash: tk.Library) -> None:
    case = CASES["backward, deterministic"]
    index = {name: Paper(np.full_like(array, -7)) for name, array in case.index.items()}
    papers = {name: Paper(array) for name, array in (case.arrays | case.results).items()}
    options = case.longest | case.options
    most = flash.fmha_bwd_workspace_size(**papers, **index, **options)
    needed = flash.fmha_bwd_workspace_size(**case.arrays, **case.results, **case.index, **case.options)
    assert needed <= most < 4 * needed
    for name, array in case.index.items():
        index[name].seen[...] = array
    flash.fmha_bwd(**papers, **index, **options, workspace=Paper(np.zeros(most, np.uint8)))
    expected = {name: array.copy() for name, array in case.results.items()}
    flash.fmha_bwd(**case.arrays, **case.index, **expected, **case.options)
    for name, array in expected.items():
        assert np.array_equal(array, papers[name].seen), name
    with pytest.raises(tk.ArgumentError, match=rf"^workspace: had {most - 1} bytes, must have {most}$"):
        flash.fmha_bwd(**papers, **index, **options, workspace=Paper(np.zeros(most - 1, np.uint8)))


def test_rows_of_the_rotation_for_every_length_there_may_be(flash: tk.Library) -> None:
    case = CASES["append and attend"]
    papers = {name: Paper(array) for name, array in (case.arrays | case.results).items()}
    index = {name: Paper(np.full_like(array, -7)) for name, array in case.index.items()}
    said = r"^rotary_cos: had 29 positions, must have 30: max_seqlen_k lets a sequence grow to that length$"
    with pytest.raises(tk.ArgumentError, match=said):
        flash.fmha_fwd_appendkv(**papers, **index, max_seqlen_k=30)
    with pytest.raises(
        tk.ArgumentError, match=r"^max_seqlen_k: was 2, must be at least 3, the new keys of a sequence$"
    ):
        flash.fmha_fwd_appendkv(**papers, **index, max_seqlen_k=2)


@contextmanager
def captured() -> Iterator[None]:
    """As long as it lasts, streams of the paper device are recorded."""
    file = os.memfd_create("tilekiln-paper-captured")
    os.ftruncate(file, 1)
    try:
        with mmap.mmap(file, 1):
            yield
    finally:
        os.close(file)


def test_what_the_host_reads_is_refused_while_a_stream_is_captured(flash: tk.Library) -> None:
    """Before anything is enqueued: the capture goes on."""
    rows, out = [Paper(noise(n, 2, 32)) for n in (50, 80, 80)], Paper(zeros(50, 2, 32))
    device = {name: Paper(array) for name, array in GROUPS.items()}
    said = (
        r"^stream: was being captured into a graph, must not be while the host reads cu_seqlens_q: give max_seqlen_q "
        r"and max_seqlen_k, and index arrays on paper:0$"
    )
    with captured():
        for index in (device, GROUPS):
            with pytest.raises(tk.ArgumentError, match=said):
                flash.fmha_fwd(*rows, out=out, **index)
            with tk.Stream() as stream, pytest.raises(tk.ArgumentError, match=said):
                flash.fmha_fwd(*rows, out=out, **index, stream=stream)
        assert not np.any(out.seen)
        flash.fmha_fwd(*rows, out=out, **device, **BOTH)
    expected = flash.fmha_fwd(*(paper.seen.copy() for paper in rows), **GROUPS)
    assert np.array_equal(expected, out.seen)
    flash.fmha_fwd(*rows, out=out, **GROUPS)
    append = CASES["append"]
    papers = {name: Paper(array) for name, array in (append.arrays | append.results | append.index).items()}
    with captured(), pytest.raises(tk.ArgumentError, match=r"reads seqlen_k: give max_seqlen_k, and index arrays on"):
        flash.fmha_fwd_appendkv(**papers)


def test_groups_of_a_product_during_a_capture(load: Made) -> None:
    library = load("gemm_default", targets=TARGETS, where="dtype=fp32")
    a, b, starts = Paper(noise(8, 32)), Paper(noise(2, 32, 64)), ints(0, 3, 8)
    expected = library.grouped_gemm(a.seen.copy(), b.seen.copy(), starts)
    for read in (starts, Paper(starts)):  # by the host, whose functions this device's engines are
        out = Paper(zeros(8, 64))
        library.grouped_gemm(a, b, read, out=out)
        assert np.array_equal(expected, out.seen)
    with (
        captured(),
        pytest.raises(
            tk.ArgumentError, match=r"^stream: was being captured into a graph, must not be: the host reads starts$"
        ),
    ):
        library.grouped_gemm(a, b, starts, out=Paper(zeros(8, 64)))
