# SPDX-License-Identifier: MIT
"""Operators on the paper device, whose memory only its own steps may touch: the CPU's results bit for bit."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import CODES, NUMPY
from tilekiln.reference import drawn as drawer

from codegen.emit.operators.cases import Array, Drawn
from tests import cases
from tests.python.capsules import Exported
from tests.python.drawn import OPERATORS, drawn, made, receipt

TARGETS = "cpu-generic,paper-generic"
# Kernels asked: two operators of attention have none of fp32; of what they have, a few lists.
WHERE = (
    "dtype=fp32 hdim_q=32 or family=fmha_mla_decode dtype=fp32 or "
    "family=fmha_fwd_pagedkv dtype=fp16 hdim_q=64 bias=none softcap=no or "
    "family=fmha_batch_prefill dtype=fp16 hdim_q=128 bias=none softcap=no page_size=16 layout=linear lookup=vllm"
)


class Paper:
    """A copy of an array on the paper device, with its strides, and a window through which the test alone sees it."""

    def __init__(self, array: np.ndarray) -> None:
        reach = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
        size = max(1, reach + array.itemsize if array.size else 0)
        file = os.memfd_create("tilekiln-paper")
        os.ftruncate(file, size)
        self._window, self._device = mmap.mmap(file, size), mmap.mmap(file, size, prot=0)
        os.close(file)
        self.seen, self.hidden = (
            np.ndarray(array.shape, array.dtype, memory, 0, array.strides) for memory in (self._window, self._device)
        )
        self.seen[...] = array
        code, bits = CODES[array.dtype.name]
        self._exported = Exported(self.hidden, device_type=12, code=code, bits=bits)
        for index, stride in enumerate(array.strides):
            self._exported.managed.tensor.strides[index] = stride // array.itemsize

    def __dlpack__(self, **options: object) -> object:
        return self._exported.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (12, 0)


class OnPaper(cases.Device):
    """Arrays of drawn problems there."""

    kernels = "_paper_"

    def put(self, array: np.ndarray, written: bool) -> Paper:
        return Paper(array)

    def back(self, there: Paper, like: np.ndarray) -> np.ndarray:
        return there.seen


Made = Callable[..., "tk.Library"]


def both(call: Callable[..., object], results: list[np.ndarray], *arrays: np.ndarray) -> None:
    """`call(*arrays, *results)` on the CPU and on paper: equal bits."""
    papers = [Paper(array) for array in (*arrays, *results)]
    call(*arrays, *results)
    call(*papers)
    for result, paper in zip(results, papers[len(arrays) :], strict=True):
        assert np.any(result != 0)
        assert np.array_equal(result.view(np.uint8), paper.seen.view(np.uint8))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture(scope="module")
def flash(load: Made) -> tk.Library:
    return load("flash", targets=TARGETS, where=WHERE)


def narrow(load: Made, name: str) -> tk.Library:
    """The operator's library, of few instances: one build for all of a receipt."""
    of = receipt(name)
    where = {
        "norm_default": "dtype=fp32 or element=bytes4 or family=moe_sorting",
        "moe_default": "dtype=fp32 or family=moe_sorting",
        "gemm_linear": "family=flatmm_quant,gemm_quant",
    }
    return load(of, targets=TARGETS, where=where.get(of, "dtype=fp32"))


def values(array: Array, name: str) -> np.ndarray:
    """Numbers for an array; of int32: starts of groups, experts."""
    if array.dtype == "int32":
        return np.arange(math.prod(array.shape), dtype=np.int32).reshape(array.shape) // 2
    random = np.random.default_rng(len(name) + sum(array.shape))
    return random.standard_normal(array.shape).astype(NUMPY[array.dtype])


