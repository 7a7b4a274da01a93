# SPDX-License-Identifier: MIT
"""The KV-cache families against the reference: edge shapes, random problems, every instance once."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import FLOATS
from tilekiln.reference import kv_problems
from tilekiln.reference.kv_problems import FAMILIES, Sizes, i32

from tests.gpu_run import CPU_TARGETS
from tests.python.attention_runs import run_cache

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = "family=fmha_fwd_splitkv,fmha_fwd_pagedkv,fmha_fwd_appendkv,fmha_batch_prefill"
PLAIN = {"mode": "batch", "mask": "none", "bias": "none", "softcap": False, "paged": False, "sink": False,
         "lse": True, "qscale": "none"}  # fmt: skip


def signature(dtype: str = "fp32", hdim: int = 64, **values) -> dict:
    return {**PLAIN, "dtype": dtype, "hdim_q": hdim, "hdim_v": hdim, **values}


EDGES = {
    "one key": Sizes(lengths_k=(1, 1)),
    "no key in one sequence": Sizes(lengths_k=(0, 9)),
    "no key at all": Sizes(lengths_k=(0, 0)),
    "keys up to a tile": Sizes(lengths_k=(64, 128)),
    "keys past a tile": Sizes(lengths_k=(65, 129)),
    "a full page and one more": Sizes(lengths_k=(16, 17)),
    "one query": Sizes(lengths_q=(1, 1)),
    "many queries": Sizes(lengths_q=(70, 3), lengths_k=(75, 80)),
    "more queries than keys": Sizes(lengths_q=(9, 9), lengths_k=(4, 0)),
    "one sequence": Sizes(lengths_q=(2,), lengths_k=(50,)),
    "many heads a key head": Sizes(nhead_q=24, nhead_k=2),
    "a key head each": Sizes(nhead_q=3, nhead_k=3),
    "odd head dims": Sizes(less=1),
    "leftpad": Sizes(leftpad=True, lengths_k=(40, 70)),
    "rows of the cache": Sizes(rows=True),
    "heads first": Sizes(layout="bhsd"),
    "large pages": Sizes(page_size=256, lengths_k=(300, 3)),
    "more splits than keys": Sizes(num_splits=128, lengths_k=(40, 0)),
    "three splits": Sizes(num_splits=3, lengths_k=(200, 1)),
    "the last page is the last of the pool": Sizes(spare=0),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("mask", ["none", "window"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges(flash, edge, mask, mode, paged):
    values = signature(mask=mask, mode=mode, paged=paged)
    for seed, family in enumerate(FAMILIES[:2] if paged else FAMILIES[:1]):
        problem = kv_problems.make(family, values, EDGES[edge], seed)
        run_cache(flash, problem, num_threads=1)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("paged", [False, True])
def test_append_edges(flash, edge, paged):
    sizes = EDGES[edge]
    for seed, new in enumerate((0, 1, 3, 20)):
        values = {"dtype": "bf16", "hdim_q": 64, "hdim_v": 64, "rope": "half", "paged": paged}
        made = kv_problems.make(FAMILIES[2], values, Sizes(**{**vars(sizes), "seqlen_new": new}), seed)
        run_cache(flash, made, num_threads=1)


@pytest.mark.parametrize("wide", ["k", "v"])
@pytest.mark.parametrize("what", ["padded rows", "padded heads", "another head dim"])
def test_an_append_into_rows_whose_k_and_v_have_other_strides(flash, what, wide):
    random = np.random.default_rng(1)
    heads, tokens, new = 2, 12, 3
    hdim = {"k": 64, "v": 64}
    if what == "another head dim":
        hdim = {"k": 192, "v": 128}
    caches = {}
    for name in "kv":
        more = what.startswith("padded") and name == wide
        rows, room = tokens + 5 * (what == "padded rows" and more), heads + (what == "padded heads" and more)
        caches[name] = random.standard_normal((4, rows, room, hdim[name])).astype(np.float32)
    q = random.standard_normal((3, new, heads, hdim["k"])).astype(np.float32)
    knew, vnew = (random.standard_normal((3, new, heads, hdim[name])).astype(np.float32) for name in "kv")
    if what == "another head dim" and wide == "v":  # every k is narrower than its v where no such kernel need exist
        q = None
    results = []
    for run in (reference.appendkv, flash.fmha_fwd_appendkv):
        whole = {name: array.copy() for name, array in caches.items()}
        k, v = (whole[name][:, :tokens, :heads] for name in "kv")
        lengths, rows = i32([9, 0, 4]), i32([3, 0, 1])
        out = run(q, k, v, knew, vnew, seqlen_k=lengths, cache_batch_idx=rows)
        results.append((whole, out))
    (expected, expected_out), (got, out) = results
    for name in "kv":
        np.testing.assert_array_equal(got[name], expected[name])
    if q is not None:
        assert reference.excess("fp32", expected_out, out) <= 1


@pytest.mark.quick(each="num_splits")
@pytest.mark.parametrize("num_splits", [0, 1, 2, 3, 7, 64, 128])
@pytest.mark.parametrize("threads", [1, 2])
def test_splits_change_rounding_only(flash, num_splits, threads):
    for seed in range(4):
        random = np.random.default_rng(seed)
        sizes = Sizes(lengths_k=tuple(random.integers(0, 400, 2).tolist()), num_splits=num_splits)
        problem = kv_problems.make("fmha_fwd_splitkv", signature(mask="window" if seed % 2 else "none"), sizes, seed)
        run_cache(flash, problem, num_threads=threads)


@pytest.mark.parametrize("nhead_k", [8, 2, 1])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_bits_of_p_do_not_depend_on_the_split(flash, dtype, nhead_k):
    """Rounding P to bf16 with the maximum of its split would change the last bit of a quarter of the results."""
    kind = FLOATS[dtype]
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, n, h, 128)).astype(kind) for n, h in ((1, 8), (999, nhead_k), (999, nhead_k)))
    whole = flash.fmha_fwd_splitkv(q, k, v, num_splits=1, num_threads=1).astype(np.float64)
    for splits in (2, 3, 7, 33):
        parts = flash.fmha_fwd_splitkv(q, k, v, num_splits=splits, num_threads=1).astype(np.float64)
        np.testing.assert_allclose(parts, whole, rtol=float(ml_dtypes.finfo(kind).eps), atol=1e-6)
        if dtype != "fp32":
            assert np.mean(parts != whole) < 0.01


def test_the_number_of_splits(flash):
    q, k = np.zeros((1, 1, 2, 64), np.float32), np.zeros((1, 900, 2, 64), np.float32)
    assert flash.fmha_fwd_splitkv_num_splits(q, k, k, num_splits=5) == 5
    assert flash.fmha_fwd_splitkv_num_splits(q, k, k, num_threads=1) == 1
    for threads in (2, 8, 64):
        splits = flash.fmha_fwd_splitkv_num_splits(q, k, k, num_threads=threads)
        assert 1 <= splits <= 128


def test_appends_over_hundreds_of_steps_equal_one_prefill(flash):
    random = np.random.default_rng(3)
    steps, heads, hdim = 300, 2, 64
    k, v, q = (random.standard_normal((1, steps, heads, hdim), np.float32) for _ in range(3))
    angle = np.arange(steps)[:, None] * random.uniform(0, 1, 16)
    tables = {"rotary_cos": np.cos(angle).astype(np.float32), "rotary_sin": np.sin(angle).astype(np.float32)}
    table = i32(random.permutation(24)[:20][None])
    pools = [[np.full((24, 16, heads, hdim), 7, np.float32) for _ in "kv"] for _ in range(2)]
    made = []
    for step in range(steps):
        at = slice(step, step + 1)
        out = flash.fmha_fwd_appendkv(
            q[:, at].copy(),
            *pools[0],
            k[:, at],
            v[:, at],
            seqlen_k=i32([step]),
            block_table=table,
            causal=True,
            **tables,
        )
        made.append(out)
    whole = flash.fmha_fwd_appendkv(
        q.copy(), *pools[1], k, v, seqlen_k=i32([0]), block_table=table, causal=True, **tables
    )
    for one, other in zip(*pools, strict=True):
        assert one.tobytes() == other.tobytes()
        unused = np.setdiff1d(np.arange(24), table)
        assert np.all(one[unused] == 7)
    np.testing.assert_allclose(np.concatenate(made, axis=1), whole, atol=2e-6)


LINEAR = FAMILIES[:3]
CASES = [  # flash and ck_default together hold every value of every axis
    *itertools.product(("flash",), LINEAR, ("fp32", "fp16", "bf16")),
    *itertools.product(("ck_default",), LINEAR, ("fp16", "bf16", "fp8")),
    *itertools.product(("flash",), FAMILIES[3:], ("fp16", "bf16")),
    *itertools.product(("ck_default",), FAMILIES[3:], ("fp16", "bf16", "fp8bf16")),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("receipt", "family", "dtype"), CASES)
@pytest.mark.day
def test_every_instance_computes(load, flash, receipt, family, dtype):
    """One reference per signature, every usable instance against it."""
    library = flash if receipt == "flash" else load(receipt, where=ALL)
    by_signature: dict[tuple, list[tk.Instance]] = {}
    for instance in library.instances(f"family={family} dtype={dtype}"):
        by_signature.setdefault(tuple(instance.signature.items()), []).append(instance)
    assert by_signature
    for number, (values, instances) in enumerate(by_signature.items()):
        sizes = Sizes(less=number % 2, lengths_q=(2, 2), lengths_k=(9, 70), num_splits=number % 3)
        problem = kv_problems.make(family, dict(values), sizes, number)
        expected = None if family == "fmha_fwd_appendkv" else problem.reference()
        for instance in instances:
            try:
                run_cache(library, problem, expected, instance=instance.number, num_threads=1)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"{instance.name}: {error}") from None


def test_random_problems(flash):
    for seed in range(150):
        random = np.random.default_rng(seed)
        instances = flash.instances(f"family={FAMILIES[seed % 4]}")
        instance = instances[int(random.integers(len(instances)))]
        batch, nhead_k = int(random.integers(1, 4)), int(random.integers(1, 3))
        sizes = Sizes(
            lengths_q=tuple(random.integers(1, 5, batch).tolist()),
            lengths_k=tuple(random.integers(0, 150, batch).tolist()),
            nhead_q=nhead_k * int(random.integers(1, 6)),
            nhead_k=nhead_k,
            less=int(random.integers(0, 2)),
            page_size=16 * int(random.integers(1, 6)),
            layout=str(random.choice(["bshd", "bhsd"])),
            window=tuple(random.integers(0, 80, 2).tolist()),
            mask_origin=str(random.choice(["bottom_right", "top_left"])),
            leftpad=bool(random.integers(2)),
            rows=bool(random.integers(2)),
            num_splits=int(random.integers(0, 9)),
        )
        problem = kv_problems.make(instance.family, instance.signature, sizes, seed)
        run_cache(flash, problem)


def test_results_that_the_call_makes(flash):
    problem = kv_problems.make("fmha_fwd_splitkv", signature(), Sizes(), 0)
    out, lse = flash.fmha_fwd_splitkv(**problem.inputs, return_lse=True)
    assert reference.excess("fp32", problem.reference(), out, lse) <= 1
    with tk.Stream() as stream:
        queued = flash.fmha_fwd_splitkv(**problem.inputs, stream=stream)
        stream.synchronize()
        np.testing.assert_array_equal(queued, flash.fmha_fwd_splitkv(**problem.inputs))


def test_find_and_why(flash):
    q, k = np.zeros((1, 1, 2, 64), np.float32), np.zeros((1, 9, 2, 64), np.float32)
    split, combine = flash.fmha_fwd_splitkv_find(q, k, k)
    assert flash.instance_name(split).startswith("fmha_fwd_splitkv_fp32_d64x64_batch_nmask")
    assert flash.instance_name(combine).startswith("fmha_fwd_splitkv_combine_fp32_dv64_batch")
    assert flash.instance_name(split) in flash.fmha_fwd_splitkv_why(q, k, k)
    stages = flash.fmha_fwd_appendkv_find(None, k, k.copy(), q, q, seqlen_k=i32([0]))
    assert stages[0] >= 0
    assert stages[1:] == (-1, -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_help_says_what_there_is(flash, family):
    method = getattr(flash, family)
    for name in inspect.signature(method).parameters:
        assert f"\n{name}: " in method.__doc__, name
    for other in ("_find", "_why"):
        assert inspect.signature(getattr(flash, family + other)) == inspect.signature(method)
    with pytest.raises(TypeError, match=rf"{family}\(\) has no argument 'blok_table'; did you mean block_table"):
        getattr(flash, family)(1, 2, 3, blok_table=4)


@pytest.mark.torch
def test_torch_tensors(flash):
    import torch

    problem = kv_problems.make("fmha_fwd_splitkv", signature(paged=True), Sizes(), 0)
    tensors = {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in problem.inputs.items()
    }
    out = flash.fmha_fwd_splitkv(**tensors)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), flash.fmha_fwd_splitkv(**problem.inputs))


@pytest.mark.parametrize("paged", [False, True])
def test_padded_queries(flash, paged):
    """Rows past a logical length are left untouched, in group and in batch mode."""
    for mode in ("group", "batch"):
        problem = kv_problems.make(
            "fmha_fwd_splitkv", signature(mode=mode, mask="window", paged=paged), Sizes(lengths_q=(4, 4)), 1
        )
        if mode == "group":
            problem.inputs["seqstart_q"] = problem.inputs.pop("cu_seqlens_q")
        problem.inputs["seqlen_q"] = i32([3, 0])
        run_cache(flash, problem, num_threads=1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(("nhead_q", "nhead_k"), [(5, 5), (24, 6)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_query_over_a_long_cache(flash, dtype, nhead_q, nhead_k, paged):
    """Longer than a machine's cache: units are of every key head, in one stream. The same heads first: one by one."""
    keys = (25 << 20) // (nhead_k * 128 * (4 if dtype == "fp32" else 2))
    for num_splits, threads in ((1, 1), (3, 1), (0, 2)):
        sizes = Sizes(lengths_q=(1,), lengths_k=(keys,), nhead_q=nhead_q, nhead_k=nhead_k, num_splits=num_splits)
        mask = "window" if num_splits == 1 else "none"
        sizes = dataclasses.replace(sizes, window=(keys - 99, 0))
        problem = kv_problems.make("fmha_fwd_splitkv", signature(dtype, mask=mask, paged=paged), sizes, num_splits)
        expected = problem.reference()
        run_cache(flash, problem, expected, num_threads=threads)
        for name in "qkv":
            problem.inputs[name] = np.ascontiguousarray(np.swapaxes(problem.inputs[name], 1, 2))
        problem.inputs["layout"] = "bhsd"
        heads_first = {name: np.swapaxes(getattr(expected, name), 1, 2) for name in ("out", "magnitude", "flushed")}
        swapped = dataclasses.replace(expected, layout="bhsd", **heads_first)
        run_cache(flash, problem, swapped, num_threads=threads)


