# SPDX-License-Identifier: MIT
"""The families over a KV cache: every receipt against brute force, algorithms, names, engines that families share."""

from __future__ import annotations

import json
import pathlib

import pytest
from hypothesis import given, settings

from codegen.cli import help_pages
from codegen.emit.render import generate
from codegen.out import committed
from codegen.plan.plan import Instance, Plan, resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell import docs, listing
from codegen.tell.check import check
from codegen.tell.explain import explain
from tests.codegen import brute_kv
from tests.codegen.conftest import Copy
from tests.codegen.test_select import clauses
from tests.sampling import examples

SPLITKV, COMBINE, PREFILL = "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine", "fmha_batch_prefill"
ENGINES = [f"tilekiln_cpu_avx2_fmha_fwd_splitkv_{pipeline}" for pipeline in ("dlanes", "qlanes")]


def text(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def listed(plan: Plan, family: str) -> list[tuple[str, ...]]:
    """The signatures of a family, each once whatever its algorithms."""
    instances = [instance for instance in plan.instances if instance.family == family]
    return list(dict.fromkeys(tuple(text(value) for value in i.signature.values()) for i in instances))


@pytest.mark.parametrize("name", brute_kv.RECEIPTS)
def test_a_receipt_lists_what_the_facts_say(name: str) -> None:
    meanings = brute_kv.RECEIPTS[name]
    plan = resolve(name, ["cpu-generic"])
    assert {i.family for i in plan.instances} & set(brute_kv.FAMILIES) == set(meanings)
    for family, meaning in meanings.items():
        expected = brute_kv.FAMILIES[family].signatures(meaning())
        assert expected
        assert listed(plan, family) == expected
    combine = listed(plan, COMBINE)
    assert len(combine) == len(set(combine))
    assert set(combine) == brute_kv.combined(listed(plan, SPLITKV))


@settings(max_examples=examples(40), deadline=None)
@given(clauses(brute_kv.SPLITKV.axes))
def test_a_plan_has_exactly_the_combines_that_it_needs(where: str) -> None:
    space = brute_kv.SPLITKV
    meaning = brute_kv.RECEIPTS["ck_default"][SPLITKV]
    main = space.signatures(meaning() & space.selected(where))
    if not main:
        return
    plan = resolve("ck_default", ["cpu-generic"], f"family={SPLITKV} {where}")
    assert {i.family for i in plan.instances} == {SPLITKV, COMBINE}
    assert listed(plan, SPLITKV) == main
    assert set(listed(plan, COMBINE)) == brute_kv.combined(main)


def test_a_plan_without_its_combine_does_not_exist(copy: Copy) -> None:
    combine = "  fmha_fwd_splitkv_combine:\n    - {pipeline: dlanes, tile: 64}\n"
    copy.edit("kernels/targets/cpu-generic.yaml", combine, combine.replace("64}", "64, when: hdim_v!=256}"))
    with pytest.raises(CodegenError) as raised:
        resolve("flash", ["cpu-avx2"], f"family={SPLITKV}", root=copy.tree())
    assert str(raised.value) == (
        "target cpu-avx2 has no fmha_fwd_splitkv_combine for dtype=fp32 hdim_v=256 mode=batch qscale=none, which an "
        "instance of fmha_fwd_splitkv needs (receipt flash)"
    )


def test_algorithms() -> None:
    """Few queries have their own, except with dropout; combine and append have one each. Tiles have many queries alone.

    No kv_load on a CPU.
    """
    found: dict[str, dict[tuple[object, ...], list[Instance]]] = {}
    for instance in resolve("aiter", ["all"]).instances:
        if instance.family in (*brute_kv.FAMILIES, COMBINE):
            key = (instance.algorithm["target"], *instance.signature.values())
            found.setdefault(instance.family, {}).setdefault(key, []).append(instance)
    both = [("qlanes", "64x64", 0), ("dlanes", "16x64", 1)]
    for family, by_signature in found.items():
        for instances in by_signature.values():
            how = [(i.how.pipeline, i.algorithm["tile"], i.how.rank) for i in instances]
            if instances[0].target.beside:
                assert how == [("qtiles", "64x64", 0)]
            elif family in ("fmha_fwd_appendkv", COMBINE):
                assert how == [("dlanes", "64", 0)]
            else:
                assert how == (both[:1] if instances[0].signature.get("dropout") else both)
            assert all(list(i.algorithm) == ["target", "pipeline", "tile"] for i in instances)


@pytest.mark.parametrize(
    "name",
    [
        "fmha_fwd_splitkv_bf16_d96x96_group_window_nbias_softcap_paged_sink_lse_nqscale_dlanes_b16x64_cpu_avx2",
        "fmha_fwd_splitkv_fp8_d128x128_batch_nmask_alibi_nsoftcap_npaged_nsink_lse_pertensor_qlanes_b64x64_cpu_avx2",
        "fmha_fwd_splitkv_combine_bf16_dv96_group_nqscale_nlse_dlanes_b64_cpu_avx2",
        "fmha_fwd_pagedkv_fp16_d128x128_batch_window_elementwise_nsoftcap_sink_nlse_nskip_nqscale_qlanes_b64x64_cpu_avx2",
        "fmha_fwd_appendkv_fp16_d256x256_half_paged_dlanes_b64_cpu_avx2",
        "fmha_fwd_appendkv_bf16_d32x32_nrope_npaged_dlanes_b64_cpu_avx2",
        "fmha_batch_prefill_fp16_kvsame_d256x256_group_ps1024_vectorized_vllm_window_alibi_nsoftcap_lse_dropout_sink_nqscale"
        "_qlanes_b64x64_cpu_avx2",
        "fmha_batch_prefill_fp8bf16_kvsame_d128x128_group_ps1_linear_sglang_nmask_nbias_softcap_nlse_ndropout_nsink_pertensor"
        "_dlanes_b16x64_cpu_avx2",
    ],
)
def test_names(name: str, real: Tree) -> None:
    answer = explain(real, "ck_default", name, ["cpu-avx2"]).text
    assert answer.startswith("yes: ck_default lists ")
    assert name in answer


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("fmha_fwd_splitkv lse=no", "rule lse_always: a split always writes its LSE, which the combine stage needs"),
        ("fmha_fwd_splitkv dtype=fp8 paged=yes", "rule fp8_without_pages: an fp8 cache of split-KV has no pages"),
        ("fmha_fwd_splitkv dtype=bf16 qscale=pertensor", "rule qscale_with_fp8: scales (qscale) exist only for fp8"),
        ("fmha_fwd_splitkv_combine dtype=fp8 lse=yes", "rule fp8_without_lse: fp8 inputs write no LSE"),
        ("fmha_fwd_pagedkv lse=yes", "rule lse_never: paged KV in one launch writes no LSE; fmha_fwd_splitkv does"),
        ("fmha_fwd_appendkv dtype=fp8 rope=half", "rule fp8_without_rope: fp8 keys are not rotated"),
        (
            "fmha_batch_prefill page_size=1 layout=vectorized",
            "rule page_1_is_linear: pages of one token have the linear",
        ),
        ("fmha_batch_prefill qscale=kv_blockscale page_size=16", "rule kv_blockscale_of_large_pages: scales per page"),
        ("fmha_batch_prefill dtype=fp16 kv_dtype=fp8", "rule fp8_cache_under_bf16: an fp8 cache (kv_dtype) goes with"),
    ],
)
def test_rules_say_why(question: str, reason: str, real: Tree) -> None:
    answer = explain(real, "ck_default", question, ["cpu-avx2"]).text
    assert reason in answer
    assert "No receipt can list it." in answer


