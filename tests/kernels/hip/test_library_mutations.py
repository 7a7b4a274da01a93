# SPDX-License-Identifier: MIT
"""Faults written into the backward and the caches of a library: problems of the facade over hipsim must see each.

Emulated (functional), never run on AMD silicon. A run draws some by the seed of the day; `--full` takes all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.hip import test_backward, test_cache, test_registers
from tests.kernels.hip.forward import ROOT
from tests.kernels.hip.test_library import TARGETS, run
from tools.executor.amdgcn.code_object import ARCHITECTURES

WHERE = {"backward": test_backward.WHERE, "caches": test_cache.WHERE}
FAMILIES = {  # of a dtype of 16 bits
    "fmha_bwd_dq_dk_dv": "backward",
    "fmha_fwd_splitkv": "caches",
    "fmha_batch_prefill": "caches",
    "fmha_fwd_appendkv": "caches",
}
DTYPE = "bf16"
BACKWARD = "kernels/attention/fmha_bwd/dq_dk_dv/hip/backward.hip"
FORWARD = "kernels/attention/fmha_fwd/hip/forward.hip"
COMBINE = "kernels/attention/fmha_fwd_splitkv/hip/combine.hip"
APPEND = "kernels/attention/fmha_fwd_appendkv/append.h"
KERNELS = {  # name of the code object, for an architecture
    BACKWARD: "fmha_bwd_{}_d128",
    FORWARD: "fmha_cache_{}_d128",
    COMBINE: "fmha_combine_{}",
    APPEND: "fmha_append_{}",
}
# (file, text, what it becomes wherever it stands, family whose problems must see it)
MUTATIONS: dict[str, tuple[str, str, str, str]] = {
    "tiles are not published": (
        BACKWARD,
        "delta[thread] = row_delta;\n  publish();",
        "delta[thread] = row_delta;",
        "fmha_bwd_dq_dk_dv",
    ),
    "dS is not published": (BACKWARD, "      publish();\n      add_to", "      add_to", "fmha_bwd_dq_dk_dv"),
    "hidden pairs count": (BACKWARD, "row >= first && row < last ? weight : 0.f", "weight", "fmha_bwd_dq_dk_dv"),
    "the diagonal is off by one": (
        BACKWARD,
        "first = w.key - s.shift - p.right - w.first;",
        "first = w.key - s.shift - p.right - w.first + 1;",
        "fmha_bwd_dq_dk_dv",
    ),
    "the left edge is off by one": (
        BACKWARD,
        "p.left - w.first + 1);",
        "p.left - w.first);",
        "fmha_bwd_dq_dk_dv",
    ),
    "dS without D": (
        BACKWARD,
        "x.p[r] * (x.ds[r] - delta[block + row_of(r, w.half)])",
        "x.p[r] * x.ds[r]",
        "fmha_bwd_dq_dk_dv",
    ),
    "dP is not dropped": (
        BACKWARD,
        "x.p[r] * (x.ds[r] * scale - delta[row])",
        "x.p[r] * (x.ds[r] - delta[row])",
        "fmha_bwd_dq_dk_dv",
    ),
    "the soft cap has no slope": (
        BACKWARD,
        "  each([&](int r) TILEKILN_LAMBDA { x.ds[r] *= slope[r]; });",
        "",
        "fmha_bwd_dq_dk_dv",
    ),
    "dk is not scaled": (BACKWARD, "T(dk[d][r] * p.softmax_scale)", "T(dk[d][r])", "fmha_bwd_dq_dk_dv"),
    "shares of dq are not cleared": (
        BACKWARD,
        "i += kRowThreads) to[i] = 0.f;",
        "i += kRowThreads) ;",
        "fmha_bwd_dq_dk_dv",
    ),
    "dq is stored, not added": (
        BACKWARD,
        "__builtin_amdgcn_global_atomic_fadd_f32(\n"
        "            (Global<float>)((Global<char>)sums + (row * hdim + w.column + column) * 4u), dq[r])",
        "sums[row * hdim + w.column + column] = dq[r]",
        "fmha_bwd_dq_dk_dv",
    ),
    "keys past the end are stored": (
        BACKWARD,
        "  if (w.key < s.seqlen_k) store_keys",
        "  store_keys",
        "fmha_bwd_dq_dk_dv",
    ),
    "LSE in base e": (BACKWARD, "kInfinity : lse * kLog2e;", "kInfinity : lse;", "fmha_bwd_dq_dk_dv"),
    "dbias of hidden tiles is not cleared": (
        BACKWARD,
        "dbias[i * p.dbias_row + key] = T(0.f);",
        ";",
        "fmha_bwd_dq_dk_dv",
    ),
    "d_sink has the other sign": (BACKWARD, "[h] = -sum;", "[h] = sum;", "fmha_bwd_dq_dk_dv"),
    "every key lies in the page of the first": (
        FORWARD,
        "fmha::find_page(p.at, *m.keys, m.keys->first + n + row);",
        "fmha::find_page(p.at, *m.keys, m.keys->first + n);",
        "fmha_batch_prefill",
    ),
    "values past the keys are loaded": (
        FORWARD,
        "const bool inside = is_seen(row + j) && column < m.hdim_v;",
        "const bool inside = column < m.hdim_v;",
        "fmha_fwd_splitkv",
    ),
    "splits share a place": (FORWARD, "* p.splits + w.split;", "* p.splits;", "fmha_fwd_splitkv"),
    "a split goes on to the end": (
        FORWARD,
        "  r.last = min(r.first + part, r.last);\n",
        "",
        "fmha_fwd_splitkv",
    ),
    "each split has the sink columns": (FORWARD, "  if (w.split > 0) r.sinks = 0;\n", "", "fmha_fwd_splitkv"),
    "heads that share a key head read one query": (
        FORWARD,
        "p.q_row + query.head * int(p.q_head);",
        "p.q_row;",
        "fmha_fwd_splitkv",
    ),
    "parts are not weighted": (
        COMBINE,
        "o += exp2(lse[s] - base) * part",
        "o += part",
        "fmha_fwd_splitkv",
    ),
    "LSE of parts in base 2": (COMBINE, "(base + log2(sum)) * kLn2", "(base + log2(sum))", "fmha_fwd_splitkv"),
    "rotated to the other side": (
        APPEND,
        "product(x0, cos) - Gpu::product(x1, sin)",
        "product(x0, cos) + Gpu::product(x1, sin)",
        "fmha_fwd_appendkv",
    ),
    "new keys lie at the page's begin": (APPEND, "+ page.key * p.k_key;", "+ token * p.k_key;", "fmha_fwd_appendkv"),
    "new values are those of the first head": (
        APPEND,
        "from[h * p.vnew_head + i]",
        "from[i]",
        "fmha_fwd_appendkv",
    ),
}

pytestmark = [pytest.mark.xdist_group("hip"), pytest.mark.usefixtures("binding", "executor")]


def digest(elf: bytes) -> str:
    """As tools/executor/hipsim/module.cpp: FNV-1a."""
    made = 0xCBF29CE484222325
    for byte in elf:
        made = (made ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{made:016x}"


def mutants(library: Path, family: str, architecture: str, place: Path, *more: str) -> dict[str, Any]:
    """Last line of tests/kernels/hip/mutants.py, read as JSON."""
    words = ["-m", "tests.kernels.hip.mutants", "--library", str(library), "--family", family, "--dtype", DTYPE]
    said, code = run([*words, "--place", str(place), *more], architecture)
    assert code == 0, said
    read: dict[str, Any] = json.loads(said.splitlines()[-1])
    return read


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", FAMILIES)
def test_waits(build_library: Callable[..., Path], family, architecture, pytestconfig, tmp_path):
    """Each wait taken out, each counter one weaker, each s_nop one shorter. What survives is named with its reason."""
    library = build_library("ck_default", targets=TARGETS, where=WHERE[FAMILIES[family]])
    more = [] if pytestconfig.option.full else ["--most", "16", "--seed", str(pytestconfig.option.sample_seed)]
    told = mutants(library, family, architecture, tmp_path, *more)
    print(f"{family} {architecture}: {told['problems']} problems; {told['seen']}")
    for reason, names in told["survived"].items():
        print(f"  {reason}:", *names, sep="\n    ")
    waits = [counts for kind, counts in told["seen"].items() if kind != "shortened"]
    seen = sum(count for counts in waits for fault, count in counts.items() if fault != "survived")
    # No problem can see code that was never executed, or never found anything to wait for.
    again = [name for reason, names in told["survived"].items() if reason.startswith("waited") for name in names]
    assert seen >= (20 if pytestconfig.option.full else 2)
    assert len(again) <= 2 + seen // 4, again


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_mutation_is_seen(build_library: Callable[..., Path], mutation, pytestconfig, tmp_path):
    source, old, new, family = MUTATIONS[mutation]
    library = build_library("ck_default", targets=TARGETS, where=WHERE[FAMILIES[family]])
    tree = tmp_path / "tree"
    copy = tree / source
    copy.parent.mkdir(parents=True)
    text = (ROOT / source).read_text()
    assert old in text, f"{old!r} does not stand in {source}"
    copy.write_text(text.replace(old, new))
    here = random.Random(f"{pytestconfig.option.sample_seed} {mutation}").choice(list(ARCHITECTURES))
    for architecture in ARCHITECTURES if pytestconfig.option.full else [here]:
        _, kernel = test_registers.LISTED[f"{KERNELS[source].format(architecture)}-{DTYPE}"]
        place = tmp_path / architecture
        place.mkdir()
        whole = digest(test_registers.compiled(architecture, kernel, place).read_bytes())
        fault = test_registers.compiled(architecture, kernel, place, tree)
        seen = mutants(library, family, architecture, place, "--object", f"{whole}={fault}")["seen"][whole]
        print(f"{mutation}, {architecture}: {seen[0]}")
        assert seen[0], f"{mutation}: not seen on {architecture}"
