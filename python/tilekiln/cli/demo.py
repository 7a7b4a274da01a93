# SPDX-License-Identifier: MIT
"""python -m tilekiln.cli.demo RECEIPT...: what a library holds, and attention with it on real arrays.

Per case: the error against the float64 reference and the time of one core (thread CPU time); in a source tree, where
`scons demo` measures that core's peak in the same run, the share of it as well. Ends with 1 when an error is above its
bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import reference
from .._core.native import NoKernelError
from ..api.library import Library, load

SECONDS = 0.25
"""The time one case is repeated for."""


class Case(NamedTuple):
    """One problem: a title, the arrays' dtype, sizes, and the arguments that make it special."""

    title: str
    dtype: str
    nhead_q: int
    nhead_k: int
    seqlen: int
    hdim_q: int
    hdim_v: int
    arguments: Mapping[str, Any] = types.MappingProxyType({})


class Outcome(NamedTuple):
    """Result of a case: the instance that ran, its errors, its time and its operations."""

    instance: int
    error: float
    of_bound: float
    seconds: float
    flops: float


CAUSAL: dict[str, Any] = {"causal": True}
GROUP: dict[str, Any] = {"causal": True, "group": (700, 1, 0, 323)}
CASES = [
    *(
        Case(f"{name}{title}", dtype, 8, 8, 1024, hdim, hdim, arguments)
        for dtype, name in (("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
        for hdim, title, arguments in ((128, "", {}), (128, ", causal", CAUSAL), (64, "", {}))
    ),
    Case("grouped heads, causal", "bf16", 16, 4, 1024, 128, 128, CAUSAL),
    Case("sequences of 700, 1, 0, 323", "bf16", 8, 8, 1024, 128, 128, GROUP),
    Case("window (256, 0)", "bf16", 8, 8, 2048, 64, 64, {"window": (256, 0)}),
    Case("alibi, causal", "bf16", 8, 8, 1024, 64, 64, {"causal": True, "alibi_slopes": True}),
    Case("bias", "fp16", 8, 8, 1024, 64, 64, {"bias": True}),
    Case("bias", "fp32", 8, 8, 1024, 64, 64, {"bias": True}),
    Case("soft cap 30", "bf16", 8, 8, 1024, 128, 128, {"softcap": 30.0}),
    Case("dropout 0.1", "bf16", 8, 8, 1024, 128, 128, {"dropout_p": 0.1, "rng": (2026, 0)}),
    Case("sink logits, causal", "bf16", 8, 8, 1024, 64, 64, {"causal": True, "sink": True}),
    Case("head dims 192 and 128", "bf16", 8, 8, 1024, 192, 128, CAUSAL),
    Case("head dim 59", "fp32", 8, 8, 1024, 59, 59),
    Case("head dim 48", "fp32", 8, 8, 1024, 48, 48),
    Case("fp8, a scale per tensor", "fp8bf16", 8, 8, 1024, 128, 128, {"causal": True, "descale": (1,)}),
    Case("fp8, a scale per block", "fp8bf16", 8, 8, 1024, 128, 128, {"causal": True, "descale": (1, 8, 8)}),
    Case("fp8, fp32 out", "fp8fp32", 8, 8, 1024, 128, 128, {"descale": (1,)}),
]


def _arrays(case: Case) -> dict[str, Any]:
    """q, k, v and named arguments of a case, with the arrays that its marks stand for."""
    from .._core.dtypes import NUMPY

    storage = NUMPY.get(case.dtype, NUMPY["fp8"])
    random = np.random.default_rng(2026)

    def normal(*shape: int, dtype: Any = storage) -> Any:
        return random.standard_normal(shape, np.float32).astype(dtype)

    arguments = dict(case.arguments)
    lengths = arguments.pop("group", None)
    first = () if lengths else (1,)
    call = {
        "q": normal(*first, case.seqlen, case.nhead_q, case.hdim_q),
        "k": normal(*first, case.seqlen, case.nhead_k, case.hdim_q),
        "v": normal(*first, case.seqlen, case.nhead_k, case.hdim_v),
    }
    if lengths:
        call["cu_seqlens_q"] = call["cu_seqlens_k"] = np.cumsum((0, *lengths)).astype(np.int32)
    if arguments.pop("bias", False):
        call["bias"] = normal(1, case.nhead_q, case.seqlen, case.seqlen)
    if arguments.pop("alibi_slopes", False):
        call["alibi_slopes"] = np.float32(2.0) ** -np.arange(1, case.nhead_q + 1, dtype=np.float32)
    if arguments.pop("sink", False):
        call["sink"] = normal(case.nhead_q, dtype=np.float32)
    descale = arguments.pop("descale", None)
    if descale:
        call |= {f"{name}_descale": random.uniform(0.5, 1.0, descale).astype(np.float32) for name in "qkv"}
        if case.dtype == "fp8fp32":
            call["out_dtype"] = "fp32"
    return call | arguments


def _first_heads(case: Case, call: dict[str, Any]) -> dict[str, Any]:
    """The same problem for the query heads of the first key head: what the reference computes, to save time."""
    heads = case.nhead_q // case.nhead_k
    part = {name: value for name, value in call.items() if name != "out_dtype"}
    part |= {"q": call["q"][..., :heads, :], "k": call["k"][..., :1, :], "v": call["v"][..., :1, :]}
    for name in ("alibi_slopes", "sink"):
        if name in part:
            part[name] = part[name][:heads]
    if "bias" in part:
        part["bias"] = part["bias"][:, :heads]
    for name, count in (("q_descale", heads), ("k_descale", 1), ("v_descale", 1)):
        if name in part and part[name].ndim == 3:
            part[name] = part[name][:, :count]
    return part


def _pairs(case: Case) -> int:
    """The number of (query, key) pairs that are visible, of one head."""
    lengths = case.arguments.get("group", (case.seqlen,))
    mask = {name: case.arguments[name] for name in ("causal", "window") if name in case.arguments}
    return sum(int(reference.visible(length, length, **mask).sum()) for length in lengths)


def run(library: Library, case: Case) -> Outcome | None:
    """Compute a case with the library; None when it has no kernel for it."""
    call = _arrays(case)
    try:
        instance = library.fmha_fwd_find(**call)
    except NoKernelError:
        return None
    out = library.fmha_fwd(**call, num_threads=1)
    expected = reference.forward(**_first_heads(case, call))
    part = out[..., : case.nhead_q // case.nhead_k, :]
    error = float(np.nanmax(np.abs(part.astype(np.float64) - expected.out)))
    samples: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(samples) < 5:
        begin = time.thread_time()
        library.fmha_fwd(**call, out=out, num_threads=1)
        samples.append(time.thread_time() - begin)
    flops = 2.0 * case.nhead_q * _pairs(case) * (case.hdim_q + case.hdim_v)
    return Outcome(instance, error, reference.excess(case.dtype, expected, part), float(np.median(samples)), flops)


Peak = Callable[[str], float]
"""Gives the peak of this core in flop/s: of "fma" (fp32), "bf16" (dot product) or "tiles" (of bf16), 0 where the CPU
lacks that."""


def _peaks(library: Library, peak: Peak | None) -> dict[str, float]:
    """The peak of this core in flop/s by dtype; empty where nothing measures it."""
    if peak is None:
        return {}
    fma = peak("fma")
    bf16 = (peak("bf16") if library.isa == "avx512bf16" else 0.0) or fma
    if library.isa == "amx":
        bf16 = peak("tiles") or bf16
    return {"fp32": fma, "fp16": fma, "bf16": bf16, "fp8bf16": bf16, "fp8fp32": fma}


def _contents(library: Library) -> Iterator[list[str]]:
    """Rows of the table of what a library holds: by dtype, the values of every axis."""
    instances = [instance for instance in library.instances() if instance.family == "fmha_fwd"]
    for dtype in dict.fromkeys(instance.signature["dtype"] for instance in instances):
        mine = [instance for instance in instances if instance.signature["dtype"] == dtype]
        dims = dict.fromkeys((i.signature["hdim_q"], i.signature["hdim_v"]) for i in mine)
        features = []
        for axis in ("mode", "mask", "bias", "lse", "dropout", "softcap", "skip_min_seqlen_q", "sink", "qscale"):
            values = dict.fromkeys(instance.signature[axis] for instance in mine)
            if values.keys() == {False, True}:
                features.append(f"[{axis}]")
            elif values.keys() - {False, "none"}:
                features.append(
                    "|".join(axis if value is True else str(value) for value in values if value is not False)
                )
        yield [dtype, f"{len(mine):,}", " ".join(f"{q}" if q == v else f"{q}x{v}" for q, v in dims), " ".join(features)]


def show(library: Library, measure: Peak | None = None) -> bool:
    """Print what the library holds and what the cases gave. False when an error is above its bound."""
    import rich.box
    import rich.console
    import rich.table

    console = rich.console.Console(width=None if sys.stdout.isatty() else 132, highlight=False)
    box = rich.box.SIMPLE_HEAD if console.is_terminal else None

    def table(*columns: str) -> rich.table.Table:
        made = rich.table.Table(box=box, pad_edge=False)
        for name in columns:
            made.add_column(name, justify="right" if name not in ("dtype", "features", "case", "head dims") else "left")
        return made

    path = pathlib.Path(library.path)
    targets = ", ".join(target["name"] for target in library.manifest["targets"])
    size = path.stat().st_size / 1e3
    console.print(f"[bold]{library.receipt}[/]: {library.instance_count:,} instances for {targets}")
    if not any(instance.family == "fmha_fwd" for instance in library.instances()):
        console.print(f"{os.path.relpath(path)}, {size:,.0f} kB.\n", markup=False)
        console.print(
            "The demo computes forward attention (fmha_fwd), which this receipt leaves out. It has "
            f"{', '.join(library.manifest['families'])}."
        )
        return True
    console.print(f"{os.path.relpath(path)}, {size:,.0f} kB. In brackets: with and without.\n", markup=False)
    held = table("dtype", "instances", "head dims", "features")
    for row in _contents(library):
        held.add_row(*(text.replace("[", "\\[") for text in row))
    console.print(held)

    peaks = _peaks(library, measure)
    results = table("case", "dtype", "heads", "seqlen", "hdim", "max error", "of bound", "ms", "Gflop/s", "of peak")
    good, ran = True, 0
    for case in CASES:
        outcome = run(library, case)
        if outcome is None:
            continue
        ran += 1
        good = good and outcome.of_bound <= 1
        speed = outcome.flops / outcome.seconds
        heads = f"{case.nhead_q}" if case.nhead_q == case.nhead_k else f"{case.nhead_q}/{case.nhead_k}"
        hdim = f"{case.hdim_q}" if case.hdim_q == case.hdim_v else f"{case.hdim_q}/{case.hdim_v}"
        share = f"{100 * speed / peaks[case.dtype]:.0f} %" if peaks else "-"
        color = "green" if outcome.of_bound <= 1 else "red"
        results.add_row(
            case.title, case.dtype, heads, str(case.seqlen), hdim, f"[{color}]{outcome.error:.1e}[/]",
            f"[{color}]{100 * outcome.of_bound:.0f} %[/]", f"{1e3 * outcome.seconds:.2f}", f"{speed / 1e9:.0f}", share,
        )  # fmt: skip
    console.print()
    console.print(results)
    peak = f"Peak of this core: {peaks['fp32'] / 1e9:.0f} Gflop/s fp32" if peaks else "Peak of this core: not measured"
    if peaks and peaks["bf16"] != peaks["fp32"]:
        peak += f", {peaks['bf16'] / 1e9:.0f} bf16"
    console.print(
        f"\n{peak}.\nTimes are CPU time of one thread, on isa {library.isa}; errors are against the float64 reference\n"
        f"and bounds those of tilekiln.reference. Not in this receipt: {len(CASES) - ran} of {len(CASES)} cases."
    )
    if not good:
        console.print("[bold red]Some errors are above their bound.[/]")
    return good


def main(peak: Peak | None = None) -> int:
    """The command line. `peak` measures that of this core."""
    parser = argparse.ArgumentParser(prog="python -m tilekiln.cli.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("receipt", nargs="+", help="name, number or path of a built library")
    receipts = parser.parse_args().receipt
    if importlib.util.find_spec("rich") is None:
        parser.error("the package rich, which draws its tables, is not installed: pip install rich")
    good = True
    for receipt in receipts:
        good = show(load(receipt), peak) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