def test_an_addition_is_told_from_what_upstream_has(real: Tree) -> None:
    for receipt, where in (
        ("ck_default", "fmha_fwd_splitkv dtype=fp32"),
        ("ck_default", "fmha_fwd_pagedkv dtype=bf16 hdim_q=256"),
        ("ck_default", "fmha_batch_prefill kv_dtype=fp8"),
    ):
        answer = explain(real, receipt, where, ["cpu-avx2"]).text
        assert answer.startswith("no: ")
        assert "listed by: flash (2)" in answer


def test_numbers_are_numbers(tmp_path: pathlib.Path) -> None:
    plan = resolve("aiter_group", ["cpu-avx2"], f"family={PREFILL} kv_dtype=fp8 lookup=vllm lse=no sink=no dropout=no")
    generated = generate([plan], tmp_path, committed.INFO)
    manifest = json.loads((tmp_path / "aiter_group/manifest.json").read_text())
    at = manifest["instances"]["columns"].index("page_size")
    assert {row[at] for row in manifest["instances"]["rows"]} == {1, 16, 1024}
    assert {i.signature["page_size"] for i in plan.instances} == {1, 16, 1024}
    header = (tmp_path / f"kernels/generated/{PREFILL}.h").read_text()
    assert "enum class PageSize : unsigned char { _1, _16, _1024 };" in header
    assert [(e.source, e.symbol) for e in generated.engines] == [
        (f"kernels/attention/fmha_fwd_splitkv/cpu/{pipeline}.cpp", f"tilekiln_cpu_avx2_fmha_fwd_splitkv_{pipeline}")
        for pipeline in ("qlanes", "dlanes")
    ]
    assert [e.shares for e in generated.engines] == [("kernels/attention/cpu/qlanes/stages.cpp",), ()]


