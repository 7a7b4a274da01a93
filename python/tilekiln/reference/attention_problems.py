# SPDX-License-Identifier: MIT
"""Attention, its gradients and KV caches as calls for any kind of device (tests/cases.py), with the bounds of GPUs."""

from __future__ import annotations

import dataclasses
import itertools
import random as random_
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import gradients, judged, kv_problems, of_gpus, problems
from .attention import Result
from .backward import Gradients
from .drawn import Call
from .kv import appendkv
from .of_gpus import Bounds
from .problems import PLAIN

BACKWARD = "fmha_bwd_dq_dk_dv"
FAMILIES = ("fmha_fwd", BACKWARD, *kv_problems.FAMILIES)
OPERATORS = {family: "fmha_bwd" if family == BACKWARD else family for family in FAMILIES}
Signature = Mapping[str, Any]
CPU, CUDA, HIP = of_gpus.CPU, of_gpus.CUDA, of_gpus.HIP


class Edges(NamedTuple):
    """Lengths at which kernels of a device change what they do, and how large problems may be there."""

    lengths: Sequence[int] = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 150)
    of_gradients: Sequence[int] = ()  # further ones
    most: tuple[int, int] = (2, 2)  # sequences, and query heads of a key head
    far: int = 70  # the widest left window
    scale: Mapping[str, float] = {}  # by dtype, of softmax; nobody changes it
    step_of_bytes: int = 8  # of head dims of 8-bit inputs
    shares: float = 0.0  # of gradients with many query heads a key head
    workers: Sequence[int] = ()  # of deterministic gradients
    cache_q: Sequence[int] = (1, 2, 5, 17, 70)
    cache_k: Sequence[int] = (1, 15, 16, 63, 64, 65, 128, 130, 200)
    cache_most: tuple[int, int] = (2, 2)  # sequences and key heads
    times: Sequence[int] = (1, 2, 4)  # query heads of a key head
    pages: Sequence[int] = (16, 48, 64, 128)
    small_pages: Sequence[int] = ()  # of caches that are not paged-KV's
    windows: Sequence[tuple[int, int]] = ((6, 0), (-1, 0), (70, 3), (-1, -1), (100, 30))
    sinks: Sequence[int] = (0, 2, 65)
    new: Sequence[int] = (1, 2, 3)
    splits: Sequence[int] = (0, 1, 2, 3, 7)


EDGES = {
    "hip": Edges(workers=(1, 3, 30)),
    # Blocks of keys take turns at dq. Rows of bytes are copied by 16. Many query heads are walked in shares (plan.h).
    "executor": Edges(of_gradients=(257, 300), step_of_bytes=16, shares=0.15),
    "gpu": Edges(
        lengths=(0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 131, 191, 192, 193, 300),
        most=(3, 3),
        far=130,
        scale={"bf16": 0.4, "": 0.1},
        step_of_bytes=16,
        shares=0.15,
        workers=(1, 7, 30),
        cache_q=(1, 1, 1, 2, 3, 5, 17, 33, 130),
        cache_k=(0, 1, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 300, 700),
        cache_most=(4, 3),
        times=(1, 1, 2, 4, 5, 8, 16, 20),
        pages=(16, 32, 48, 64, 256),
        small_pages=(1, 3, 8, 16, 16, 48, 64, 256),
        windows=((6, 0), (-1, 0), (17, 5), (64, 0), (0, 0), (100, 30), (-1, 40), (130, -1)),
        sinks=(0, 1, 5, 20),
        new=(0, 1, 1, 3, 20),
        splits=(0, 0, 1, 2, 3, 7, 128),
    ),
}
"""By device, as those of tilekiln.reference.drawn."""


