# SPDX-License-Identifier: MIT
"""Planned targets: what GPU receipts list before their kernels exist, with CK's names, and that nothing is built."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from functools import cache

import pytest

from codegen.emit.render import render
from codegen.out.committed import INFO
from codegen.plan.plan import Plan, pick_targets, resolve
from codegen.schema import tile_tables
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree, tree
from codegen.tell import listing
from codegen.tell.check import check
from codegen.tell.explain import explain
from tests.codegen.conftest import Copy

# CK's own counts for its default receipt where they are known: of gfx942 the forward, appendkv, paged KV and the three
# stages of the backward; the others multiply out from its tables.
COUNTS = {
    "ck-gfx942": {
        "fmha_fwd": 7208,
        "fmha_bwd_dq_dk_dv": 6720,
        "fmha_bwd_dot_do_o": 60,
        "fmha_bwd_convert_dq": 120,
        "fmha_fwd_appendkv": 99,
        "fmha_fwd_pagedkv": 168,
        "fmha_fwd_splitkv": 1968,
        "fmha_fwd_splitkv_combine": 132,
        "fmha_batch_prefill": 6304,
    },
    "ck-gfx90a": {"fmha_fwd": 7208 - 360, "fmha_bwd_dq_dk_dv": 6720},
    "ck-gfx950": {"fmha_fwd": 7672, "fmha_bwd_convert_dq": 120},
    "ck-gfx1100": {"fmha_fwd": 5376},
    "ck-gfx1201": {"fmha_fwd": 4472},
    "ck-gfx1250": {"fmha_fwd": 4932, "fmha_fwd_splitkv": 1584, "fmha_bwd_dq_dk_dv": 0},
}
# Names that CK's generator has written.
NAMES = {
    "ck-gfx942": [
        "fmha_fwd_appendkv_d32_fp16_b64x64x32x32_vr_psskddv_half_gfx9",
        "fmha_fwd_appendkv_d256_fp16_b64x64x256x256_vr_psk_pagedkv_gfx9",
        "fmha_fwd_splitkv_combine_d128_bf16_batch_b32_unused_npad_lse_nsquant_gfx9",
        "fmha_fwd_splitkv_combine_d32_fp16_batch_b32_unused_ps_lse_nsquant_gfx9",
        "fmha_batch_prefill_d256_bf16_group_ps16_64bit_b128x128x32x256x32x256_r4x1x1_r4x1x1_w32x32x16_w32x32x16"
        r"_qr_async_vr"
        "_psskddv_nlogits_nbias_mask_lse_dropout_nqscale_nsink_linear_vllm",
        "fmha_bwd_d32_fp16_batch_b32x128x32x32x32x32x64x32x32_r1x4x1_r4x1x1_r2x2x1_w16x16x32_w16x16x16_o1_maxq0"
        "_pd8dv8_bias"
        "_dbias_nmask_dropout_wg16_storerandval_deterministic_ntrload_gfx9",
        "fmha_bwd_d96_fp16_batch_b32x128x96x32x96x32x32x96x96_r1x4x1_r4x1x1_r2x2x1_w16x16x32_w16x16x16_o1_maxq0"
        "_pd1dv1_bias"
        "_dbias_mask_dropout_wg16_storerandval_ndeterministic_ntrload_gfx9",
        "fmha_bwd_dot_do_o_d64_bf16_b64_batch_o2_npad_gfx9",
        "fmha_bwd_dot_do_o_d256_bf16_b64_batch_o2_psdv_gfx9",
        "fmha_bwd_convert_dq_d32_fp16_b64_batch_o2_pd_deterministic_gfx9",
        "fmha_bwd_convert_dq_d96_fp16_b64_batch_o2_pd_ndeterministic_gfx9",
        "fmha_bwd_convert_dq_d32_bf16_b64_batch_o2_psd_ndeterministic_gfx9",
    ],
    "ck-gfx1100": [
        "fmha_fwd_splitkv_d32_fp16_batch_b16x64x16x32x32x32_r1x2x1_r1x2x1_w16x16x16_w16x16x16_qr_nwarp_sshuffle_vr_pssk"
        "_nlogits_nbias_nmask_lse_nsquant_pagedkv_nsink_gfx11"
    ],
}
_DTYPE = "(?:fp32|fp16|bf16|fp8|fp8bf16|fp8fp32)"
_ARCH = "gfx(?:9|950|11|12|125)"
_N = r"\d+x\d+x\d+"
_BLOCK = rf"b{_N}x{_N}_r{_N}_r{_N}_w{_N}_w{_N}(?:_o\d+)?"
_PADS = "(?:npad|p(?:s)?(?:sk)?(?:d)?(?:dv)?)"
_SCORES = "n?logits_(?:nbias|bias|alibi)_(?:nmask|mask|mc)"
# CK's grammar of names.
GRAMMAR = {
    "fmha_fwd": rf"fmha_fwd_d\d+_{_DTYPE}_(?:batch|group)_{_BLOCK}_(?:qr|qr_hpad|qr_async|qr_async_trload|qr"
    rf"_async_trload_v3|qr_tdm)"
    rf"_vr_{_PADS}_{_SCORES}_n?lse_n?dropout_n?skip_(?:nqscale|pertensor|blockscale)_n?trload_n?sink_{_ARCH}",
    "fmha_fwd_splitkv": rf"fmha_fwd_splitkv_d\d+_{_DTYPE}_(?:batch|group)_{_BLOCK}_(?:qr|qr_nwarp_sshuffle)_vr"
    rf"_{_PADS}_{_SCORES}"
    rf"_lse_n?squant_n?pagedkv_n?sink_{_ARCH}",
    "fmha_fwd_splitkv_combine": rf"fmha_fwd_splitkv_combine_d\d+_{_DTYPE}_(?:batch|group)_b\d+_unused"
    rf"_(?:npad|ps|pdv|psdv)_n?lse"
    rf"_n?squant_{_ARCH}",
    "fmha_fwd_appendkv": rf"fmha_fwd_appendkv_d\d+_{_DTYPE}_b{_N}x\d+_vr_{_PADS}(?:_inter|_half)?(?:_pagedkv)?_{_ARCH}",
    "fmha_fwd_pagedkv": rf"fmha_fwd_pagedkv_d\d+_{_DTYPE}_(?:batch|group)_{_BLOCK}_qr_pagedkv_vr_{_PADS}"
    rf"_{_SCORES}_n?lse_n?skip"
    rf"_n?squant_pagedkv_n?sink_{_ARCH}",
    "fmha_batch_prefill": rf"fmha_batch_prefill_d\d+_{_DTYPE}_group_ps\d+_(?:64bit_)?{_BLOCK}_qr_async_vr"
    rf"_psskddv_{_SCORES}_n?lse"
    r"_n?dropout_(?:nqscale|pertensor|kv_blockscale)_n?sink_(?:vectorized|linear)_(?:vllm|sglang)",
    "fmha_bwd_dq_dk_dv": rf"fmha_bwd_d\d+_{_DTYPE}_(?:batch|group)_b{_N}x{_N}x{_N}_r{_N}_r{_N}_r{_N}_w{_N}"
    rf"_w{_N}_o-?\d+_maxq\d+"
    r"_(?:npad|p(?:d[18])?(?:dv[18])?)_(?:nbias|bias|alibi)_n?dbias_n?mask_(?:ndropout|dropout_wg16|dropout"
    r"_wg16_storerandval)"
    rf"_n?deterministic_n?trload_{_ARCH}",
    "fmha_bwd_dot_do_o": rf"fmha_bwd_dot_do_o_d\d+_{_DTYPE}_b\d+_(?:batch|group)_o\d+_(?:npad|ps|pdv|psdv)_{_ARCH}",
    "fmha_bwd_convert_dq": rf"fmha_bwd_convert_dq_d\d+_{_DTYPE}_b\d+_(?:batch|group)_o\d+"
    rf"_(?:npad|ps|pd|psd)_n?deterministic"
    rf"_{_ARCH}",
}


@cache
def plan(target: str, receipt: str = "ck_default") -> Plan:
    return resolve(receipt, [target])


@pytest.mark.parametrize("target", COUNTS)
def test_a_gpu_receipt_lists_what_ck_builds(target: str) -> None:
    counted = Counter(instance.family for instance in plan(target).instances)
    assert {family: counted[family] for family in COUNTS[target]} == COUNTS[target]


@pytest.mark.parametrize("target", [one for one in COUNTS if one != "ck-gfx1250"])  # which has attention alone
def test_norms_have_cks_grid(target: str) -> None:
    """Files and kernels are as many as CK's generators of layernorm2d and rmsnorm2d write."""
    for norm, files, kernels in (("layernorm2d", 148, 544), ("rmsnorm2d", 340, 1248)):
        its = [i for i in plan(target, "norm_ck").instances if i.family in (norm, f"{norm}_rdquant")]
        of_file = {(i.packed, i.family, i.algorithm["most_columns"]) for i in its}
        assert (len(of_file), len(its)) == (files, kernels)
        widths = Counter(i.algorithm["most_columns"] for i in its if i.family == norm)
        assert {bound: count // 4 for bound, count in widths.items()} == {
            bound: 3 if bound in ("64", "128", "256", "768") else 4 for bound in widths
        }
        assert len(widths) == 13