def test_families_share_engines() -> None:
    """One object a target and pipeline, whatever families of a cache a plan has."""
    for where in (
        f"family={SPLITKV}",
        "family=fmha_fwd_appendkv,fmha_fwd_pagedkv",
        f"family!=fmha_fwd,fmha_mla_decode,{PREFILL}",
    ):
        generated = generate([resolve("flash", ["cpu-avx2"], where)], "nowhere", committed.INFO, write=False)
        symbols = [engine.symbol for engine in generated.engines if "bwd" not in engine.symbol]
        assert sorted(symbols) == ENGINES


# A target with the limits of a GPU: 32-bit offsets, key tiles of 128.
LIMITED = """
target: cpu-limited
about: A target to test with.
index: 9
order: 90
backend: cpu
isa: limited
arch: any
flags: []
cpuid: []
algorithms:
  fmha_batch_prefill:
    - {pipeline: qlanes, tile: 128x128, kv_load: small, needs: cache_bytes<=2147483647 or page_tokens>=128}
    - {pipeline: qlanes, tile: 128x128, kv_load: large, when: "page_size<=127"}
    - pipeline: dlanes
      tile: 16x16
      kv_load: small
      needs: cache_bytes<=2147483647 or page_tokens>=16
      when: dropout=no page_size=1024 or dropout=no page_size=16 lookup=vllm
      rank: 1
"""


@pytest.fixture
def limited(copy: Copy) -> Tree:
    (copy.path / "kernels/targets/cpu-limited.yaml").write_text(LIMITED)
    return copy.tree()


@pytest.mark.day
def test_a_target_with_32_bit_offsets_has_twins_where_a_tile_spans_pages(limited: Tree, tmp_path: pathlib.Path) -> None:
    check(limited)
    where = f"family={PREFILL} dtype=bf16 hdim_q=128 mask=none bias=none softcap=no lse=no dropout=no sink=no"
    plan = resolve("ck_default", ["cpu-limited"], where, root=limited)
    found = {}
    for i in plan.instances:
        key = (i.signature["page_size"], i.signature["layout"], i.signature["lookup"])
        found.setdefault(key, []).append((i.how.pipeline, i.algorithm.get("kv_load")))
    tall = [("qlanes", "small"), ("qlanes", "large")]
    assert found == {
        (1, "linear", "sglang"): tall,
        (1, "linear", "vllm"): tall,
        **{(16, layout, "sglang"): tall for layout in ("linear", "vectorized")},
        **{
            (16, layout, "vllm"): [*tall, ("dlanes", "small")] for layout in ("linear", "vectorized")
        },  # 16 keys: one page
        **{
            (1024, layout, lookup): [("qlanes", "small"), ("dlanes", "small")]
            for layout in ("linear", "vectorized")
            for lookup in ("sglang", "vllm")
        },
    }
    names = [instance.name for instance in plan.instances]
    assert len(set(names)) == len(names) == 2 * 2 + 2 * 2 + 2 * 3 + 4 * 2
    words = "d128x128_group_ps16_linear_vllm_nmask_nbias_nsoftcap_nlse_ndropout_nsink_nqscale"
    name = f"fmha_batch_prefill_bf16_kvsame_{words}"
    assert (
        names[names.index(f"{name}_qlanes_b128x128_small_cpu_limited") + 1]
        == f"{name}_qlanes_b128x128_large_cpu_limited"
    )
    assert explain(limited, "ck_default", f"{name}_qlanes_b128x128_large_cpu_limited", ["cpu-avx2"]).text.startswith(
        "yes: "
    )

    both = resolve("ck_default", ["cpu-avx2", "cpu-limited"], where, root=limited)
    generated = generate([both], tmp_path, committed.INFO)
    manifest = json.loads((tmp_path / "ck_default/manifest.json").read_text())
    assert manifest["families"][PREFILL]["algorithm"] == ["target", "pipeline", "tile", "kv_load"]
    loads = {(row[-4], row[-1]) for row in manifest["instances"]["rows"]}
    assert loads == {("cpu-avx2", None), ("cpu-limited", "small"), ("cpu-limited", "large")}
    rows = "".join((tmp_path / source.path).read_text() for source in generated.sources if source.kind == "rows")
    for line in filter(lambda line: line.startswith("  {"), rows.splitlines()):
        number, target = map(int, line[line.index("{") + 1 : line.index("}")].split(", ")[2:])
        how = both.tree.targets["cpu-limited" if target == 9 else "cpu-generic"].file.algorithms[PREFILL][number]
        load = how.get("kv_load")
        assert f"_{how['pipeline']}_b{how['tile']}{f'_{load}' if load else ''}_" in line

    table = listing.table([both])
    assert "kv_load" in table
    assert listing.csv([both]).splitlines()[0].endswith(",target,pipeline,tile,kv_load")
    assert listing.csv([both]).splitlines()[1].endswith(",cpu-avx2,qlanes,64x64,")
    assert "| 128x128 large | 0 | `page_size=1,16` |" in docs.pages(limited, help_pages())["targets.md"]


