# SPDX-License-Identifier: MIT
"""explain: literal answers, and a verdict that never differs from the plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import tree
from codegen.tell.explain import explain
from tests.codegen import brute_bwd
from tests.codegen.brute import AXES, RECEIPTS, head_dims, selected, signatures
from tests.sampling import examples

AVX2 = ["cpu-avx2"]


def ask(receipt: str, text: str) -> str:
    return explain(tree(), receipt, text, AVX2).text


def spoken(answer: str) -> list[str]:
    """The lines of an answer, without the receipts that somebody has added to those that tests speak of."""

    def known(line: str) -> str:
        head, colon, names = line.partition("listed by: ")
        kept = [name for name in names.split(", ") if name.partition(" ")[0] in {*RECEIPTS, *brute_bwd.RECEIPTS}]
        return f"{head}{colon}{', '.join(kept)}" if colon else line

    return [known(line) for line in answer.splitlines()]


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


def test_kernels_of_a_gpu_are_named_with_what_they_serve() -> None:
    """Each signature by one kernel."""
    text = explain(tree(), "ck_default", "fmha_fwd dtype=bf16 hdim_q=80,96", ["hip-gfx942"]).text
    assert "256 instances:" not in text
    assert "1536 instances:" in text  # three roundings of P
    served = "2 kernels of hip-gfx942, which serve so many signatures:\n"
    assert f"{served}  fmha_fwd_gfx942_d96-bf16 256\n  fmha_fwd_gfx942_d96_dropout-bf16 256\n" in text
    assert "kernel" not in explain(tree(), "flash", "fmha_fwd dtype=bf16 hdim_q=96", AVX2).text


def test_a_rule_is_named_with_its_sentence() -> None:
    assert ask("flash", "fmha_fwd dtype=bf16 hdim_q=128 bias=elementwise softcap=yes").splitlines() == [
        "no: flash does not list fmha_fwd dtype=bf16 hdim_q=128 bias=elementwise softcap=yes",
        "  rule softcap_without_elementwise_bias: a soft cap is allowed only without an elementwise bias",
        "nearest in flash:",
        "  the same with bias=none",
        "  the same with bias=alibi",
        "No receipt can list it.",
    ]


def test_the_clause_that_drops_it_and_who_lists_it() -> None:
    target = "" if tree().native().name == "cpu-avx2" else " target=cpu-avx2"
    assert spoken(ask("aiter_batch", "dtype=fp8bf16 hdim_q=64")) == [
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
    for family in ("fmha_fwd", "fmha_bwd_dq_dk_dv"):
        pairs = " ".join(f"{q}x{v}" for q, v in sorted(head_dims(family)["fp32"]))
        assert ask("flash", f"{family} dtype=fp32 hdim_q=80").splitlines()[:2] == [
            f"no: flash does not list {family} dtype=fp32 hdim_q=80",
            f"  head dims: fp32 has {pairs}; an instance takes any head dims up to its own",
        ]


def test_without_a_family_each_that_has_these_axes_is_asked() -> None:
    answer = ask("ck_default", "dtype=fp16 hdim_q=80")
    backward, forward = answer.split("\n\n")
    target = "" if tree().native().name == "cpu-avx2" else " target=cpu-avx2"
    assert spoken(backward) == [
        "no: ck_default does not list fmha_bwd_dq_dk_dv dtype=fp16 hdim_q=80",
        "  receipt ck_default lists only hdim_q=32,64,96,128,256, not hdim_q=80",
        "nearest in ck_default:",
        "  the same with hdim_q=96",
        "  the same with hdim_q=64",
        "  the same with hdim_q=128",
        "listed by: flash (2), aiter (600)",
        f"build: scons receipt=flash{target} where='dtype=fp16 hdim_q=80'",
    ]
    assert forward.startswith("yes: ck_default lists fmha_fwd dtype=fp16 hdim_q=80\n")
    assert ask("ck_default", "family=fmha_fwd dtype=fp16 hdim_q=80") == forward


def test_a_companion_is_there_where_its_main_family_needs_it() -> None:
    target = "" if tree().native().name == "cpu-avx2" else " target=cpu-avx2"
    assert ask("pytorch", "fmha_bwd_convert_dq dtype=bf16 hdim_q=64 mode=group deterministic=no").splitlines()[:3] == [
        "yes: pytorch lists fmha_bwd_convert_dq dtype=bf16 hdim_q=64 mode=group deterministic=no",
        "1 instance:",
        "  fmha_bwd_convert_dq_bf16_d64_group_ndeterministic_qlanes_b64_cpu_avx2",
    ]
    assert spoken(ask("pytorch", "fmha_bwd_convert_dq_bf16_d64_group_deterministic_qlanes_b64_cpu_avx2")) == [
        "no: pytorch does not list fmha_bwd_convert_dq dtype=bf16 hdim_q=64 mode=group deterministic=yes",
        "  fmha_bwd_convert_dq comes with fmha_bwd_dq_dk_dv, which is not listed either:",
        "  receipt pytorch lists only deterministic=no, not deterministic=yes",
        "nearest in pytorch:",
        "  the same with deterministic=no",
        "listed by: ck_default (0), ck_extended (1), flash (2), aiter_bwd_group (400), aiter (600), "
        "transformer_engine (700)",
        f"build: scons receipt=ck_default{target} where='dtype=bf16 hdim_q=64 mode=group deterministic=yes'",
    ]
    assert ask("fp8", "fmha_bwd_dot_do_o dtype=fp16").splitlines()[1:5] == [
        "  fmha_bwd_dot_do_o comes with fmha_bwd_dq_dk_dv, which is not listed either:",
        "  receipt fp8 has no fmha_bwd_dq_dk_dv:",
        "    fmha_fwd dtype=fp8bf16,fp8fp32,fp8fnuzbf16,bf8fnuzbf16 hdim_q=128,192 softcap=no",
        "    or dtype=fp8bf16,fp8fp32,fp8fnuzbf16,bf8fnuzbf16 hdim_q=128,192",
    ]


def test_together_a_rule_and_a_receipt_leave_nothing() -> None:
    """Each axis alone is fine in pytorch: elementwise bias, head dim 192; together a rule forbids what is left."""
    assert "rule hdim_192x128_without_bias" in ask("pytorch", "hdim_q=192 hdim_v=128 bias!=none")


def test_what_no_receipt_lists() -> None:
    answer = ask("fp32", "fmha_fwd dtype=fp32 softcap=yes skip_min_seqlen_q=yes")
    assert answer.endswith("No receipt lists it yet: widen one in receipts/ by an `add:` with its reason.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "fmha_fwb dtype=bf16",
            "no family 'fmha_fwb'; nearest: fmha_fwd\nfamilies: batched_contraction, batched_gemm, ",
        ),
        (
            "lse=yes deterministic=yes",
            "explain: no family has all of 'lse=yes deterministic=yes'; families: batched_contraction, batched_gemm, ",
        ),
        ("dbias=7", "axis 'dbias' of fmha_bwd_dq_dk_dv has no value '7'; values: no, yes"),
        (
            "fmha_fwd dtype=bf61",
            "axis 'dtype' of fmha_fwd has no value 'bf61'; nearest: bf16; values: fp32, fp16, bf16",
        ),
        ("dtype=bf16 or dtype=fp16", "explain takes one clause, without 'or'"),
    ],
)
def test_wrong_questions(text: str, message: str) -> None:
    with pytest.raises(CodegenError) as raised:
        ask("flash", text)
    assert message in str(raised.value)


@pytest.mark.day
def test_every_name_of_a_list_is_understood(pytestconfig: pytest.Config) -> None:
    """A fifth of the names a day, all with --full."""
    part = slice(None) if pytestconfig.option.full else slice(pytestconfig.option.sample_seed % 5, None, 5)
    for receipt in ("fp8", "aiter_bwd_batch"):
        for instance in resolve(receipt, ["cpu-avx512bf16"]).instances[part]:
            answer = explain(tree(), receipt, instance.name, AVX2).text
            assert answer.startswith("yes: ")
            assert f"\n  {instance.name}\n" in answer


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(list(RECEIPTS)), st.tuples(*(st.sampled_from([*values, ""]) for values in AXES.values())))
def test_the_verdict_is_the_plan(receipt: str, values: tuple[str, ...]) -> None:
    """Whole and partial signatures: yes exactly when brute force finds one; every no has a reason."""
    text = " ".join(f"{axis}={value}" for axis, value in zip(AXES, values, strict=True) if value)
    answer = ask(receipt, f"fmha_fwd {text}")
    mask = RECEIPTS[receipt][1]()
    found = signatures(mask & selected(text) if text else mask)
    assert answer.startswith("yes: " if found else "no: ")
    if found:
        count = "1 instance:" if len(found) == 1 else f"{len(found)} instances:"
        assert answer.splitlines()[1] == count
    else:
        assert answer.splitlines()[1].startswith(("  rule ", "  head dims: ", f"  receipt {receipt} "))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(list(brute_bwd.RECEIPTS)),
    st.sampled_from([brute_bwd.MAIN, *brute_bwd.COMPANIONS]),
    st.tuples(*(st.sampled_from([*values, ""]) for values in brute_bwd.AXES.values())),
)
def test_the_verdict_on_the_backward_is_the_plan(receipt: str, family: str, values: tuple[str, ...]) -> None:
    axes = brute_bwd.COMPANIONS.get(family, list(brute_bwd.AXES))
    words = [f"{axis}={value}" for axis, value in zip(brute_bwd.AXES, values, strict=True) if value and axis in axes]
    answer = ask(receipt, f"{family} {' '.join(words)}")
    mask = brute_bwd.RECEIPTS[receipt]()
    main = brute_bwd.signatures(mask & brute_bwd.selected(" ".join(words)) if words else mask)
    found = main if family == brute_bwd.MAIN else brute_bwd.projected(main, family)
    assert answer.startswith("yes: " if found else "no: ")
    if found:
        assert answer.splitlines()[1] == ("1 instance:" if len(found) == 1 else f"{len(found)} instances:")


def test_a_name_of_cks() -> None:
    """As listings of planned targets have it; of the targets that are asked for, or of all that CK has names on."""
    plan = resolve("flash", ["ck-gfx942"], "family=fmha_fwd dtype=bf16 hdim_q=128")
    instance = plan.instances[-1]
    name = plan.ck_name(instance)
    assert name
    assert name != instance.name
    said = explain(tree(), "flash", name, ["ck-gfx942"])
    assert said.listed
    assert said.text == explain(tree(), "flash", instance.name, ["ck-gfx942"]).text
    assert instance.name in said.text
    with pytest.raises(CodegenError) as error:
        explain(tree(), "flash", f"{name}x", ["ck-gfx942"])
    first = str(error.value).splitlines()[0]
    assert first == (
        f"explain: '{name}x' is no family and no name of an instance, nor is it CK's name of one that flash lists for "
        "ck-gfx942"
    )


def test_a_size_that_a_device_has_no_kernel_of() -> None:
    """The sizes are the reason, and not a rule on some of the dtypes that were left open."""
    answer = explain(tree(), "ck_default", "fmha_fwd hdim_q=48", ["hip-gfx942"])
    assert not answer.listed
    reason = (
        "target hip-gfx942: none of its kernels has these head dims; kernels/backends/hip/builds.yaml has an entry "
    )
    assert reason in " ".join(answer.text.split())
    assert "rule " not in answer.text
    other = explain(tree(), "ck_default", "fmha_fwd hdim_q=128 dtype=fp32", ["hip-gfx942"])
    assert "rule hip_needs_16_bits of target hip-gfx942" in other.text