HIDDEN = {  # window, mask_origin; which of the 8 pages of 16 keys the first 2 and the first 70 queries do not need
    "left": ((20, 0), "bottom_right", range(6), range(2)),
    "right": ((-1, 0), "top_left", range(1, 8), range(5, 8)),
    "both sides": ((9, 40), "bottom_right", range(7), range(3)),
}


@pytest.mark.parametrize("seqlen_q", [2, 70])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_pages_that_no_query_needs_are_not_looked_at(flash, hidden, seqlen_q):
    """Serving stacks put anything there. 70 queries: tiles at the edge of the window load hidden keys and mask them."""
    window, origin, *unneeded = HIDDEN[hidden]
    sizes = Sizes(lengths_q=(seqlen_q,), lengths_k=(128,), window=window, mask_origin=origin)
    prefill = {"kv_dtype": "same", "page_size": 16, "layout": "linear", "lookup": "vllm", "dropout": False}
    for family, values in (
        ("fmha_fwd_splitkv", signature(mask="window", paged=True)),
        ("fmha_fwd_pagedkv", signature(mask="window")),
        ("fmha_batch_prefill", signature("bf16", 128, mask="window", **prefill)),
    ):
        problem = next(
            made
            for made in (kv_problems.make(family, values, sizes, seed) for seed in range(20))
            if made.inputs["k"].shape[1] == 16
        )
        expected = problem.reference()
        problem.inputs["block_table"][0, list(unneeded[seqlen_q == 70])] = -1
        run_cache(flash, problem, expected, num_threads=1)