def test_a_cpu_limits_nothing() -> None:
    plan = resolve("aiter_group", ["all"], f"family={PREFILL} dtype=bf16")
    assert plan.algorithm_axes() == ("target", "pipeline", "tile")
    assert all(
        not how.needs.clauses
        for target in plan.target_list
        for how in plan.tree.algorithms(target, plan.instances[0].family_)
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "kernels/attention/fmha_fwd_pagedkv/family.yaml",
            "engine: fmha_fwd_splitkv",
            "engine: fmha_fwd_splitk",
            "no family with engines of its own 'fmha_fwd_splitk'; nearest: fmha_fwd_splitkv",
        ),
        (
            "kernels/attention/fmha_fwd_pagedkv/family.yaml",
            "engine: fmha_fwd_splitkv",
            "engine: fmha_fwd_appendkv",
            "no family with engines of its own 'fmha_fwd_appendkv'; near",
        ),
        (
            "kernels/attention/fmha_fwd_pagedkv/family.yaml",
            "engine: fmha_fwd_splitkv",
            "engine: main",
            "only a companion (`companion_of`) has a main family",
        ),
        (
            "kernels/attention/fmha_fwd_appendkv/family.yaml",
            "name: dlanes",
            "name: elanes",
            "no pipeline of fmha_fwd_splitkv 'elanes'; nearest: ",
        ),
        (
            "kernels/attention/fmha_batch_prefill/family.yaml",
            "values: [1, 16, 1024]",
            "values: [1, 16, 1024, 16]",
            "an axis has at most 64 values, each once",
        ),
        (
            "kernels/attention/fmha_batch_prefill/family.yaml",
            "values: [1, 16, 1024]",
            "values: [1, 16, 10.5]",
            "10.5 must be a name (small letters, digits and _), or a whole number from 0",
        ),
        (
            "receipts/flash.yaml",
            "values: kv_dtype=fp8 qscale=pertensor,kv_blockscale",
            "values: kv_dtype=fp16",
            "axis 'kv_dtype' of fmha_batch_prefill has no value 'fp16'; values: same, fp8, bf8",
        ),
        (
            "receipts/aiter_batch.yaml",
            "- fmha_batch_prefill ",
            "- fmha_batch_prefil ",
            "no inherited family 'fmha_batch_prefil'; nearest: fmha_batch_prefill",
        ),
    ],
)
def test_mistakes_are_told(copy: Copy, file: str, old: str, new: str, message: str) -> None:
    before = (copy.path / file).read_text().partition(old)[0]
    copy.edit(file, old, new)
    with pytest.raises(CodegenError) as raised:
        check(copy.tree())
    where, _, told = str(raised.value).partition(": ")
    assert where.startswith(f"{file}:{before.count(chr(10)) + 1}:")
    assert told.startswith(message)


def test_a_family_of_anothers_engines_is_answered_as_that_one(copy: Copy) -> None:
    """`targets: engine`: entries, refusals and kernels of split-KV hold for paged KV, with the values that it has."""
    root, paged, split = copy.tree(), "fmha_fwd_pagedkv", "fmha_fwd_splitkv"
    for target in root.every_target.values():
        assert paged not in target.file.refuses
        if target.tiles:
            continue
        theirs = {how.number: how for how in root.algorithms(target, root.families[split])}
        for how in root.algorithms(target, root.families[paged]):
            assert (how.pipeline, how.values) == (theirs[how.number].pipeline, theirs[how.number].values)
        refused = [rule.name for rule in root.refusals(target, root.families[split])]
        assert [rule.name for rule in root.refusals(target, root.families[paged])] == refused
    own = "  fmha_fwd_pagedkv:\n    - {pipeline: qlanes, tile: 64x32}\n"
    copy.edit("kernels/targets/cpu-generic.yaml", "  fmha_fwd_splitkv:\n", own + "  fmha_fwd_splitkv:\n")
    changed = copy.tree()
    said = changed.algorithms(changed.targets["cpu-generic"], changed.families[paged])
    assert [how.shown for how in said] == ["64x32"]
    copy.edit("kernels/attention/fmha_fwd/family.yaml", "source_by:", "targets: engine\nsource_by:")
    with pytest.raises(CodegenError, match="the engines are the family's own: targets say what they answer"):
        list(copy.tree().families.values())