def drawn_sizes(draw: random_.Random, family: str, signature: Signature, edges: Edges) -> Any:
    """Of a problem of this signature."""
    if family in kv_problems.FAMILIES:
        return _cache_sizes(draw, family, edges.step_of_bytes if signature["dtype"] == "fp8" else 8, edges)
    lengths = [*edges.lengths, *(edges.of_gradients if family == BACKWARD else ())]
    dtype, hdim = str(signature["dtype"]), (int(signature["hdim_q"]), int(signature["hdim_v"]))
    scale = edges.scale.get(dtype, edges.scale.get("", 0.3))
    sizes = problems.drawn_sizes(draw, hdim, lengths, most=edges.most, far=edges.far, scale=scale)
    if signature.get("qscale") == "blockscale":  # arrays of one element would be pertensor
        sizes = dataclasses.replace(sizes, nhead_q=4, nhead_k=2)
    if family == BACKWARD and draw.random() < edges.shares:
        sizes = dataclasses.replace(sizes, nhead_q=8 * sizes.nhead_k)
    if not dtype.startswith("fp8") or edges.step_of_bytes == 8:
        return sizes
    hdim_q, hdim_v = -(-sizes.hdim_q // 16) * 16, hdim[1] - 16 * draw.choice((0, 0, 1))
    return dataclasses.replace(sizes, hdim_q=hdim_q, hdim_v=hdim_v, strides=draw.choice(("dense", "exchanged")))


def _cache_sizes(draw: random_.Random, family: str, step: int, edges: Edges) -> kv_problems.Sizes:
    batch, nhead_k = draw.randint(1, edges.cache_most[0]), draw.randint(1, edges.cache_most[1])
    pages = edges.pages if family == "fmha_fwd_pagedkv" else edges.small_pages or edges.pages
    return kv_problems.Sizes(
        lengths_q=tuple(draw.choice(edges.cache_q) for _ in range(batch)),
        lengths_k=tuple(draw.choice(edges.cache_k) for _ in range(batch)),
        nhead_q=nhead_k * draw.choice(edges.times),
        nhead_k=nhead_k,
        less=draw.choice((0, 0, 1)) * (1 if family == "fmha_batch_prefill" else step),
        page_size=draw.choice(pages),
        layout=draw.choice(("bshd", "bhsd")),
        window=draw.choice(edges.windows),
        mask_origin=draw.choice(("bottom_right", "top_left")),
        sink_size=draw.choice(edges.sinks),
        leftpad=draw.random() < 0.3,
        rows=draw.random() < 0.3,
        seqlen_new=draw.choice(edges.new),
        num_splits=draw.choice(edges.splits),
    )


def calls(family: str, own: list[dict[str, Any]], edges: Edges, bounds: Bounds, seed: int) -> Iterator[Call]:
    """Without end; each of another signature until every one has had its turn, and half with max_seqlen arguments."""
    draw = random_.Random(f"{seed} {family} {own[0]['dtype']} {own[0]['hdim_q']} {own[0]['hdim_v']}")
    order = draw.sample(own, len(own))
    for number in itertools.count():
        signature = order[number % len(order)]
        sizes = drawn_sizes(draw, family, signature, edges)
        problem = made(family, signature, sizes, seed + number)
        options: dict[str, Any] = longest(family, problem, sizes) if number % 2 == 0 else {}
        if family == BACKWARD:
            options["deterministic"] = bool(signature["deterministic"])
            if edges.workers and signature["deterministic"] and draw.random() < 0.5:
                options["workers"] = draw.choice(edges.workers)
        if family in kv_problems.FAMILIES:
            poison_unused(problem.inputs)
        yield call(family, problem, bounds, said=f"{signature} {sizes} seed {seed + number}", **options)


def _named(
    lengths_q: Sequence[int], lengths_k: Sequence[int], heads: tuple[int, int] = (2, 2), **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes, and what a signature must have beyond PLAIN; more: fields of either."""
    sizes = {"lengths_q": tuple(lengths_q), "lengths_k": tuple(lengths_k), "nhead_q": heads[0], "nhead_k": heads[1]}
    wanted = {name: value for name, value in more.items() if name in PLAIN}
    own = {name: value for name, value in more.items() if name not in PLAIN}
    if {"causal", "window"} & own.keys():
        sizes["window"], wanted["mask"] = (-1, -1), "window"
    return sizes | own, wanted


ALONE: dict[str, Any] = {"mask_origin": "top_left", "sink": True}
NAMED = {
    "full": _named([300] * 2, [500] * 2, (3, 3)),
    "one row": _named([1], [333], (2, 1)),
    "causal": _named([555] * 2, [555] * 2, causal=True),
    "causal top left": _named([300], [170], causal=True, mask_origin="top_left"),
    "grouped heads": _named([257], [513], (8, 2), causal=True),
    "empty rows": _named([500], [200], causal=True),
    "window": _named([450] * 2, [450] * 2, window=(100, 30)),
    "window left": _named([700], [700], window=(64, 0), mask_origin="top_left"),
    "sink columns": _named([600], [600], window=(90, 0), sink_size=5, sink=True),
    "many sink columns": _named([600], [700], window=(70, 10), sink_size=140, sink=True),
    "sink columns alone": _named([700], [200], window=(90, 0), sink_size=5, **ALONE),
    "sink columns alone, two tiles": _named([900], [300], window=(9, 0), sink_size=200, **ALONE),
    "sink logits": _named([200], [300], (4, 4), causal=True, sink=True),
    "soft cap": _named([300], [300], (3, 3), softcap=True),
    "alibi": _named([300] * 2, [400] * 2, (3, 3), causal=True, bias="alibi"),
    "bias": _named([200] * 2, [333] * 2, (3, 3), bias="elementwise"),
    "bias, masked": _named([333], [333], causal=True, bias="elementwise", bias_heads=False),
    "dropout": _named([300] * 2, [300] * 2, (3, 3), dropout=True, dropout_p=0.2),
    "dropout, all": _named(
        [333], [400], (4, 2), window=(150, 20), dropout=True, dropout_p=0.6, bias="alibi", sink=True
    ),
    "packed": _named([100, 0, 257, 1], [200, 64, 300, 7], mode="group"),
    "packed causal": _named([300, 40, 129], [300, 90, 129], mode="group", causal=True),
    "packed, no keys": _named([30, 200], [0, 70], mode="group", window=(40, 0), sink_size=3, sink=True),
    "packed dropout": _named([200, 77], [200, 77], mode="group", dropout=True, dropout_p=0.1),
    "packed bias": _named([120, 33], [170, 40], mode="group", bias="elementwise"),
}
"""Problems of the forward beside what is drawn: every feature alone and together, ragged sizes, empty rows."""


def named_calls(own: list[dict[str, Any]], bounds: Bounds, seed: int) -> Iterator[Call]:
    """Of NAMED what a signature fits, for the head dims and for smaller ones, which kernels pad with zeros."""
    for name, (sizes, wanted) in NAMED.items():
        fits = [s for s in own if all(s[axis] == value for axis, value in {**PLAIN, **wanted}.items())]
        for signature in fits[:1]:
            hdim = int(signature["hdim_q"]), int(signature["hdim_v"])
            for less in ((0, 0), (8, 16)):
                dims = {"hdim_q": hdim[0] - less[0], "hdim_v": hdim[1] - less[1]}
                problem = problems.make(
                    dict(signature), problems.Sizes(**{"store_randval": False, **dims, **sizes}), seed
                )
                yield call("fmha_fwd", problem, bounds, said=f"{name}, {dims}, {signature} seed {seed}")


def made(family: str, signature: Signature, sizes: Any, seed: int) -> Any:
    """A random problem of this signature."""
    if family in kv_problems.FAMILIES:
        return kv_problems.make(family, dict(signature), sizes, seed)
    return (gradients if family == BACKWARD else problems).make(dict(signature), sizes, seed)


def call(family: str, problem: Any, bounds: Bounds, said: str = "", **options: Any) -> Call:
    """A problem of `made` as a call. options: further arguments. An append attends where `attend` does not say no."""
    given = {**problem.inputs, **getattr(problem, "only_facade", {}), **options}
    if family == "fmha_fwd_appendkv":
        return _append(problem, given, bounds, said)
    expected = problem.reference()
    outputs = problem.outputs(*[expected] * (family in kv_problems.FAMILIES))
    if bounds.narrow and family != BACKWARD:
        outputs.pop("randval", None)
    judge = partial(_gradient_error if family == BACKWARD else error, problem, expected, bounds)
    return Call(given, outputs, {}, judge, said)


def _append(problem: kv_problems.Problem, given: dict[str, Any], bounds: Bounds, said: str) -> Call:
    """Every byte of q and the cache is the reference's; attention over the grown cache is within its bound."""
    theirs = {**problem.inputs, **{name: problem.inputs[name].copy() for name in kv_problems.WRITTEN}}
    attend = given.pop("attend", True) and kv_problems.attends(problem)
    expected: Any = appendkv(**theirs, attend=attend)
    written = {name: problem.inputs[name] for name in kv_problems.WRITTEN}

    def judge(results: dict[str, np.ndarray]) -> float:
        for name in kv_problems.WRITTEN:
            assert results[name].tobytes() == theirs[name].tobytes(), f"{name} differs from the reference's"
        return error(problem, expected, bounds, results) if attend else 0.0

    outputs = problem.outputs(expected) if attend else {}
    given |= {} if attend else {"attend": False}
    return Call(given, {**written, **outputs}, {name: name for name in written}, judge, said)


def error(problem: Any, expected: Result, bounds: Bounds, results: dict[str, np.ndarray]) -> float:
    """The worst error of out and lse as a share of its bound. AssertionError: as of judged."""
    softcap, of_cache = float(problem.inputs.get("softcap", 0.0)), isinstance(problem, kv_problems.Problem)
    bound = bounds.forward(problem.dtype, softcap, of_cache)
    more = subnormal_weights(problem) + sums_of_bytes(problem, expected) if bounds is CUDA else 0.0
    return judged.excess(bound, expected, results, problem.inputs.get("layout", "bshd"), more)


def _gradient_error(problem: Any, expected: Gradients, bounds: Bounds, results: dict[str, Any]) -> float:
    sizes, softcap = problem.sizes, float(problem.inputs.get("softcap", 0.0))
    terms = max(*sizes.lengths_q, *sizes.lengths_k, 1) * sizes.nhead_q // sizes.nhead_k
    bound, reach = bounds.gradients(problem.dtype, softcap, terms)
    if "randval" in results:
        judged.random_bytes(results["randval"], problem.forward.randval)
    return judged.gradient_excess(bound, expected, results, reach)


def subnormal_weights(problem: Any) -> float:
    """Largest loss of an element of out where weights are kept in fp16: half a step of 2^-24 of each below 2^-14.

    Of every key, in a cache of every one that it holds, over the share that dropout keeps. 0 for other dtypes.
    """
    if problem.dtype != "fp16":
        return 0.0
    v = np.abs(problem.inputs["v"].astype(np.float64))
    columns = 3 if v.ndim == 5 else v.ndim - 1
    keys: Any = tuple(axis for axis in range(v.ndim) if axis != columns)
    if isinstance(problem, problems.Problem):
        keys = -2 if problem.sizes.layout == "bhsd" else -3
    return 2.0**-25 / (1 - float(problem.inputs.get("dropout_p", 0.0))) * float(np.nansum(v, keys).max(initial=0))


def sums_of_bytes(problem: Any, expected: Result) -> Any:
    """Further loss of an element of out where P is e4m3 on a GPU; 0 for other dtypes.

    Scores as the tensor cores sum them, and half a step of a weight below 2^-6 of e4m3's 2^8.
    """
    if not problem.dtype.startswith("fp8") or isinstance(problem, kv_problems.Problem):
        return 0.0
    bhsd = problem.inputs.get("layout") == "bhsd"
    size = expected.score_size if bhsd else np.swapaxes(expected.score_size, -1, -2)
    scale = float(np.max(np.abs(problem.inputs.get("v_descale", 1.0)), initial=0.0))
    values = np.nansum(np.abs(problem.inputs["v"].astype(np.float64)), axis=-2 if bhsd else -3).max(initial=0)
    return 2.0**-11 * size[..., None] * expected.magnitude + 2.0**-18 * scale * float(values)


def longest(family: str, problem: Any, sizes: Any) -> dict[str, int]:
    """max_seqlen arguments, with which the kernel reads index arrays where they lie; none for a call without keys."""
    rows, keys = max(sizes.lengths_q, default=0), max(sizes.lengths_k, default=0)
    more = 0 if "bias" in problem.inputs or (family == BACKWARD and problem.randval) else 3  # columns of theirs
    if family == "fmha_fwd_appendkv":
        return {"max_seqlen_k": max(1, keys + sizes.seqlen_new)}
    if (pads := problem.inputs.get("cache_leftpad")) is not None:
        more, keys = 0, max(0, *(int(n) - int(pad) for n, pad in zip(sizes.lengths_k, pads, strict=True)))
    if keys == 0 or (family == BACKWARD and rows == 0):
        return {}
    return {
        "max_seqlen_q": max(1, rows + (more if family in ("fmha_fwd", BACKWARD) else 0)),
        "max_seqlen_k": keys + more,
    }


def poison_unused(inputs: dict[str, Any]) -> None:
    """NaN wherever no sequence has a key: in other pages, behind the last key of a page, in other rows of the cache."""
    lengths: Any = inputs.get("seqlen_k")
    size, pages = _page_size(inputs), list[Any]()
    if "kv_indptr" in inputs:
        pages = [inputs["kv_page_indices"][a:b] for a, b in itertools.pairwise(inputs["kv_indptr"])]
        last = inputs["kv_last_page_lens"]
        lengths = [(len(one) - 1) * size + int(n) if len(one) else 0 for one, n in zip(pages, last, strict=True)]
    elif (table := inputs.get("block_table")) is not None:
        pages = [row[: -(-int(n) // size)] for row, n in zip(table, lengths, strict=True)]
    elif lengths is None:
        return
    else:  # (batch, seqlen, ...): a row of one page each
        pages = [[row] for row in inputs.get("cache_batch_idx", range(len(lengths)))]
    for name in ("k", "v"):
        array = inputs[name]
        unused = np.ones((len(array), size), bool)
        for one, length in zip(pages, lengths, strict=True):
            for index, page in enumerate(one):
                unused[page, : max(0, min(size, int(length) - index * size))] = False
        if array.ndim == 5 and name == "v":  # (pages, nhead, page / vec, hdim, vec)
            whole = array.transpose(0, 2, 4, 1, 3)
            whole[unused.reshape(len(array), -1, array.shape[4])] = np.nan
        elif array.ndim == 5:  # (pages, nhead, hdim / vec, page, vec)
            array.transpose(0, 3, 1, 2, 4)[unused] = np.nan
        elif array.ndim == 3:
            array[unused[:, 0]] = np.nan
        else:
            (np.swapaxes(array, 1, 2) if inputs.get("layout") == "bhsd" else array)[unused] = np.nan


def _page_size(inputs: dict[str, Any]) -> int:
    k = inputs["k"]
    return 1 if k.ndim == 3 else k.shape[3] if k.ndim == 5 else k.shape[2 if inputs.get("layout") == "bhsd" else 1]