FORCED = """
import json, sys
import tilekiln as tk
from tilekiln.reference import kv_problems
from tilekiln.reference.kv_problems import FAMILIES, Sizes

from tests.python.attention_runs import run_cache

library, target, seen = tk.Library(sys.argv[1]), sys.argv[2], []
combines = library.instances("family=fmha_fwd_splitkv_combine target=" + target)
for number, combine in enumerate(combines):  # each behind a first stage of its dtype, head dim and mode
    values = combine.signature
    query = " ".join(f"{axis}={values[axis]}" for axis in ("dtype", "hdim_v", "mode"))
    firsts = library.instances(f"family=fmha_fwd_splitkv target={target} {query}")
    first = firsts[number * 7 % len(firsts)]
    problem = kv_problems.make(first.family, first.signature, Sizes(lengths_q=(1, 1), num_splits=3), number)
    problem.lse = values["lse"]
    asked = {**problem.inputs, **problem.only_facade, "return_lse": problem.lse}
    assert library.fmha_fwd_splitkv_find(**asked)[1] == combine.number, combine.name
    run_cache(library, problem, num_threads=1)
for family in FAMILIES:
    instances = library.instances(f"family={family} target={target}")
    for number in range(0, len(instances), max(1, len(instances) // 30)):
        instance, queries = instances[number], ((1, 1), (2, 2), (70, 3))[number % 3]
        sizes = Sizes(less=number % 2, lengths_q=queries, lengths_k=(9, 150), num_splits=number % 3)
        problem = kv_problems.make(family, instance.signature, sizes, number)
        run_cache(library, problem, instance=instance.number, num_threads=1)
print(len(combines))
"""


@pytest.mark.parametrize("target", CPU_TARGETS[:-1])  # the best one: every other test
def test_every_isa(load, target):
    """A sample of each family's instances and every combine, on a slower target than this machine's best."""
    library = load("flash", targets="all")
    if not library.instance_usable(library.instances(f"target={target}")[0].number):
        pytest.skip(f"this machine has not {target}")
    environment = {**os.environ, "TILEKILN_ISA": target.removeprefix("cpu-")}
    command = [sys.executable, "-c", FORCED, str(library.path), target]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) > 0