MOVED: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "permute": ({"axes": (2, 0, 1)}, (5, 3, 4)),
    "copy": ({}, (3, 4, 5)),
    "batched_transpose": ({}, (3, 5, 4)),
    "elementwise": ({"operation": "silu"}, (3, 4, 5)),
    "reduce": ({"axes": (1,), "operation": "max"}, (3, 5)),
}
ALONE = {
    *("gemm_list", "batched_contraction", "fmha_fwd", "fmha_fwd_splitkv", "fmha_mla_decode", "img2col", "pooling"),
    *("topk_gating", "topk_softmax", "moe_sorting", "conv_fwd", "conv_bwd_data", "conv_bwd_weight", "pooling_bwd"),
}
"""Operators with tests of their own below."""
FEW_ROWS = ("a_norm", "b_up", "b_up_scale")
"""Arrays of products of few rows on a Hopper GPU, which a launch elsewhere refuses."""
DECLARED = sorted(OPERATORS.keys() - MOVED.keys() - ALONE)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", DECLARED)
def test_as_declared(name: str, flash: tk.Library, load: Made) -> None:
    """Required arrays alone, then as many others as have a kernel; results are compared with the inputs."""
    operator = OPERATORS[name]
    attention = operator.area_room == "kernels/attention"
    dtype = "fp32" if "fp32" in operator.first.dtypes else "fp16"
    library = flash if attention else narrow(load, name)
    call = Drawn(operator, operator.forms[0], drawn(name).lengths | {"D": 32, "Dv": 32}, dtype)

    def numbers(arrays: dict[str, Array]) -> dict[str, np.ndarray]:
        return made(name, {one: values(array, one) for one, array in arrays.items()})

    given, find = numbers(call.required), getattr(library, f"{name}_find")
    known = {a.name: call.array(a) for a in operator.arrays}
    others = {a.name: known[a.name] for a in operator.arrays if a.kind == "array" and a.name not in {*given, *FEW_ROWS}}
    for more in ({}, others):
        for one, array in more.items():
            with suppress(tk.NoKernelError, tk.ArgumentError):
                if array is not None:
                    find(**given | {one: values(array, one)})
                    given[one] = values(array, one)
        wanted = [a for a in operator.results if a.required or (more and given.keys() >= {a.file.needs} - {None})]
        results = {a.name: np.full(array.shape, 7, NUMPY[array.dtype]) for a in wanted if (array := known[a.name])}
        with suppress(tk.NoKernelError):
            find(**given | results)
            same(getattr(library, name), {one: array.copy() for one, array in given.items()} | results)
    assert list(results) or not operator.results


def same(function: Callable[..., object], arrays: dict[str, np.ndarray]) -> None:
    """The call on the CPU and on paper leaves equal bits in every array, and something new in one of them."""
    before = {name: array.copy() for name, array in arrays.items()}
    papers = {name: Paper(array) for name, array in arrays.items()}
    function(**arrays)
    function(**papers)
    for name, array in arrays.items():
        assert np.array_equal(array.view(np.uint8), papers[name].seen.view(np.uint8)), name
    assert any(np.any(array != before[name]) for name, array in arrays.items())


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", [name for name in OPERATORS if drawer.drawer(name)])
def test_drawn_problems(name: str, load: Made, pytestconfig: pytest.Config) -> None:
    """Of every signature in turn, with strides, in place and empty, against float64."""
    library = narrow(load, name)
    held = cases.signatures(library, OnPaper.kernels)
    of = {dtype: signatures for (operator, dtype, _), signatures in held.items() if operator == name}
    assert of
    for dtype, signatures in of.items():
        seed = f"{pytestconfig.option.sample_seed} {dtype}"
        for call in itertools.islice(cases.calls(name, signatures, OnPaper.edges, seed), 12):
            error = cases.share(library, name, call, OnPaper())
            assert error <= 1, f"{error:.3g} times its bound: {name}({call}), seed {seed}"


# Operators whose results have shapes that functions say, and what the declaration does not say of a right call.
@pytest.mark.parametrize("name", MOVED)
def test_results_of_shapes_that_functions_say(name: str, load: Made) -> None:
    function = getattr(narrow(load, name), name)
    options, shape = MOVED[name]
    both(lambda x, y: function(x, y=y, **options), [zeros(*shape)], noise(3, 4, 5))


def test_patches_of_an_image(load: Made) -> None:
    library, image = narrow(load, "img2col"), noise(2, 6, 7, 3)
    both(lambda x, y: library.img2col(x, filter=(3, 2), y=y), [zeros(1, 48, 18)], image)
    library, rows = narrow(load, "batched_contraction"), noise(5, 3)
    both(lambda a, b, out: library.batched_contraction(a, b, out=out), [zeros(2, 6, 7, 5)], image, rows)
    library = narrow(load, "pooling")
    both(lambda x, y: library.pooling(x, window=2, y=y), [zeros(2, 3, 3, 3)], image)
    library, dy, how = narrow(load, "pooling_bwd"), noise(2, 3, 3, 3), {"window": 2, "operation": "mean"}
    both(lambda dy, x, dx: library.pooling_bwd(dy, x, dx=dx, **how), [zeros(2, 6, 7, 3)], dy, image)


