# SPDX-License-Identifier: MIT
"""Values that kernels make of fixed problems, as a file: written on a GPU, compared wherever the kernels run again.

A record has the problem (family, signature, sizes and seed, from which its arrays are drawn again), hashes of what went
in and came out, and some elements of each result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.bench.answers import answer
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import drawn as drawer
from tilekiln.reference import kv_problems, problems

from tests import cases
from tests.executor.ptx.device import Executed, device_name

SEED, KEPT = 20261122, 24
OF_OTHERS = 3
"""Problems of a family and dtype other than attention's."""
RELATIVE, OF_RMS = 2.0**-7, 2.0**-8
"""Bound on |executor - GPU|: a step of bf16 of the value, and a part of the result's root mean square. Both sum in
fp32, in orders and with roundings of their own; the GPU's ex2, lg2 and tanh are approximate."""


def hashed(arrays: dict[str, np.ndarray]) -> str:
    made = hashlib.sha256()
    for name in sorted(arrays):
        made.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return made.hexdigest()[:16]


def elements(array: np.ndarray) -> list[float]:
    """KEPT of them at fixed places; what is not finite is left out by both sides alike."""
    flat = np.asarray(array).reshape(-1).astype(np.float64)
    places = np.random.default_rng(len(flat)).integers(0, max(len(flat), 1), KEPT if len(flat) else 0)
    return [float(np.float32(x)) if np.isfinite(x) else 0.0 for x in flat[places]]


def drawn(library: tk.Library) -> list[dict[str, Any]]:
    """Problems of every family that the library has for CUDA targets: what `made` takes."""
    draw, found = random.Random(SEED), []
    for family in attention.FAMILIES:
        held = [dict(one.signature) for one in library.instances() if one.family == family and "_cuda_" in one.name]
        for signature in draw.sample(held, min(len(held), 4)):
            sizes = attention.drawn_sizes(draw, family, signature, attention.EDGES["executor"])
            found.append({"family": family, "signature": signature, "sizes": dataclasses.asdict(sizes), "seed": SEED})
    for (operator, _, hdim), own in cases.signatures(library, "_cuda_").items():
        if hdim:
            continue
        found += [{"family": operator, "signature": draw.choice(own), "seed": SEED + k} for k in range(OF_OTHERS)]
        rows = [signature for signature in own if signature.get("layout_out") == "row"]
        if operator == "gemm" and rows:
            more = [{"family": operator, "signature": draw.choice(rows), "seed": SEED + k} for k in range(OF_OTHERS)]
            found += [{**one, "wide": True} for one in more]
    return found


def made(library: tk.Library, of: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and results of one problem, run on the device."""
    family, seed = of["family"], of["seed"]
    if "sizes" in of:
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in of["sizes"].items()}
        sizes = (kv_problems if family in kv_problems.FAMILIES else problems).Sizes(**lists)
        problem = attention.made(family, of["signature"], sizes, seed)
        options = {"attend": False} if family == "fmha_fwd_appendkv" else {}
        call = attention.call(family, problem, attention.CUDA, **options)
    else:
        edges = drawer.WIDE if of.get("wide") else Executed.edges
        call = drawer.draw(family, drawer.Random(seed, edges), of["signature"])
    results = cases.made(library, cases.operator_of(family), call, Executed())
    judge = call.judge or partial(answer, family, call.given)
    assert judge(results) <= 1, f"{family}({call})"
    given = problem.inputs if "sizes" in of else call.given
    return {name: array for name, array in given.items() if isinstance(array, np.ndarray)}, results


def write(libraries: list[tk.Library], out: Path) -> int:
    """Records of every family of the libraries, from the device here; how many problems no kernel took."""
    records, refused = list[dict[str, Any]](), 0
    for library in libraries:
        for of in drawn(library):
            try:
                inputs, results = made(library, of)
            except (tk.ArgumentError, tk.NoKernelError):
                refused += 1
                continue
            values = {
                name: {"hash": hashed({name: array}), "elements": elements(array)} for name, array in results.items()
            }
            records.append({**of, "inputs": hashed(inputs), "results": values})
    lines = ",\n".join(json.dumps(record) for record in records)
    out.write_text(f'{{"device": {json.dumps(device_name())}, "records": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{out}: {len(records)} problems on {device_name()}, {refused} refused")
    return refused


def compare(library: tk.Library, records: list[dict[str, Any]]) -> tuple[float, int, int, list[str]]:
    """The worst error as a share of its bound, results bit for bit the same, results in all, and what is wrong."""
    worst, same, count, wrong = 0.0, 0, 0, []
    known = {one.family for one in library.instances() if "_cuda_" in one.name}
    for of in records:
        if of["family"] not in known:
            continue
        try:
            inputs, results = made(library, of)
        except tk.NoKernelError:
            continue
        if hashed(inputs) != of["inputs"]:
            wrong.append(f"{of['family']}: the problem's arrays are not those of the GPU's run")
            continue
        for name, array in results.items():
            stored = of["results"][name]
            expected, got = np.array(stored["elements"]), np.array(elements(array))
            count += 1
            same += hashed({name: array}) == stored["hash"]
            bound = (
                RELATIVE * np.abs(expected) + OF_RMS * float(np.sqrt(np.mean(expected**2))) if len(expected) else 0.0
            )
            share = float(np.max(np.abs(got - expected) / np.maximum(bound, 1e-30), initial=0.0))
            worst = max(worst, share)
            if share > 1:
                wrong.append(f"{of['family']} {name}: {share:.2f} of the bound, {of}"[:400])
    return worst, same, count, wrong
