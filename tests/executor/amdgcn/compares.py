# SPDX-License-Identifier: MIT
"""Compares of every type and relation, as cases of `instructions`: 1 where the lane's bit of the mask is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.executor.amdgcn.assembled import ALL, GFX9, RDNA
from tests.executor.amdgcn.instructions import I64, U32, Case, f, half, i, low, wide

RELATIONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal}
NEGATED = {"nlt": np.less, "nle": np.less_equal, "ngt": np.greater, "nge": np.greater_equal, "neq": np.equal}


def _compare(name: str, test: Callable[..., Any], sources: str, on: tuple[str, ...] = ALL) -> Case:
    """1 where the lane's bit of the mask is set."""
    return Case(
        f"{name} {{vcc}}, {{a}}, {{b}}\nv_cndmask_b32 {{d}}, 0, 1, {{vcc}}",
        lambda a, b: test(a, b).astype(U32),
        on,
        sources,
    )


COMPARES = [
    *(
        _compare(f"v_cmp_{name}_{kind}", lambda a, b, test=test, view=view: test(view(a), view(b)), "nn")
        for name, test in (*RELATIONS.items(), ("ne", np.not_equal))
        for kind, view in (("i32", i), ("u32", lambda x: x))
    ),
    *(
        _compare(f"v_cmp_{name}_f32", lambda a, b, test=test: test(f(a), f(b)), "qq")
        for name, test in RELATIONS.items()
    ),
    *(_compare(f"v_cmp_{name}_f32", lambda a, b, test=test: ~test(f(a), f(b)), "qq") for name, test in NEGATED.items()),
    _compare("v_cmp_u_f32", lambda a, b: np.isnan(f(a)) | np.isnan(f(b)), "qq"),
    _compare("v_cmp_o_f32", lambda a, b: ~(np.isnan(f(a)) | np.isnan(f(b))), "qq"),
    _compare("v_cmp_lg_f32", lambda a, b: (f(a) < f(b)) | (f(a) > f(b)), "qq"),
    _compare("v_cmp_lt_f16", lambda a, b: half(a) < half(b), "hh", GFX9),
    Case(
        "v_cmp_ngt_f16_sdwa {vcc}, {a}, {b} src0_sel:WORD_1 src1_sel:DWORD\nv_cndmask_b32 {d}, 0, 1, {vcc}",
        lambda a, b: (~(half(a, True) > half(b))).astype(U32),
        GFX9,
        "hh",
    ),
    _compare("v_cmp_gt_u16", lambda a, b: low(a) > low(b), "uu", GFX9),
    _compare(
        "v_cmp_le_i16",
        lambda a, b: low(a).astype(np.uint16).view(np.int16) <= low(b).astype(np.uint16).view(np.int16),
        "uu",
        GFX9,
    ),
]


def _s16(x: Any) -> Any:
    return low(x).astype(np.uint16).view(np.int16)


def _pair(name: str, test: Callable[..., Any], view: Any) -> Case:
    """A compare of pairs: {aa} is {a, c} and {bb} is {b, f}. In every other lane all four words agree in pairs."""
    return Case(
        f"v_cndmask_b32 v17, v15, v17, s[22:23]\nv_cndmask_b32 v16, v14, v16, s[22:23]\n{name} vcc, {{aa}}, {{bb}}\n"
        "v_cndmask_b32 {d}, 0, 1, vcc",
        lambda a, b, c, d: test(view(wide(a, c)), view(np.where(np.arange(64) % 2, wide(b, d), wide(a, c)))).astype(
            U32
        ),
        GFX9,
        "uuuu",
    )


EVERY = {**RELATIONS, "ne": np.not_equal}
ORDERED = {
    **RELATIONS,
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}
KINDS_OF_16 = {"i16": (_s16, EVERY, "nn"), "u16": (low, EVERY, "nn"), "f16": (half, ORDERED, "hh")}


def _compare_exec(name: str, test: Callable[..., Any], sources: str) -> Case:
    """v_cmpx writes exec: lanes that it switches off keep the 0."""
    return Case(
        f"v_mov_b32 {{d}}, 0\n{name} {{a}}, {{b}}\nv_mov_b32 {{d}}, 1\ns_mov_b32 exec_lo, -1",
        lambda a, b: test(a, b).astype(U32),
        RDNA,
        sources,
    )


WIDER_COMPARES = [
    *(
        _compare(f"v_cmp_{name}_{kind}", lambda a, b, test=test, view=view: test(view(a), view(b)), of, GFX9)
        for kind, (view, tests, of) in KINDS_OF_16.items()
        for name, test in tests.items()
    ),
    *(
        Case(
            f"s_mov_b32 s22, 0xaaaaaaaa\ns_mov_b32 s23, s22\n{case.text}",
            case.expected,
            case.on,
            case.sources,
        )
        for kind, view in (("i64", lambda x: x.view(I64)), ("u64", lambda x: x))
        for name, test in EVERY.items()
        for case in [_pair(f"v_cmp_{name}_{kind}", test, view)]
    ),
    *(
        _compare_exec(f"v_cmpx_{name}_{kind}", lambda a, b, test=test, view=view: test(view(a), view(b)), "nn")
        for kind, view in (("i32", i), ("u32", lambda x: x))
        for name, test in EVERY.items()
    ),
    *(
        _compare_exec(f"v_cmpx_{name}_f32", lambda a, b, test=test: test(f(a), f(b)), "qq")
        for name, test in ORDERED.items()
    ),
    _compare("v_cmp_nlg_f32", lambda a, b: ~((f(a) < f(b)) | (f(a) > f(b))), "qq"),
]

CASES = [*COMPARES, *WIDER_COMPARES]