def test_the_routing_of_experts(load: Made) -> None:
    library, logits = narrow(load, "topk_softmax"), noise(6, 5)
    weights, ids = library.topk_softmax(logits, topk=2)
    both(
        lambda x, weights, ids: library.topk_softmax(x, weights=weights, indices=ids, topk=2),
        [np.zeros_like(weights), np.zeros_like(ids)],
        logits,
    )
    gating = narrow(load, "topk_gating")
    both(
        lambda x, weights, ids: gating.topk_gating(x, weights=weights, indices=ids, topk=2, score="sigmoid"),
        [np.zeros_like(weights), np.zeros_like(ids)],
        logits,
    )
    options = {"experts": 5, "unit": 4}
    names = ("sorted_token_ids", "sorted_weights", "sorted_expert_ids", "total_tokens_post_pad")
    made = [np.zeros_like(array) for array in library.moe_sorting(ids, weights, **options)]
    both(lambda i, w, *r: library.moe_sorting(i, w, **options, **dict(zip(names, r, strict=True))), made, ids, weights)


def test_a_list_of_products(load: Made) -> None:
    """m, n, k; where a, b and out begin and the strides of their rows; where the bias begins."""
    problems = np.array([[3, 4, 5, 0, 5, 0, 4, 0, 4, 0], [2, 7, 6, 15, 6, 20, 7, 12, 7, 0]])
    function = narrow(load, "gemm_list").gemm_list
    both(lambda a, b, p, out: function(a, b, p, out=out, layout_b="row"), [zeros(26)], noise(27), noise(62), problems)


def test_forward_and_backward(flash: tk.Library) -> None:
    q, k, v, dout = noise(2, 70, 4, 32), noise(2, 90, 2, 32), noise(2, 90, 2, 32), noise(2, 70, 4, 32)
    out, lse = zeros(2, 70, 4, 32), zeros(2, 4, 70)
    both(lambda q, k, v, out, lse: flash.fmha_fwd(q, k, v, out=out, lse=lse, causal=True), [out, lse], q, k, v)
    grads = [np.zeros_like(array) for array in (q, k, v)]

    def backward(*a: object) -> None:
        flash.fmha_bwd(*a[:6], dq=a[6], dk=a[7], dv=a[8], causal=True, deterministic=True, num_threads=2)

    both(backward, grads, dout, q, k, v, out, lse)


def test_latent_rows(flash: tk.Library) -> None:
    def contiguous(q: object, cache: object, out: object, lse: object) -> None:
        flash.fmha_mla_decode(q, cache, out=out, lse=lse, softmax_scale=0.2, causal=True, hdim_v=24)

    def paged(q: object, cache: object, out: object) -> None:
        flash.fmha_mla_decode(q, cache, out=out, block_table=ints([1, 0], [2, 3]), seqlen_k=ints(21, 32), num_splits=3)

    q = noise(2, 5, 6, 40)
    both(contiguous, [zeros(2, 5, 6, 24), zeros(2, 6, 5)], q, noise(2, 35, 40))
    both(paged, [zeros(2, 5, 6, 40)], q, noise(4, 16, 40))


def test_index_arrays_are_copied_or_stay_with_the_host(flash: tk.Library) -> None:
    q, k, v = noise(50, 2, 32), noise(80, 2, 32), noise(80, 2, 32)
    starts_q, starts_k = ints(0, 20, 50), ints(0, 41, 80)

    def call(q: object, k: object, v: object, starts_q: object, starts_k: object, out: object) -> None:
        flash.fmha_fwd(q, k, v, out=out, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)

    both(call, [zeros(50, 2, 32)], q, k, v, starts_q, starts_k)
    both(lambda q, k, v, out: call(q, k, v, starts_q, starts_k, out), [zeros(50, 2, 32)], q, k, v)