@pytest.mark.parametrize("target", COUNTS)
def test_ck_names_are_cks_and_each_is_one_instances(target: str) -> None:
    names: dict[str, str] = {}
    for instance in plan(target).instances:
        name = plan(target).ck_name(instance)
        assert re.fullmatch(GRAMMAR[instance.family], name), name
        assert names.setdefault(name, instance.name) == instance.name
    assert not [name for name in NAMES.get(target, []) if name not in names]


def test_receipts_differ_in_what_they_emit() -> None:
    """CK's default has every pair of head dim pads; flash-attention's and PyTorch's the same pad of both. ck_extended
    has fully padded kernels of pipeline qr besides."""
    pads = {
        receipt: Counter(i.algorithm["pads"] for i in plan("ck-gfx942", receipt).instances)
        for receipt in ("ck_default", "flash")
    }
    assert pads["ck_default"]["pd1"]
    assert "pd1" not in {
        i.algorithm["pads"] for i in plan("ck-gfx942", "flash").instances if i.family == "fmha_bwd_dq_dk_dv"
    }
    extended, default = ({i.name for i in plan("ck-gfx942", r).instances} for r in ("ck_extended", "ck_default"))
    more = extended - default
    assert default < extended
    assert more
    assert all("_qr_b" in name and name.endswith("_psskddv_ck_gfx942") for name in more)


