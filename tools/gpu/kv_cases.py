"""The operators over a KV cache with CUDA tensors: problems of tests/python/kv_problems.py against float64."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
import torch
from tilekiln import reference

from tests.python import judged, kv_problems
from tests.python.problems import drawn_mask
from tools.gpu.cases import on_device, on_host
from tools.gpu.judge import tolerance
from tools.gpu.tally import Tally

LENGTHS_K = (0, 1, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 300, 700)
LENGTHS_Q = (1, 1, 1, 2, 3, 5, 17, 33, 130)
CACHED = ("k", "v")
WINDOWS = ((6, 0), (-1, 0), (17, 5), (64, 0), (0, 0), (100, 30), (-1, 40), (130, -1))


def drawn_sizes(draw: random.Random, family: str) -> kv_problems.Sizes:
    batch, nhead_k = draw.randint(1, 4), draw.choice((1, 2, 3))
    group = family == "fmha_batch_prefill" or draw.random() < 0.5
    first = draw.choice(LENGTHS_Q)
    pages = (16, 32, 48, 64, 256) if family == "fmha_fwd_pagedkv" else (1, 3, 8, 16, 16, 48, 64, 256)
    return kv_problems.Sizes(
        lengths_q=tuple(draw.choice(LENGTHS_Q) if group else first for _ in range(batch)),
        lengths_k=tuple(draw.choice(LENGTHS_K) for _ in range(batch)),
        nhead_q=nhead_k * draw.choice((1, 1, 2, 4, 5, 8, 16, 20)),
        nhead_k=nhead_k,
        less=draw.choice((0, 0, 1)) * (1 if family == "fmha_batch_prefill" else 8),
        page_size=draw.choice(pages),
        layout=draw.choice(("bshd", "bhsd")),
        **drawn_mask(draw, WINDOWS, (0, 1, 5, 20)),
        leftpad=draw.random() < 0.3,
        rows=draw.random() < 0.3,
        seqlen_new=draw.choice((0, 1, 1, 3, 20)),
        num_splits=draw.choice((0, 0, 1, 2, 3, 7, 128)),
    )


def poison_unused(inputs: dict[str, Any]) -> None:
    """NaN wherever no sequence has a key: in other pages, behind the last key of a page, in other rows of the cache."""
    layout, table = inputs.get("layout", "bshd"), inputs.get("block_table")
    lengths = inputs.get("seqlen_k")
    if "kv_indptr" in inputs:
        starts, last = inputs["kv_indptr"], inputs["kv_last_page_lens"]
        pages = [inputs["kv_page_indices"][a:b] for a, b in itertools.pairwise(starts)]
        size = page_size(inputs)
        lengths = [(len(one) - 1) * size + int(n) if len(one) else 0 for one, n in zip(pages, last, strict=True)]
    elif table is not None:
        pages = [row[: -(-int(n) // page_size(inputs))] for row, n in zip(table, lengths, strict=True)]
    elif lengths is None:
        return
    for name in CACHED:
        array = inputs[name]
        if table is None and "kv_indptr" not in inputs:  # (batch, seqlen, ...), a row each
            rows = inputs.get("cache_batch_idx", range(len(lengths)))
            whole = np.swapaxes(array, 1, 2) if layout == "bhsd" else array
            unused = np.ones(whole.shape[:2], bool)
            for row, length in zip(rows, lengths, strict=True):
                unused[row, : int(length)] = False
            whole[unused] = np.nan
            continue
        size = page_size(inputs)
        unused = np.ones((len(array), size), bool)
        for one, length in zip(pages, lengths, strict=True):
            for index, page in enumerate(one):
                unused[page, : min(size, int(length) - index * size)] = False
        if array.ndim == 5 and name == "v":  # (pages, nhead, page / vec, hdim, vec)
            whole = array.transpose(0, 2, 4, 1, 3)
            whole[unused.reshape(len(array), -1, array.shape[4])] = np.nan
        elif array.ndim == 5:  # (pages, nhead, hdim / vec, page, vec)
            array.transpose(0, 3, 1, 2, 4)[unused] = np.nan
        elif array.ndim == 3:
            array[unused[:, 0]] = np.nan
        else:
            (np.swapaxes(array, 1, 2) if layout == "bhsd" else array)[unused] = np.nan


def page_size(inputs: dict[str, Any]) -> int:
    k = inputs["k"]
    return 1 if k.ndim == 3 else k.shape[3] if k.ndim == 5 else k.shape[2 if inputs.get("layout") == "bhsd" else 1]


def excess(dtype: str, problem: kv_problems.Problem, expected: reference.Result, made: dict[str, np.ndarray]) -> float:
    """The worst error as a share of its bound; inf for a NaN and for a byte in rows that must stay untouched."""
    bound = tolerance(dtype, float(problem.inputs.get("softcap", 0.0)))
    more = 0.0
    if dtype == "fp16":  # half a step of a weight below 2^-14, of every key
        v = problem.inputs["v"].astype(np.float64)
        columns = {5: 3}.get(v.ndim, v.ndim - 1)
        others = tuple(axis for axis in range(v.ndim) if axis != columns)
        more = (
            2.0**-25
            / (1 - float(problem.inputs.get("dropout_p", 0)))
            * float(np.nansum(np.abs(v), axis=others).max(initial=0))
        )
    return judged.excess(bound, expected, made, problem.inputs.get("layout", "bshd"), more)


def moved(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: on_device(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}


def longest(problem: kv_problems.Problem, sizes: kv_problems.Sizes) -> dict[str, int]:
    """max_seqlen arguments that keep the index arrays on the device."""
    more = 0 if "bias" in problem.inputs else 3  # its columns are max_seqlen_k
    if problem.family == "fmha_fwd_appendkv":
        return {"max_seqlen_k": max(1, max(sizes.lengths_k) + sizes.seqlen_new)}
    keys = max(sizes.lengths_k)
    if problem.inputs.get("cache_leftpad") is not None:
        more = 0
        keys = max(
            0, *(int(n) - int(pad) for n, pad in zip(sizes.lengths_k, problem.inputs["cache_leftpad"], strict=True))
        )
    if keys + more == 0:
        return {}
    return {"max_seqlen_q": max(sizes.lengths_q), "max_seqlen_k": keys + more}


def attend(library: tk.Library, problem: kv_problems.Problem, options: dict[str, Any]) -> tuple[float, bool]:
    """The error, and whether a second run gives the same bytes."""
    expected = problem.reference()
    inputs = moved(problem.inputs)
    blank = problem.outputs(expected)
    results = []
    for _ in range(2):
        made = {name: on_device(array) for name, array in blank.items() if name != "randval"}
        getattr(library, problem.family)(**inputs, **problem.only_facade, **made, **options)
        torch.cuda.synchronize()
        results.append({name: on_host(tensor, blank[name]) for name, tensor in made.items()})
    same = all(np.array_equal(results[0][n].view(np.uint8), results[1][n].view(np.uint8)) for n in results[0])
    return excess(problem.dtype, problem, expected, results[0]), same


def append(library: tk.Library, problem: kv_problems.Problem, options: dict[str, Any]) -> tuple[float, bool]:
    """The same bytes in q and the cache as the reference's, and attention within its bound."""
    theirs = {**problem.inputs, **{name: problem.inputs[name].copy() for name in kv_problems.WRITTEN}}
    expected = reference.appendkv(**theirs)
    outs = []
    for attends in (False, True, True):
        ours = moved(problem.inputs)
        out = library.fmha_fwd_appendkv(**ours, **options, **({} if attends else {"attend": False}))
        torch.cuda.synchronize()
        for name in kv_problems.WRITTEN:
            if on_host(ours[name], theirs[name]).tobytes() != theirs[name].tobytes():
                raise AssertionError(f"{name} differs, attends {attends}")
        if attends:
            outs.append(on_host(out, problem.inputs["q"]))
    return excess(problem.dtype, problem, expected, {"out": outs[0]}), outs[0].tobytes() == outs[1].tobytes()


def run(library: tk.Library, cases: int, seed: int) -> int:
    """Prints a line for each operator and dtype that the library has; the number of cases that do not hold."""
    bad = 0
    instances = [one for one in library.instances() if "_cuda_sm" in one.name]
    for family in kv_problems.FAMILIES:
        for dtype in ("bf16", "fp16"):
            own = {tuple(one.signature.items()): None for one in instances if one.family == family}
            signatures = [signature for signature in map(dict, own) if signature["dtype"] == dtype]
            if not signatures:
                continue
            draw, tally = random.Random(f"{seed} {family} {dtype}"), Tally(f"library {family} {dtype}")
            for case in range(cases):
                signature, sizes = draw.choice(signatures), drawn_sizes(draw, family)
                problem = kv_problems.make(family, signature, sizes, seed + case)
                tally.judge(f"case {case}: {signature} {sizes}", partial(_one, library, family, problem, sizes, case))
            bad += tally.told()
    return bad


def _one(library: tk.Library, family: str, problem: Any, sizes: kv_problems.Sizes, case: int) -> tuple[float, bool]:
    poison_unused(problem.inputs)
    options = longest(problem, sizes) if case % 2 else {}
    return (append if family == "fmha_fwd_appendkv" else attend)(library, problem, options)
