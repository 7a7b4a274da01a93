# SPDX-License-Identifier: MIT
"""Signatures of bf16, int8 and fp8 that tiles do not answer: how many of which family, in the page too."""

from __future__ import annotations

import math
from pathlib import Path

from codegen.schema import select
from codegen.schema.axes import Family
from codegen.schema.select import Clause
from codegen.schema.tree import tree
from tests.codegen.test_tiles_answered import FORMATS, PRODUCTS

WITHOUT = {
    "fmha_fwd": 3888,
    "fmha_fwd_splitkv": 720,
    "fmha_fwd_pagedkv": 320,
    "flatmm_quant": 128,
    "fmha_mla_decode": 1,
}
"""Signatures that have a reason in place of an engine, by family: those of the page's table."""


def _of_formats(family: Family) -> list[Clause]:
    """Its legal signatures of FORMATS, as clauses that share nothing."""
    values = [value for value in family.axis_of["dtype"].values if value in FORMATS]
    left = select.bind(family, f"dtype={','.join(values)}")
    for clause in (clause for rule in family.rules for clause in rule.when):
        left = [rest for one in left for rest in select.minus(one, clause)]
    return left


def _count(clauses: list[Clause]) -> int:
    return sum(math.prod(allowed.bit_count() for allowed in clause) for clause in clauses)


def test_those_without_an_engine_are_counted() -> None:
    """In the page too, which says why and what it costs."""
    root, found = tree(), {}
    for name in PRODUCTS:
        family = root.family(name)
        left = legal = _of_formats(family)
        for clause in (clause for how in root.refusals(root.target("cpu-amx"), family) for clause in how.when):
            left = [rest for one in left for rest in select.minus(one, clause)]
        found[name] = _count(legal) - _count(left)
    assert {name: count for name, count in found.items() if count} == WITHOUT
    page = Path("docs/how-to/amx.md").read_text(encoding="utf-8")
    assert f"Of all signatures of bf16, int8, fp8 and bf8 {sum(WITHOUT.values()):,} have no tile engine" in page
    for name, count in WITHOUT.items():
        assert f"| {count:,} | `{name}`" in page
