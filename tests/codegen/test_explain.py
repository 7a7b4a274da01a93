"""explain: literal answers, and a verdict that never differs from the plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.errors import CodegenError
from codegen.explain import explain
from codegen.plan import resolve
from codegen.tree import tree
from tests.codegen.brute import AXES, RECEIPTS, selected, signatures

AVX2 = ["cpu-avx2"]


def ask(receipt: str, text: str) -> str:
    return explain(tree(), receipt, text, AVX2)


def test_a_listed_signature() -> None:
    full = (
        "dtype=bf16 hdim_q=128 hdim_v=128 mode=batch mask=window bias=none lse=yes dropout=no softcap=no "
        "skip_min_seqlen_q=no sink=no qscale=none"
    )
    name = "fmha_fwd_bf16_d128x128_batch_window_nbias_lse_ndropout_nsoftcap_nskip_nsink_nqscale_qlanes_b64x64_cpu_avx2"
    target = "" if tree().native().name == "cpu-avx2" else " target=cpu-avx2"
    expected = (
        f"yes: flash lists fmha_fwd {full}\n1 instance:\n  {name}\nbuild: scons receipt=flash{target} where='{full}'"
    )
    assert ask("flash", f"fmha_fwd {full}") == expected
    assert ask("2", full) == expected
    assert ask("flash", name) == expected


def test_a_rule_is_named_with_its_sentence() -> None:
    assert ask("flash", "fmha_fwd dtype=bf16 hdim_q=128 bias=alibi softcap=yes").splitlines() == [
        "no: flash does not list fmha_fwd dtype=bf16 hdim_q=128 bias=alibi softcap=yes",
        "  rule softcap_without_bias: a soft cap is allowed only without a bias",
        "nearest in flash:",
        "  the same with bias=none",
        "  the same with softcap=no",
        "No receipt can list it.",
    ]


def test_the_clause_that_drops_it_and_who_lists_it() -> None:
    target = "" if tree().native().name == "cpu-avx2" else " target=cpu-avx2"
    assert ask("aiter_batch", "dtype=fp8bf16 hdim_q=64").splitlines() == [
        "no: aiter_batch does not list fmha_fwd dtype=fp8bf16 hdim_q=64",
        "  receipt aiter_batch lists only dtype=fp16,bf16, not dtype=fp8bf16",
        "  receipt aiter_batch lists only hdim_q=128,192, not hdim_q=64",
        "nearest in aiter_batch:",
        "  the same with dtype=fp16",
        "  the same with dtype=bf16",
        "  the same with hdim_q=128",
        "listed by: ck_default (0), ck_extended (1)",
        f"build: scons receipt=ck_default{target} where='dtype=fp8bf16 hdim_q=64'",
    ]


def test_head_dims_that_do_not_exist() -> None:
    assert ask("flash", "dtype=fp32 hdim_q=80").splitlines()[:2] == [
        "no: flash does not list fmha_fwd dtype=fp32 hdim_q=80",
        "  head dims: fp32 has 32x32 48x48 64x64 96x96 128x128 192x192 256x256; "
        "an instance takes any head dims up to its own",
    ]


def test_together_a_rule_and_a_receipt_leave_nothing() -> None:
    """Each axis alone is fine in pytorch: elementwise bias, head dim 192; together a rule forbids what is left."""
    assert "rule hdim_192x128_without_bias" in ask("pytorch", "hdim_q=192 hdim_v=128 bias!=none")


def test_what_no_receipt_lists() -> None:
    answer = ask("fp32", "dtype=fp32 softcap=yes skip_min_seqlen_q=yes")
    assert answer.endswith("No receipt lists it yet: widen one in receipts/ by an `add:` with its reason.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fmha_fwb dtype=bf16", "no family 'fmha_fwb'; nearest: fmha_fwd\nfamilies: fmha_fwd"),
        ("fmha_fwd dtype=bf61", "axis 'dtype' of fmha_fwd has no value 'bf61'; nearest: bf16"),
        ("dtype=bf16 or dtype=fp16", "explain takes one clause, without 'or'"),
    ],
)
def test_wrong_questions(text: str, message: str) -> None:
    with pytest.raises(CodegenError) as raised:
        ask("flash", text)
    assert message in str(raised.value)


def test_every_name_of_a_list_is_understood() -> None:
    for instance in resolve("fp8", ["cpu-avx512bf16"]).instances:
        answer = explain(tree(), "fp8", instance.name, AVX2)
        assert answer.startswith("yes: ")
        assert f"\n  {instance.name}\n" in answer


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(RECEIPTS)), st.tuples(*(st.sampled_from([*values, ""]) for values in AXES.values())))
def test_the_verdict_is_the_plan(receipt: str, values: tuple[str, ...]) -> None:
    """Whole and partial signatures: yes exactly when brute force finds one; every no has a reason."""
    text = " ".join(f"{axis}={value}" for axis, value in zip(AXES, values, strict=True) if value)
    answer = ask(receipt, text)
    mask = RECEIPTS[receipt][2]()
    found = signatures(mask & selected(text) if text else mask)
    assert answer.startswith("yes: " if found else "no: ")
    if found:
        count = "1 instance:" if len(found) == 1 else f"{len(found)} instances:"
        assert answer.splitlines()[1] == count
    else:
        assert answer.splitlines()[1].startswith(("  rule ", "  head dims: ", f"  receipt {receipt} "))