def test_lengths_that_stay_on_the_device(flash: tk.Library) -> None:
    """With max_seqlen_q and max_seqlen_k nobody reads them before the stream has come to the call."""
    q, k, v, out = noise(50, 2, 32), noise(80, 2, 32), noise(80, 2, 32), zeros(50, 2, 32)
    starts_q, starts_k = ints(0, 20, 50), ints(0, 41, 80)
    flash.fmha_fwd(q, k, v, out=out, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k)
    device = {"cu_seqlens_q": Paper(np.zeros_like(starts_q)), "cu_seqlens_k": Paper(np.zeros_like(starts_k))}
    longest = {"max_seqlen_q": 30, "max_seqlen_k": 41}

    def write(numbers_q: np.ndarray) -> None:
        device["cu_seqlens_q"].seen[...], device["cu_seqlens_k"].seen[...] = numbers_q, starts_k

    arrays, result = [Paper(array) for array in (q, k, v)], Paper(zeros(50, 2, 32))
    other = np.empty((1, 1, 1, 32), np.float32)
    with tk.Stream() as stream:
        gate = threading.Event()
        flash.fmha_fwd(other, other, other, stream=stream)  # launch_host has a queue from the first call on
        stream.launch_host(lambda: gate.wait(60))
        stream.launch_host(lambda: write(starts_q))
        flash.fmha_fwd(*arrays, out=result, stream=stream, **device, **longest)
        gate.set()
    assert np.array_equal(out, result.seen)
    # Wrong values in them are told when they are read.
    write(ints(0, 60, 50))
    said = r"^cu_seqlens_q: must not decrease, but entry 2 is 50 after 60$"
    with pytest.raises(tk.ArgumentError, match=said):
        flash.fmha_fwd(*arrays, out=result, **device, **longest)
    write(ints(0, 10, 50))
    with pytest.raises(tk.ArgumentError, match=r"^max_seqlen_q: was 30, must be at least 40, the longest sequence$"):
        flash.fmha_fwd(*arrays, out=result, **device, **longest)
    with pytest.raises(tk.ArgumentError, match=r"^max_seqlen_k: was 0, must be given with max_seqlen_q$"):
        flash.fmha_fwd(*arrays, out=result, **device, max_seqlen_q=30)
    with pytest.raises(tk.ArgumentError, match=r"^cu_seqlens_k: device was cpu, must be paper:0, the device of q$"):
        flash.fmha_fwd(*arrays, out=result, **device | {"cu_seqlens_k": starts_k}, **longest)
    with pytest.raises(tk.ArgumentError, match=r"^cu_seqlens_q: had 2 dimensions, must have 1: batch \+ 1$"):
        flash.fmha_fwd(*arrays, out=result, **device | {"cu_seqlens_q": Paper(starts_q.reshape(1, 3))}, **longest)


def test_the_longest_lengths_on_the_host(flash: tk.Library) -> None:
    """There the arrays are read all the same, and must agree."""
    q, starts = noise(50, 2, 32), {"cu_seqlens_q": ints(0, 20, 50), "cu_seqlens_k": ints(0, 20, 50)}
    expected = flash.fmha_fwd(q, q, q, **starts)
    assert np.array_equal(expected, flash.fmha_fwd(q, q, q, **starts, max_seqlen_q=30, max_seqlen_k=64))
    with pytest.raises(tk.ArgumentError, match=r"^max_seqlen_k: was 29, must be at least 30, the longest sequence$"):
        flash.fmha_fwd(q, q, q, **starts, max_seqlen_q=30, max_seqlen_k=29)


def test_a_paged_cache_in_two_stages(flash: tk.Library) -> None:
    def call(q: object, k: object, v: object, pages: object, lengths: object, out: object, lse: object) -> None:
        where = {"block_table": pages, "seqlen_k": lengths}
        flash.fmha_fwd_splitkv(q, k, v, out=out, lse=lse, num_splits=2, **where)

    cache = noise(4, 16, 2, 32), noise(4, 16, 2, 32), ints(3, 1, 0, 2).reshape(2, 2), ints(30, 17)
    both(call, [zeros(2, 1, 4, 32), zeros(2, 4, 1)], noise(2, 1, 4, 32), *cache)


def test_an_append(flash: tk.Library) -> None:
    def call(knew: object, vnew: object, pages: object, lengths: object, k: object, v: object) -> None:
        flash.fmha_fwd_appendkv(k=k, v=v, knew=knew, vnew=vnew, block_table=pages, seqlen_k=lengths)

    new = noise(2, 3, 2, 32), noise(2, 3, 2, 32), ints(3, 1, 0, 2).reshape(2, 2), ints(20, 10)
    both(call, [noise(4, 16, 2, 32), noise(4, 16, 2, 32)], *new)