def test_listings_mark_what_is_planned() -> None:
    one = resolve("fp32_min", ["ck-gfx942"], family="fmha_fwd", where="hdim_q=48 tile_q=32 pads=npad")
    assert one.planned == ["ck-gfx942"]
    table = listing.table([one])
    assert "of receipt fp32_min (ck-gfx942 planned: no library holds these kernels yet)" in table
    assert "\nsink  ck_name\n" in table
    said = json.loads(listing.json([one]))
    assert said["planned"] == ["ck-gfx942"]
    rows = list(csv.DictReader(io.StringIO(listing.csv([one]))))
    assert [row["ck_name"] for row in rows] == [row["ck_name"] for row in said["instances"]]
    assert {row["planned"] for row in rows} == {"yes"}
    assert "planned" not in json.loads(listing.json([resolve("fp32_min", ["cpu-generic"])]))
    assert "ck-gfx942  (planned: listed, no library holds its kernels yet)" in listing.targets(tree())
    assert listing.receipts(tree(), ["ck-gfx1100"]).endswith("Instances on ck-gfx1100 (planned).")
    assert "(ck-gfx942 planned: " in listing.receipt(tree(), "fp32_min", ["ck-gfx942"])


def test_tiles_of_fp16_are_planned() -> None:
    one = resolve("gemm_default", ["cpu-amxfp16"])
    assert (one.planned, {instance.signature["dtype"] for instance in one.instances}) == (["cpu-amxfp16"], {"fp16"})
    assert "cpu-amxfp16  (planned: listed, no library holds its kernels yet)" in listing.targets(tree())
    said = explain(tree(), "gemm_default", "gemm dtype=fp16", ["cpu-amxfp16"]).text
    assert "planned: cpu-amxfp16; no library holds these kernels yet" in said


def test_nothing_is_built_for_a_planned_target() -> None:
    said = r"^target ck-gfx942 is planned: .* so nothing is built for it; `python -m codegen targets` says"
    with pytest.raises(CodegenError, match=said):
        render([resolve("fp32_min", ["cpu-generic", "ck-gfx942"])], INFO)
    root = tree()
    assert not any(target.planned for target in pick_targets(root, ["all"]))
    assert "ck-gfx942" not in root.targets


def test_explain_says_planned_and_shows_no_build() -> None:
    root = tree()
    answer = explain(root, "flash", "fmha_fwd dtype=bf16 hdim_q=128 pipeline=qr_async tile_k=128", ["ck-gfx942"])
    assert answer.listed
    assert "planned: ck-gfx942; no library holds these kernels yet, so nothing is built for it" in answer.text
    assert "build:" not in answer.text
    both = explain(root, "flash", "fmha_fwd dtype=bf16 hdim_q=128", ["cpu-avx2", "ck-gfx942"])
    assert "build: scons receipt=flash target=cpu-avx2 " in both.text
    refused = explain(root, "fp8", "fmha_fwd dtype=fp8bf16 hdim_q=128", ["ck-gfx90a"])
    assert "rule no_fp8 of target ck-gfx90a: CDNA 2 multiplies no fp8" in refused.text
    name = next(i.name for i in plan("ck-gfx942").instances if i.family == "fmha_fwd")
    assert explain(root, "ck_default", name, ["cpu-avx2"]).listed


