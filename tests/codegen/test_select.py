# SPDX-License-Identifier: MIT
"""The selection language against brute force over the whole product of the axes, and its errors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.plan.plan import resolve
from codegen.schema import select
from codegen.schema.errors import CodegenError, SelectionError
from codegen.schema.tree import tree
from tests.codegen.brute import AXES, RECEIPTS, nearest, selected, signatures
from tests.sampling import examples

WILDCARDS = (
    "selections have no wildcards: write the values that it may have, as hdim_q=64,128, hdim_q>=64, or leave the axis "
    "out; a pattern of names is for grep, over what list shows"
)
HOW = "write axis=value[,value], axis!=value, axis>=number or axis<=number"


@st.composite
def clauses(draw: st.DrawFn, of: dict[str, list[str]] = AXES) -> str:
    axes = draw(st.lists(st.sampled_from(list(of)), min_size=1, max_size=4, unique=True))
    words = []
    for axis in axes:
        negated = draw(st.booleans())
        count = len(of[axis]) - 1 if negated else len(of[axis])  # to exclude every value is an error
        values = draw(st.lists(st.sampled_from(of[axis]), min_size=1, max_size=count, unique=True))
        words.append(f"{axis}{'!=' if negated else '='}{','.join(values)}")
    return " ".join(words)


selections = st.lists(clauses(), min_size=1, max_size=3).map(" or ".join)


@settings(max_examples=examples(60), deadline=None)
@given(selections)
def test_where_selects_what_brute_force_selects(text: str) -> None:
    expected = signatures(selected(text) & RECEIPTS["ck_default"][1]())
    if not expected:
        with pytest.raises(CodegenError, match="lists no fmha_fwd"):
            resolve("ck_default", ["cpu-generic"], text, "fmha_fwd")
        return
    plan = resolve("ck_default", ["cpu-generic"], text, "fmha_fwd")
    family = plan.tree.families["fmha_fwd"]
    listed = [tuple(axis.values[axis.code_in(i.packed)] for axis in family.axes) for i in plan.instances]
    assert listed == expected


@settings(max_examples=examples(150), deadline=None)
@given(clauses())
def test_a_clause_written_out_reads_back(text: str) -> None:
    family = tree().families["fmha_fwd"]
    (clause,) = select.bind(family, text)
    written = select.text_of(family, clause)
    assert select.bind(family, "" if written == "everything" else written) == [clause]


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("dtpye=bf16", "no axis 'dtpye' in fmha_fwd; nearest: dtype", 0),
        (
            "zzz=1",
            "no axis 'zzz' in fmha_fwd; axes: dtype, hdim_q, hdim_v, mode, mask, bias, lse, dropout, softcap, "
            "skip_min_seqlen_q, sink, qscale",
            0,
        ),
        ("hdim=64", "no axis 'hdim' in fmha_fwd; nearest: hdim_v", 0),
        (
            "dtype=bf16,fp61",
            "axis 'dtype' of fmha_fwd has no value 'fp61'; nearest: fp16; values: fp32, fp16, bf16, fp8bf16, fp8fp32, "
            "fp8fnuzbf16, bf8fnuzbf16",
            11,
        ),
        (
            "mode=group hdim_q=123",
            f"axis 'hdim_q' of fmha_fwd has no value '123'; nearest: {nearest(123, AXES['hdim_q'])}; "
            f"values: {', '.join(AXES['hdim_q'])}",
            18,
        ),
        ("lse=true", "axis 'lse' of fmha_fwd has no value 'true'; nearest: yes; values: no, yes", 4),
        ("lse=?", "axis 'lse' of fmha_fwd has no value '?'; values: no, yes", 4),
        ("mask=causal", "axis 'mask' of fmha_fwd has no value 'causal'; values: none, window", 5),
        ("dtype==bf16", "'==' is written '=': dtype=bf16", 0),
        ("fmha_fwd*d128*", f"'fmha_fwd*d128*' has a '*', and {WILDCARDS}", 0),
        ("dtype=bf16 hdim_q=[16]*", f"'hdim_q=[16]*' has a '[', and {WILDCARDS}", 11),
        ("dtype", f"'dtype' is no condition: {HOW}", 0),
        ("=bf16", f"'=bf16' is no condition: {HOW}", 0),
        ("hdim_q<64", "'<' is written '<=' and a number: 'hdim_q<64'", 0),
        ("dtype>=16", "the values of axis 'dtype' have no order: write = or !=", 0),
        ("hdim_q>=64,96", "'>=' takes one number, not '64,96'", 8),
        ("hdim_q>=bf16", "'>=' takes one number, not 'bf16'", 8),
        ("hdim_q>=513", "this leaves no value of axis 'hdim_q'", 0),
        ("dtype=", "'dtype=' lacks a value", 6),
        ("dtype=bf16,", "'dtype=bf16,' lacks a value", 6),
        ("dtype=bf16 and lse=yes", "'and' is not needed: conditions side by side must all hold", 11),
        ("dtype=bf16 | lse=yes", "'|' is written 'or'", 11),
        ("or dtype=bf16", "nothing stands before this 'or'", 0),
        ("dtype=bf16 or", "nothing stands after this 'or'", 11),
        ("dtype=bf16 or or lse=yes", "nothing stands before this 'or'", 14),
        ("lse=yes lse=no", "this leaves no value of axis 'lse'", 8),
        ("lse!=yes,no", "this leaves no value of axis 'lse'", 0),
    ],
)
def test_a_wrong_selection_names_the_word_and_the_nearest_right_one(text: str, message: str, offset: int) -> None:
    with pytest.raises(SelectionError) as raised:
        select.bind(tree().families["fmha_fwd"], text)
    assert (raised.value.message, raised.value.offset) == (message, offset)