def test_a_stream(flash: tk.Library) -> None:
    stream = tk.Stream()

    def call(q: object, k: object, v: object, out: object) -> None:
        flash.fmha_fwd(q, k, v, out=out, stream=stream)
        stream.synchronize()

    both(call, [zeros(1, 33, 2, 32)], noise(1, 33, 2, 32), noise(1, 40, 2, 32), noise(1, 40, 2, 32))


def test_a_wrapped_stream(flash: tk.Library) -> None:
    """A stream of the backend's own, which on paper is a queue of the host: calls wait there, in the order of calls."""
    own = ctypes.CDLL(flash.path)
    native, task = ctypes.c_void_p(), ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    assert own.tilekiln_stream_create(ctypes.byref(native)) == 0
    assert native.value is not None
    gate = threading.Event()
    waiting = task(lambda context: gate.wait(60) and None)
    assert own.tilekiln_stream_launch_host(native, waiting, None) == 0
    stream = tk.Stream(device=(12, 0), native=native.value)
    q, k, v = (Paper(noise(1, 33, 2, 32)) for _ in range(3))
    out, said = Paper(zeros(1, 33, 2, 32)), []
    flash.fmha_fwd(q, k, v, out=out, stream=stream)
    stream.launch_host(lambda: said.append(bool(np.any(out.seen))))
    assert not stream.query()
    assert not np.any(out.seen)
    gate.set()
    stream.synchronize()
    assert stream.query()
    assert said == [True]
    expected = zeros(1, 33, 2, 32)
    flash.fmha_fwd(*(noise(1, 33, 2, 32) for _ in range(3)), out=expected)
    assert np.array_equal(expected, out.seen)
    # Another device's arrays are none of its own, and it outlives what wrapped it.
    a = noise(1, 8, 2, 32)
    said_so = r"^stream: was a stream of paper:0, must be one of cpu, where the arrays are$"
    with pytest.raises(tk.ArgumentError, match=said_so):
        flash.fmha_fwd(a, a, a, out=zeros(1, 8, 2, 32), stream=stream)
    del stream
    assert own.tilekiln_stream_launch_host(native, waiting, None) == 0
    assert own.tilekiln_stream_destroy(native) == 0


def test_a_workspace_of_the_host_takes_no_stream_of_a_device(flash: tk.Library) -> None:
    launcher = tk.BackwardLauncher(
        library=flash,
        dtype="fp32",
        hdim_q=32,
        hdim_v=32,
        nhead_q=2,
        batch=1,
        seqlen_q=8,
        seqlen_k=8,
        deterministic=True,
    )
    memory = np.zeros(launcher.workspace_size + 64, np.uint8)
    workspace = memory[-memory.ctypes.data % 64 :][: launcher.workspace_size]
    own, native = ctypes.CDLL(flash.path), ctypes.c_void_p()
    assert own.tilekiln_stream_create(ctypes.byref(native)) == 0
    stream = tk.Stream(device=(12, 0), native=native.value or 0)
    with pytest.raises(
        tk.ArgumentError, match=r"^stream: was a stream of paper:0, must be one of cpu, where the arrays"
    ):
        launcher.prepare(workspace, stream=stream)
    launcher.prepare(workspace)
    assert np.any(workspace)
    del stream
    assert own.tilekiln_stream_destroy(native) == 0