def test_what_only_a_gpu_has_changes_nothing_on_a_cpu() -> None:
    root = tree()
    plain = explain(root, "flash", "fmha_fwd dtype=bf16 hdim_q=128", ["cpu-avx2"])
    asked = explain(root, "flash", "fmha_fwd dtype=bf16 waves_qk=4x1x1 hdim_q=128 pads=npad", ["cpu-avx2"])
    assert asked.text.startswith(plain.text)
    assert asked.text[len(plain.text) :].startswith(
        "\n\nno effect on cpu-avx2: waves_qk, pads, which are of the kernels of ck-"
    )
    with pytest.raises(CodegenError, match="axis 'waves_qk' has no value '4x1x2'; nearest: 4x1x1"):
        explain(root, "flash", "fmha_fwd waves_qk=4x1x2", ["cpu-avx2"])


FWD = "kernels/attention/fmha_fwd/ck/tiles.yaml"
_HPAD = '{when: "dtype=fp16,bf16", pipeline: qr_hpad'
_TRLOAD = "tables: [gfx950], says: qr_async_trload takes"
_FIRST = 'hdim_v=32", tile: 64x64x16x32x32x32'
_FAULTS = [
    ("family: fmha_fwd\n", "family: fmha_bwd\n", r"tiles\.yaml:4:9: the tables in \S+/fmha_fwd must be of fmha_fwd$"),
    (_HPAD, _HPAD.replace("hpad", "hpat"), "no pipeline of fmha_fwd 'qr_hpat'; nearest: qr_hpad"),
    ("{qscale}_{trload}", "{qskale}_{trload}", "'qskale' is no axis of fmha_fwd"),
    (_TRLOAD, _TRLOAD.replace("950", "9"), "rule 'trload_without_128_keys' never applies in table gfx9"),
    (_TRLOAD, _TRLOAD.replace("950", "951"), "no table 'gfx951'; nearest: gfx950"),
    (_FIRST, _FIRST.replace("x32x32x32", ""), "'64x64x16' is no tile: write 6 numbers"),
]


def _check_tables(root: Tree) -> None:
    found = root.tile_tables("ck", root.families["fmha_fwd"])
    assert found
    tile_tables.check(found)


@pytest.mark.parametrize(("old", "new", "said"), _FAULTS, ids=[str(at) for at in range(len(_FAULTS))])
def test_faults_in_tables_of_tiles_are_named(copy: Copy, old: str, new: str, said: str) -> None:
    text = (copy.path / FWD).read_text()
    assert old in text
    (copy.path / FWD).write_text(text.replace(old, new, 1))
    root = copy.tree()
    with pytest.raises(CodegenError, match=said):
        _check_tables(root)


def test_a_tile_of_which_nothing_is_left_is_an_error(copy: Copy) -> None:
    row = '      - {when: "dtype=fp16,bf16 hdim_q=32 hdim_v=32", tile: 128x64x16x32x32x32,'
    text = (copy.path / FWD).read_text()
    assert row in text
    (copy.path / FWD).write_text(text.replace(row, row.replace("128x64x16", "64x64x16"), 2))
    with pytest.raises(CodegenError, match=r"the rules leave nothing of this tile$"):
        check(copy.tree())


def test_targets_of_a_planned_backend_are_planned(copy: Copy) -> None:
    copy.edit("kernels/targets/ck-gfx942.yaml", "planned: yes\n", "")
    with pytest.raises(
        CodegenError, match="backend ck is planned: it has no machine and no toolchain, so its targets must"
    ):
        _ = copy.tree().targets


def test_a_table_that_there_is_nowhere_is_an_error(copy: Copy) -> None:
    copy.edit("kernels/targets/ck-gfx942.yaml", "tiles: [gfx9, rows]", "tiles: [gfx8, rows]")
    with pytest.raises(CodegenError, match=r"ck-gfx942\.yaml:\d+:\d+: no table of tiles 'gfx8'; nearest: gfx9"):
        check(copy.tree())


def test_patterns_of_names_are_ck_names_too(real: Tree) -> None:
    """CK's wildcards over CK's names, and over those of here, on a target that is planned and on one that is not."""
    plan = resolve("ck_default", ["ck-gfx942"], "family=fmha_fwd hdim_q=128")
    pattern = "fmha_fwd_d128_fp16_batch_*_nmask_*"
    want = [i.name for i in plan.instances if re.fullmatch(r"fmha_fwd_d128_fp16_batch_.*_nmask_.*", plan.ck_name(i))]
    assert want
    assert [i.name for i in listing.like(plan, pattern).instances] == want
    own = resolve("ck_default", ["cpu-avx2"], "family=fmha_fwd hdim_q=128")
    assert listing.like(own, pattern).instances == []
    kept = [i.name for i in listing.like(own, "*_bf16_d128x128_*[a]libi*").instances]
    assert kept == [i.name for i in own.instances if "_bf16_d128x128_" in i.name and "alibi" in i.name]
    assert kept
