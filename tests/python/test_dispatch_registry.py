# SPDX-License-Identifier: MIT
"""Registries, choices, plans and timing of the dispatcher, by kernels made by hand."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import pytest
import tilekiln as tk
from tilekiln.dispatcher import (
    Call,
    Choice,
    Dispatcher,
    FunctionInstance,
    GemmProblemBuilder,
    Instance,
    KernelSet,
    Key,
    Problem,
    ProblemBuilder,
    Registry,
    Signature,
    Stages,
    Timing,
)
from tilekiln.dispatcher.instance import measure

from tests.python.test_dispatch_problems import call

pytestmark = pytest.mark.usefixtures("binding")

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"


def attention(hdim_q: int = 64, hdim_v: int = 64, seqlen_q: int = 128) -> ProblemBuilder:
    return ProblemBuilder().data_type("bf16").dims(hdim_q, hdim_v, 2, seqlen_q, 256).nheads(8, 4)


def kernel(name: str = "", hdim: int = 64, tile: int = 64, launch: Any = None, **changes: Any) -> FunctionInstance:
    """A kernel of the forward; changes: fields of its signature or algorithm, target, and of its choice."""
    signature = {"dtype": "bf16", "hdim_q": hdim, "hdim_v": hdim, "mode": "batch", "mask": "none"}
    algorithm = {"pipeline": "qr", "tile_m0": tile}
    choice = {name: changes.pop(name) for name in ("needs", "best", "rank", "order") if name in changes}
    family, target = changes.pop("family", "fmha_fwd"), changes.pop("target", "cpu-generic")
    accepts = changes.pop("accepts", None)
    for field, value in changes.items():
        (algorithm if field.startswith(("pad", "tile", "max_", "wave", "hdim_q_al", "hdim_v_al")) else signature)[
            field
        ] = value
    fit = [("seqlen_q", "tile_m0", tile)]
    key = Key(family, signature, algorithm, target)
    return FunctionInstance(key, launch, Choice(("hdim_q", "hdim_v"), fit, **choice), name, accepts)


def dispatcher(*kernels: Instance, **options: Any) -> Dispatcher:
    registry = Registry("made")
    assert registry.add_all(kernels) == len(kernels)
    return Dispatcher(registry, **options)


def chosen(problem: Problem, *kernels: Instance) -> str:
    """The name of what is chosen, which may not depend on the order of registration."""
    names = {getattr(dispatcher(*order).select(problem), "name", "") for order in (kernels, tuple(reversed(kernels)))}
    (name,) = names
    return name


def test_any_value_of_a_field_answers_what_asks_for_it() -> None:
    """Of a declaration and by hand; a kernel that says nothing of the field does not."""
    (listed,) = KernelSet("any").add(Signature("fwd").dtype("bf16").hdim(64).mask("any").lse("any")).listing()
    for of in (listed, kernel(mask=None, lse=None)):
        for name in ("no_mask", "causal"):
            problem = attention().mask_type(name).lse().build()
            assert dispatcher(of).select(problem) is of
            assert of.supports(problem)
    assert dispatcher(kernel(mask=None)).select(attention().mask_type("causal").lse().build()) is None


def test_the_score() -> None:
    problem = attention().build()
    # Waste before all: a fitting tile does not save a kernel of larger head dims.
    assert chosen(problem, kernel("exact", tile=128), kernel("larger", hdim=128, tile=64)) == "exact"
    # Fit as declared comes first: of 128 queries 64 and 128 spend alike, so the taller answers; 256 would waste half.
    assert chosen(problem, kernel("64", tile=64), kernel("128", tile=128), kernel("256", tile=256)) == "128"
    assert chosen(attention(seqlen_q=60).build(), kernel("64", tile=64), kernel("128", tile=128)) == "64"
    assert chosen(attention(seqlen_q=100).build(), kernel("64", tile=64), kernel("16", tile=16)) == "16"
    # best: preferred within, and after all others elsewhere.
    few = kernel("few", tile=16, best="seqlen_q>=1 seqlen_q<=8")
    assert chosen(attention(seqlen_q=8).build(), few, kernel("64")) == "few"
    assert chosen(attention(seqlen_q=9).build(), few, kernel("64")) == "64"
    # Faster targets follow, then rank.
    fast = kernel("fast", target="cpu-avx512", order=30)
    assert chosen(problem, kernel("slow", order=10, rank=-5), fast) == "fast"
    assert chosen(problem, kernel("first", rank=1), kernel("second", rank=2, max_seq_len_q=9999)) == "first"
    ranked = dispatcher(kernel("first", rank=1), kernel("second", rank=2, max_seq_len_q=9999))
    second = next(entry.id for entry in ranked.registry.entries() if entry.instance.name == "second")
    assert ranked.registry.set_rank(second, 0)
    assert ranked.select(problem).name == "second"
    assert not ranked.registry.set_rank("nobody", 0)


REASONS = [
    ("", {}, "lse no"),
    ("", {}, "dims 60 33 2 128 256"),
    ("", {}, "v_rowmajor yes"),
    ("its hdim_q, 64, is too small", {}, "dims 65 64 2 128 256"),
    ("its hdim_v, 64, is too small", {}, "dims 64 65 2 128 256"),
    ("it has dtype=bf16", {}, "data_type fp16"),
    ("it has mode=batch", {}, "group_mode yes; max_seqlen 9 9"),
    ("it is of fmha_fwd", {}, "api_family fwd_splitkv"),
    ("it is for cpu-generic", {}, "gfx_arch gfx942"),
    ("", {}, "gfx_arch cpu-generic"),
    # One kernel serves every kind of mask; the one without serves none of them.
    ("it has mask=none", {}, "mask_type causal"),
    *(("", {"mask": "window"}, f"mask_type {mask}") for mask in ("top_left", "bottom_right", "window_generic")),
    ("it has mask=window", {"mask": "window"}, ""),
    # A feature that a kernel does not know is never dropped in silence.
    *((f"it knows no {feature}, and the problem has {value}", {}, setter) for feature, value, setter in (
        ("softcap", "yes", "logits_soft_cap yes"), ("bias", "alibi", "bias_type alibi"), ("lse", "yes", "lse yes"),
        ("dropout", "yes", "dropout yes"), ("qscale", "pertensor", "qscale_type pertensor"),
        ("rope", "half", "rope_type half_rotated"), ("paged", "yes", "paged_kv yes"),
        ("fp8_static_quant", "yes", "fp8_static_quant yes"), ("skip_min_seqlen_q", "yes", "skip_min_seqlen_q yes"),
        ("sink", "yes", "sink_size 3"), ("v_layout", "column", "v_rowmajor no"),
        ("deterministic", "yes", "bwd_flags no no yes"))),
    ("", {"softcap": True}, "logits_soft_cap yes"),
    ("it has softcap=yes", {"softcap": True}, ""),
    # Compared where the key says it, else any: layouts, lookups and pages of a cache.
    ("", {}, "kv_cache linear vllm 16"),
    ("", {"page_size": 16, "lookup": "vllm"}, "kv_cache linear vllm 16"),
    ("it has page_size=16", {"page_size": 16, "lookup": "vllm"}, "kv_cache linear vllm 32"),
    ("it has lookup=vllm", {"page_size": 16, "lookup": "vllm"}, "kv_cache linear sglang 16"),
    # Axes that algorithms ask for.
    ("", {"pad_s": False}, "dims 64 64 2 256 256"),
    ("it has pad_s=no and max_seqlen_q=200 is no multiple of tile_m0=64", {"pad_s": False}, "dims 64 64 2 200 256"),
    ("", {"pad_s": True}, "dims 64 64 2 200 256"),
    ("it has pad_s=no and max_seqlen_q=100 is no multiple of tile_m0=64", {"pad_s": False}, "max_seqlen 100 0"),
    ("", {"pad_sk": False, "tile_n0": 64}, ""),
    ("it has pad_sk=no and max_seqlen_k=256 is no multiple of tile_n0=96", {"pad_sk": False, "tile_n0": 96}, ""),
    ("it pads no seqlen_k, which varies here", {"pad_sk": False, "tile_n0": 64}, "set has_seqlen_k yes"),
    ("it has pad_d=no and hdim_q=60 is no multiple of hdim_q_alignment=8", {"pad_d": False, "hdim_q_alignment": 8},
     "dims 60 64 2 128 256"),
    ("", {"pad_d": False, "hdim_q_alignment": 8}, "dims 56 64 2 128 256"),
    ("", {"pad_d": False}, "dims 60 64 2 128 256"),
    ("it has pad_dv=no and hdim_v=60 is no multiple of hdim_v_alignment=8", {"pad_dv": False, "hdim_v_alignment": 8},
     "dims 64 60 2 128 256"),
    ("it takes at most 100 queries (max_seq_len_q)", {"max_seq_len_q": 100}, ""),
    ("", {"max_seq_len_q": 128}, ""),
    ("it takes at most 8 splits (max_splits_log2)", {"max_splits_log2": 3}, "num_splits 9"),
    ("", {"max_splits_log2": 3}, "num_splits 8"),
    ("it needs seqlen_q<=8", {"needs": "seqlen_q<=8"}, ""),
    ("", {"needs": "seqlen_q<=8"}, "dims 64 64 2 8 256"),
    ("it does not accept the problem", {"accepts": lambda asked: asked["batch"] == 3}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "fields", "calls"), REASONS)
def test_what_answers_and_why_not(reason: str, fields: dict[str, Any], calls: str) -> None:
    builder = attention()
    for setter in filter(None, calls.split("; ")):
        call(builder, setter)
    one, problem = kernel("it", **fields), builder.build()
    assert one.refusal(problem) == reason
    assert chosen(problem, one) == ("" if reason else "it")


def test_numbers_of_keys() -> None:
    wide = attention(64, 128).build()
    assert chosen(wide, kernel("wide", hdim=128)) == "wide"
    # Fields whose numbers must be equal, which words alone do not tell apart.
    pages = [kernel("16", page_size=16), kernel("64", page_size=64)]
    of = dispatcher(*pages)
    sizes = [16, 64, 16, 1]
    found = [of.select(attention().kv_cache("linear", "vllm", size).build()) for size in sizes]
    assert [one and one.name for one in found] == ["16", "64", "16", None]


def test_products() -> None:
    def product(layouts: str, pad: bool) -> FunctionInstance:
        words = [{"r": "row", "c": "column"}[letter] for letter in layouts]
        of = dict(zip(("layout_a", "layout_b", "layout_out"), words, strict=True))
        key = Key("gemm", {"dtype": "bf16", **of, "out_dtype": "bf16"}, {"tile_m": 256, "pad_m": pad})
        return FunctionInstance(key, name=layouts)

    two = product("rcr", False), product("rrr", True)
    for layouts, m, name in (
        ("rcr", 1024, "rcr"), ("rcr", 1000, ""), ("rrr", 1000, "rrr"), ("crr", 1024, "")
    ):  # fmt: skip
        asked = GemmProblemBuilder().dimensions(m, 1024, 512).dtypes("bf16").layouts(layouts)
        assert chosen(asked.build(), *two) == name
        assert chosen(asked.activation("relu").build(), *two) == ""
        assert chosen(asked.activation("none").dtypes("bf16", "fp32").build(), *two) == ""


def test_targets() -> None:
    two = [kernel("generic"), kernel("gfx", target="gfx942", order=-1), kernel("any", target="", hdim=128)]
    assert dispatcher(*two).select(attention().gfx_arch("gfx942").build()).name == "gfx"
    assert dispatcher(*two, target="gfx942").select(attention().build()).name == "gfx"
    assert dispatcher(*two).select(attention().gfx_arch("gfx90a").build()).name == "any"
    of = dispatcher(*two)
    assert of.registry.filter_by_target("gfx942") == 1
    assert [one.name for one in of.registry.get_all()] == ["gfx", "any"]


def test_priorities_and_merging() -> None:
    registry = Registry("mine")
    assert registry.add(kernel("low"), "low")
    assert not registry.add(kernel("again"), "low"), "only a higher priority replaces"
    assert registry.add(kernel("normal"))
    assert not registry.add(kernel("lower"), "low")
    assert registry.lookup(kernel().key).name == "normal"
    other = Registry("theirs")
    other.add(kernel("merged"))
    other.add(kernel("wide", hdim=128), "high")
    assert other.set_rank(kernel().key.id, 7)
    assert registry.merge_from(other) == 2, "merging replaces an equal priority"
    assert registry.merge_from(registry) == 0
    assert sorted((one.instance.name, one.rank) for one in registry.entries()) == [("merged", 7), ("wide", 0)]
    assert [one.name for one in registry.filter(lambda one: one.key.signature["hdim_q"] == 64)] == ["merged"]
    # Priority goes before fit and rank, after waste.
    registry.add(kernel("better", tile=128, rank=-9), "low")
    assert Dispatcher(registry).select(attention().build()).name == "merged"
    with pytest.raises(tk.ArgumentError, match="priority: was urgent, must be low, normal or high"):
        registry.add(kernel(), "urgent")
    registry.clear()
    assert len(registry) == 0
    assert Registry.named("some") is Registry.named("some") is not Registry.named("other")


def test_receipts() -> None:
    registry = Registry("mine")
    for receipt in ("flash", "pytorch", ""):
        registry.add(FunctionInstance(Key("fmha_fwd", {"dtype": "bf16"}, receipt=receipt)))
    assert registry.available_receipts() == ["flash", "pytorch"]
    assert registry.filter_by_receipt("flash") == 1
    assert sorted(one.key.receipt for one in registry.get_all()) == ["", "flash"]


def test_threads_register_and_ask() -> None:
    registry = Registry("shared")
    of, problem, failed = Dispatcher(registry), attention().build(), []

    def work(number: int) -> None:
        try:
            for i in range(100):
                registry.add(kernel(hdim=64 + 8 * (number * 100 + i)))
                assert of.select(problem) is not None
        except BaseException as error:  # a thread's failure is the test's
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(registry) == 400
    assert of.select(problem).key.signature["hdim_q"] == 64


def test_heuristics_and_measurements() -> None:
    problem, log = attention().build(), []
    of = dispatcher(kernel("64", tile=64), kernel("128", tile=128), kernel("alibi", tile=32, bias="alibi"))
    ids = {entry.instance.name: entry.id for entry in of.registry.entries()}
    assert (of.strategy, of.select(problem).name) == ("first_fit", "128")
    of.set_heuristic(lambda asked: log.append(str(asked)) or ["nobody", ids["alibi"], ids["64"]])
    assert (of.strategy, of.select(problem).name) == ("heuristic", "64")
    assert log == [str(problem)]
    of.set_heuristic(lambda _: ["nobody", ids["alibi"]])
    assert of.select(problem).name == "128", "none is left, so the first fit"
    of.set_measured({str(problem): [ids["64"]]})
    assert of.select(problem).name == "64"
    of.set_heuristic(None)
    assert (of.strategy, of.select(attention(seqlen_q=999).build()).name) == ("first_fit", "128")


def test_plans_of_stages() -> None:
    families = ("fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq")
    stages = Stages(families, families[1], {families[2]: "found"})
    problem = attention().api_family("bwd").lse().dropout().build()
    made = [kernel(family=family, **({"dropout": "apply"} if family == families[1] else {})) for family in families]
    three = dispatcher(*made).add_operator("fmha_bwd", stages)
    plan = three.plan(problem)
    assert [stage.family for stage in plan.stages] == list(families)
    assert plan.is_valid
    assert plan.whole is None
    two = dispatcher(*made[:2]).add_operator("fmha_bwd", stages)
    assert [stage.family for stage in two.plan(problem).stages] == list(families[:2])
    missing = dispatcher(*made[1:]).add_operator("fmha_bwd", stages).plan(problem)
    assert not missing.is_valid
    assert missing.reason.startswith("no kernel of fmha_bwd_dot_do_o in registry made for fmha_bwd ")
    # A field that is needed only when a problem asks for it.
    when = dispatcher(*made).add_operator("fmha_bwd", Stages(families, families[1], {families[2]: "deterministic"}))
    assert len(when.plan(problem).stages) == 2
    # A field that no stage knows is refused by its name.
    unknown = three.plan(problem.copy().set("qscale", "pertensor"))
    assert (unknown.is_valid, "qscale" in unknown.reason) == (False, True)
    # An empty registry gives a plan without stages.
    assert not dispatcher().plan(problem).is_valid


def test_a_stage_with_a_predicate_need_not_know_what_others_know() -> None:
    """The predicate is asked of the problem as the stage has it, as in C++."""
    families = ("fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv")
    asked = []
    picky = kernel("picky", family=families[0], accepts=lambda problem: not asked.append(problem["dropout"]))
    of = dispatcher(picky, kernel("main", family=families[1], dropout="apply"))
    of.add_operator("fmha_bwd", Stages(families, families[1]))
    plan = of.plan(attention().api_family("bwd").lse().dropout().build())
    assert [stage.instance.name for stage in plan.stages] == ["picky", "main"], plan.reason
    assert asked == [None]


def test_the_first_reason_is_that_of_the_first_name() -> None:
    problem = attention().mask_type("causal").set("bias", "alibi").build()
    for fields in ({"bias": "none", "softcap": "no"}, {"softcap": "no", "bias": "none"}):
        key = Key("fmha_fwd", {"dtype": "bf16", "mask": "none", **fields, "hdim_q": 32, "hdim_v": None})
        one = FunctionInstance(key, None, Choice(("hdim_q",)))
        assert one.refusal(problem) == "it has bias=none"
        assert one.refusal(problem.copy().set("bias", None)) == "its hdim_q, 32, is too small"
        # A feature that it does not know, after all that it says; by name, too.
        known = problem.copy().set("bias", None).set("mask", None).set("hdim_q", 32)
        assert one.refusal(known.set("zeta", "some").set("eta", "a word of no kernel")) == (
            "it knows no eta, and the problem has a word of no kernel"
        )


def test_ties_go_to_the_first_of_the_registry_whatever_the_keys_say() -> None:
    """Keys of other fields are of another shape, which the choice looks at apart."""
    problem = attention().build()
    two = [kernel("b"), kernel("a", page_size=None), kernel("c", lse="no")]
    assert [one.name for one in dispatcher(*two).registry.get_all()] == ["a", "b", "c"]
    assert chosen(problem, *two) == "a"


def test_a_tile_of_no_rows_is_told() -> None:
    of = dispatcher(FunctionInstance(Key("fmha_fwd"), None, Choice((), [("seqlen_q", "tile_m0", 0)])))
    with pytest.raises(tk.ArgumentError, match=r"^tile: was 0, must be 1 or more$"):
        of.select(attention().build())


def test_values_beyond_any_size() -> None:
    assert dispatcher(kernel("held", hdim=10**30)).select(attention(10**25).build()).name == "held"
    assert dispatcher(kernel()).select(attention(10**25).build()) is None


def test_a_predicate_that_fails_is_told() -> None:
    of = dispatcher(kernel(accepts=lambda problem: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        of.select(attention().build())


def test_running_and_refusing() -> None:
    ran: list[Any] = []
    problem = attention().build()
    of = dispatcher(
        kernel("mine", launch=lambda call: ran.append(call.arrays) or len(ran)), kernel("listed", tile=32, rank=9)
    )
    ids = {entry.instance.name: entry.id for entry in of.registry.entries()}
    assert of.run("fmha_fwd", 1, 2, problem=problem) == 1
    assert ran == [(1, 2)]
    assert of.run_explicit(ids["mine"], Call("fmha_fwd", 3), problem) == 2
    with pytest.raises(tk.NoKernelError, match="id: was nobody, must be one of registry made"):
        of.run_explicit("nobody", Call("fmha_fwd"), problem)
    with pytest.raises(tk.dispatcher.UnsupportedProblem, match="mine: it has mask=none"):
        of.run_explicit(ids["mine"], Call("fmha_fwd"), attention().mask_type("causal").build())
    with pytest.raises(RuntimeError, match="listed: has no code here, it is a listing"):
        of.run_explicit(ids["listed"], Call("fmha_fwd"), problem)
    with pytest.raises(tk.NoKernelError, match="no kernel of fmha_fwd in registry made"):
        of.run("fmha_fwd", problem=attention(512).build())
    with pytest.raises(tk.NoKernelError, match="operator: was fmha_fwd, must be one of a library that was added"):
        of.run("fmha_fwd", 1)
    why = of.why(attention().build())
    assert "  chosen: mine" in why
    mismatch = of.why(attention().mask_type("causal").build())
    assert "refused: mine: it has mask=none" in mismatch
    assert "wave_m0=4 has no effect on cpu-generic" in dispatcher(kernel(wave_m0=4)).why(problem)


def test_people_derive_from_instance() -> None:
    class Own(Instance):
        key = Key("fmha_fwd", {"dtype": "bf16", "mask": "none"})

        def launch(self, call: Call) -> str:
            return f"ran {call.operator}"

        def refusal(self, problem: Problem) -> str:
            return super().refusal(problem) or ("it wants few queries" if problem.number("seqlen_q") > 8 else "")

    of = dispatcher(kernel("ours", hdim=128), Own())
    assert of.run("fmha_fwd", problem=attention(seqlen_q=8).build()) == "ran fmha_fwd"
    assert of.select(attention(seqlen_q=9).build()).name == "ours"
    assert "it wants few queries" in of.why(attention(512, seqlen_q=9).build())
    with pytest.raises(TypeError, match="abstract"):
        Instance()  # type: ignore[abstract]


def test_timing() -> None:
    sets: list[int] = []
    timing = Timing().set(2, 5, 1000)
    timing.rotating = 3
    times = measure(timing, sets.append)
    assert sets == [0, 1, 0, 1, 2, 0, 1]
    assert times.runs == 5
    assert 0 <= times.min <= times.median <= times.max
    timing.on = False
    assert measure(timing, sets.append) == (0, 0, 0, 0, 0)
    for arguments, sentence in (
        ((-1, 1), "cold: was -1, must be at least 0"),
        ((0, 0), "repeat: was 0, must be at least 1"),
    ):
        with pytest.raises(tk.ArgumentError, match=sentence):
            Timing().set(*arguments)
    of, turns = dispatcher(kernel(launch=lambda call: turns.append(call.arrays))), []
    of.set_timing(0, 4)
    assert of.time(Call("x", 1), Call("x", 2), problem=attention().build()).runs == 4
    assert turns == [(1,), (2,), (1,), (2,)]
    of.set_benchmarking(False)
    assert of.time(Call("x", 1), problem=attention().build()).runs == 0


def registered() -> Registry:
    registry = Registry('a "name"\n')
    for one, priority in ((kernel("64", best="seqlen_q<=8", rank=2, order=3), "low"),
                          (kernel("é\x01", tile=128), "high"),
                          (kernel("third", hdim=32, page_size=16, lse=True, bias="alibi"), "normal")):  # fmt: skip
        assert registry.add(one, priority)
    return registry


def test_json_there_and_back() -> None:
    registry = registered()
    text = registry.to_json()
    back = Registry(registry.name)
    assert back.from_json(text) == 3
    assert back.to_json() == text
    whole = json.loads(text)
    assert whole["metadata"] == {"registry_name": 'a "name"\n', "total_kernels": 3, "export_version": "1.0.0"}
    for counts in whole["statistics"].values():
        assert sum(counts.values()) == 3
    assert whole["kernels"][0]["name"] == "é\x01"
    assert "timestamp" in json.loads(registry.to_json(timestamp=True))["metadata"]
    assert list(json.loads(registry.to_json(statistics=False))) == ["metadata", "kernels"]
    assert Registry("empty").from_json(Registry("empty").to_json()) == 0


BROKEN = [
    ('"kernels"', '"kernel"', r":1: 'kernels' is missing here"),
    ('"signature"', '"sign"', r":4: 'signature' is missing here"),
    ('"total_kernels":3', '"total_kernels":4', r":1: total_kernels: was 4, must be 3, the kernels that follow"),
    ('"priority":"low"', '"priority":"soon"', r":6: priority: was soon, must be low, normal or high"),
    ('"rank":2', '"rank":"2"', r":6: was a string, must be a number"),
    ('"rank":2', '"rank":2.5', r":6: was a number with a dot, must be a number"),
    ('"bf16","pipeline"', '5,"pipeline"', r":4: was a number, must be a string"),
    ('"bf16","pipeline"', '"fp16","pipeline"', r":4: dtype: was fp16, must be bf16, as in the key"),
    ('"tile_m0":128', '"tile_m0":64', r":4: identifier: was .*, must be .*, that of its fields"),
    ('"mode":"batch"', '"mode":"group"', r":4: identifier: was fmha_fwd-bf16-64x64-"),
    ('"page_size":16', '"page_size":[16]', r":5: was an array, must be a value: true, false, a whole number or a str"),
    ('"hdim_q":64', '"hdim_q":64.5', r":4: was a number with a dot, must be a value"),
    ('"fit":{"seqlen_q":"tile_m0"}', '"fit":{"seqlen_q":"tile"}', r":4: fit: was tile, must be a number of the alg"),
    ('"bias":"alibi"', '"bias":"alibi', r":5: "),
    ("]}", "", r":8: "),
    *(
        ('"best":"seqlen_q<=8"', f'"best":"{rule}"', f':6: rule: was "{rule}", must be such as seqlen_q>=1')
        for rule in ("seqlen_q1", "seqlen_q>=x", "seqlen_q<8", "seqlen_q!=1", "seqlen_q>=1,2", ">=1", "seqlen_q>=")
    ),
]
"""Parts of a file, what they become, and what is said; C++ says it too (tests/dispatcher/test_twins.py)."""


@pytest.mark.parametrize(("old", "new", "sentence"), BROKEN)
def test_a_broken_file_is_told_by_its_line(old: str, new: str, sentence: str) -> None:
    text = registered().to_json()
    assert old in text
    registry = Registry("mine")
    with pytest.raises(tk.dispatcher.FileError, match=f"^kernels.json{sentence}"):
        registry.from_json(text.replace(old, new, 1), "kernels.json")
    assert len(registry) == 0, "nothing was added"


def test_auto_export(tmp_path) -> None:
    path, registry = tmp_path / "kernels.json", Registry("exported")
    registry.enable_auto_export(path, statistics=False)
    registry.add(kernel("64"))
    assert path.read_text() == registry.to_json(statistics=False)
    registry.disable_auto_export()
    registry.add(kernel("128", tile=128))
    assert json.loads(path.read_text())["metadata"]["total_kernels"] == 1
    with pytest.raises(OSError):
        registry.to_file(tmp_path / "none" / "kernels.json")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kernels.json"]


def test_auto_export_at_the_end_of_the_process(tmp_path, run) -> None:
    run(f"""
from tilekiln.dispatcher import FunctionInstance, Key, Registry
registry = Registry("late")
registry.enable_auto_export({str(tmp_path / 'kernels.json')!r}, each_registration=False)
registry.add(FunctionInstance(Key("fmha_fwd", {{"dtype": "bf16"}})))
assert not __import__("os").path.exists({str(tmp_path / 'kernels.json')!r})
""", PYTHON)  # fmt: skip
    assert json.loads((tmp_path / "kernels.json").read_text())["metadata"]["total_kernels"] == 1


def test_importing_needs_no_numpy(run) -> None:
    said = run(
        "import sys; from tilekiln.dispatcher import Dispatcher, Key, ProblemBuilder, Registry\n"
        "print('numpy' in sys.modules)",
        PYTHON,
    )
    assert said == "False\n"