def test_what_no_stream_wraps(flash: tk.Library) -> None:
    q = noise(1, 8, 2, 32)
    for device, native, said in (
        ((1, 0), 1, r"^device_type: was 1 \(cpu\), must be that of a device: tilekiln_stream_create makes the host's"),
        ((2, 0), 1, r"^device_type: was 2 \(cuda:0\), must be cpu \(1\) or paper \(12\)$"),
        ((12, 0), 0, r"^native: was null, must be a stream of paper:0$"),
    ):
        with pytest.raises(tk.ArgumentError, match=said):
            flash.fmha_fwd(q, q, q, stream=tk.Stream(device=device, native=native))
    with pytest.raises(tk.ArgumentError, match=r"^native: was given without device, must be given together"):
        tk.Stream(native=1)
    with pytest.raises(tk.ArgumentError, match=r"^device: was 'cuda', must be \(type, id\)"):
        tk.Stream(device="cuda", native=1)  # type: ignore[arg-type]
    with pytest.raises(tk.ArgumentError, match=r"^native: was 'x', must be the handle of a stream as a number$"):
        tk.Stream(device=(12, 0), native="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [1, -1])
def test_the_library_at_hand_that_has_the_device(
    flash: tk.Library, load: Made, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    """A library of the CPU alone refuses the arrays' device, which is no word about one that has it."""
    of_cpu = load("flash")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [flash, of_cpu][::order])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    host = noise(1, 8, 2, 32)
    q, out = Paper(host), Paper(zeros(1, 8, 2, 32))
    tk.attention(q, q, q, out=out)
    np.testing.assert_allclose(out.seen, tk.attention(host, host, host), rtol=1e-5, atol=1e-6)
    with pytest.raises(tk.ArgumentError, match=r"^k: device was cpu, must be paper:0, the device of q$"):
        tk.attention(q, noise(1, 8, 2, 32), q, out=out)
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [of_cpu])
    with pytest.raises(tk.ArgumentError, match=r"^q: device was of DLPack type 12, must be cpu"):
        tk.attention(q, q, q, out=out)


class Spelled(Paper):
    """With the look of arrays of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array)
        self.shape, self.dtype = array.shape, array.dtype


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("first", ["cpu", "paper"])
def test_two_devices_by_turns(flash: tk.Library, load: Made, finds: Callable[..., None], first: str, rows: int) -> None:
    """The library that served a look on one device is none for the other; few rows, too."""
    finds(load("flash"), flash)
    host, keys = noise(1, rows, 8, 32), noise(1, 40, 8, 32)
    q, k, out = Spelled(host), Spelled(keys), Spelled(zeros(1, rows, 8, 32))
    expected = zeros(1, rows, 8, 32)
    for _ in range(2):
        for turn in ("cpu", "paper") if first == "cpu" else ("paper", "cpu"):
            if turn == "cpu":
                tk.attention(host, keys, keys, out=expected)
            else:
                tk.attention(q, k, k, out=out)
    np.testing.assert_allclose(out.seen, expected, rtol=1e-5, atol=1e-6)


def test_arrays_of_two_devices(flash: tk.Library) -> None:
    q, out = noise(1, 8, 2, 32), zeros(1, 8, 2, 32)
    with pytest.raises(tk.ArgumentError, match=r"^k: device was cpu, must be paper:0, the device of q$"):
        flash.fmha_fwd(Paper(q), q, Paper(q), out=Paper(out))
    with pytest.raises(tk.ArgumentError, match=r"^v: device was paper:0, must be cpu, the device of q$"):
        flash.fmha_fwd(q, q, Paper(q), out=out)


LIMITED = """
import sys
import numpy as np, tilekiln as tk
from tests.python.test_paper_device import Paper, noise, zeros
library, arrays = tk.Library(sys.argv[1]), [noise(1, 8, 2, 32) for _ in range(3)]
expected = library.fmha_fwd(*arrays)  # of the host, which a target of paper does not limit
out = Paper(zeros(1, 8, 2, 32))
try:
    library.fmha_fwd(*map(Paper, arrays), out=out)
except tk.ArgumentError as error:
    print(error)
else:
    assert np.array_equal(out.seen, expected)
"""


def test_the_target_limits_the_devices_of_its_backend(flash: tk.Library) -> None:
    said = {}
    for word in ("paper-generic", "cpu-generic", "paper-other"):
        environment = {**os.environ, "TILEKILN_TARGET": word}
        command = [sys.executable, "-c", LIMITED, flash.path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        said[word] = done.stdout
    assert said == {
        "paper-generic": "",
        "cpu-generic": "",
        "paper-other": 'TILEKILN_TARGET: was "paper-other", must be one that library flash holds and this machine has '
        "(paper-generic) or unset\n",
    }


def test_nothing_else_may_touch_it() -> None:
    """The memory is protected: a process that looks at it is killed."""
    code = (
        "import numpy as np\nfrom tests.python.test_paper_device import Paper\n"
        "print(Paper(np.ones(4, np.float32)).hidden[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGSEGV, done.stderr
