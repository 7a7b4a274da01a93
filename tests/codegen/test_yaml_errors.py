# SPDX-License-Identifier: MIT
"""Error texts for a wrong YAML file: file:line:column, the fault, the nearest right word."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random

import pytest
import yaml

from codegen.emit import dispatcher
from codegen.plan.plan import resolve
from codegen.schema import yaml_io
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell.check import check
from tests.codegen.brute import AXES, nearest
from tests.codegen.conftest import ROOT, Copy, what_there_is

FAMILY, GENERIC, AVX2 = (
    "kernels/attention/fmha_fwd/family.yaml",
    "kernels/targets/cpu-generic.yaml",
    "kernels/targets/cpu-avx2.yaml",
)
GEMM = "kernels/gemm/gemm/family.yaml"
CPU = "kernels/backends/cpu/backend.yaml"
BWD = "fmha_bwd_dq_dk_dv"
BWD_FAMILY, DOT = "kernels/attention/fmha_bwd/dq_dk_dv/family.yaml", "kernels/attention/fmha_bwd/dot_do_o/family.yaml"
RECEIPTS = ("flash", "aiter", "aiter_batch", "fp32", "fp32_min", "fp8")
HIP = "kernels/backends/hip/builds.yaml"
FLASH, AITER, AITER_BATCH, FP32, FP32_MIN, FP8 = (f"receipts/{name}.yaml" for name in RECEIPTS)

HDIMS = AXES["hdim_q"]

# The file, a text in it, the wrong text put in its place (the error must point at @), the message.
CASES = [
    (
        FLASH,
        "keep: dtype=fp16,bf16 bias=none,alibi lse",
        "@kep: dtype=fp16,bf16 lse",
        "'kep' is not known here; nearest: keep",
    ),
    (FLASH, "number: 2", "number: @two", "'two' must be a whole number from 0"),
    (FLASH, "receipt: flash\n", "receipt: @flush\n", "the file must be named flush.yaml"),
    (FLASH, "fmha_fwd:", "@fmha_fwb:", "no family 'fmha_fwb'; nearest: fmha_fwd"),
    (
        FLASH,
        "none,alibi lse",
        "none,@alibbi lse",
        "axis 'bias' of fmha_fwd has no value 'alibbi'; values: none, elementwise, alibi",
    ),
    (FLASH, "no sink=no qscale", "no @snik=no qscale", "no axis 'snik' in fmha_fwd; nearest: sink"),
    (FLASH, "values: lse=no", "values: @lse=yes", "'lse=yes' adds nothing: the receipt keeps it already"),
    (FLASH, "values: lse=no", "values: @lse=no or sink=yes", "an addition has no 'or'; write two additions"),
    (
        FLASH,
        "- values: lse=no\n",
        "- values: lse=no\n        where: @bias=elementwise\n",
        "this is nothing of what the receipt keeps",
    ),
    (
        FLASH,
        "- values: lse=no\n        reason: inference",
        "- @values: lse=no\n        # inference",
        "'reason' is missing here",
    ),
    (FLASH, "number: 2", "number: 2\n@number: 3", "'number' stands here twice"),
    # Keys of another entry give way to an entry's own; two of its own do not.
    (
        HIP,
        "  <<: *forward\n  when: hdim_q=64 dropout=no",
        "  <<: *forward\n  when: a=b\n  @when: hdim_q=64",
        "'when' stands here twice",
    ),
    (
        AITER,
        "128,192",
        "128,@129",
        f"axis 'hdim_q' of fmha_fwd has no value '129'; nearest: {nearest(129, HDIMS)}; values: {', '.join(HDIMS)}",
    ),
    (AITER, "hdim_q=128,192", "hdim_q=128,192 @snik=yes", "no axis 'snik' in fmha_fwd; nearest: sink"),
    (
        AITER,
        "- dtype=fp8bf16",
        "- @dtype=fp8bf16 lse=yes",
        "no legal signature of fmha_fwd has dtype=fp8bf16 hdim_q=128,192 lse=yes",
    ),
    (FP32_MIN, "extends: fp32", "extends: @fp23", "no receipt 'fp23'; nearest: fp32"),
    (FP32_MIN, "only: hdim_q=48", "only: @dtype=bf16 hdim_q=48", "this leaves nothing of what the receipt keeps"),
    (AITER_BATCH, "only: mode=batch", "only: @moed=batch", "no axis 'moed' in fmha_fwd; nearest: mode"),
    (
        AITER_BATCH,
        "only: mode=batch",
        "only: @dtype=fp32",
        "this leaves nothing of fmha_fwd; `without` leaves it out",
    ),
    (
        FP8,
        "families:",
        "only: @mode=batch\nfamilies:",
        "this narrows what is inherited, and the receipt extends no other",
    ),
    (
        FAMILY,
        "values: [none, window]",
        "values: [@no, window]",
        "the boolean no must be a name (small letters, digits and _), or a whole number from 0 "
        "(YAML reads yes, no, on and off as booleans: quote them)",
    ),
    (FAMILY, "- name: mask", "- @nam: mask", "'nam' is not known here; nearest: name"),
    (FAMILY, "name: softcap\n", "name: @Softcap\n", "'Softcap' must be a name (small letters, digits and _)"),
    (FAMILY, "name: sink\n", "name: @softcap\n", "'softcap' stands here twice"),
    (FAMILY, "fp8fp32: [", "@fp9fp32: [", "no dtype 'fp9fp32'; nearest: fp8fp32"),
    (FAMILY, "fp8fp32: [", "fp8fp32: [128x128, @128x128, ", "'128x128' stands here twice"),
    (
        FAMILY,
        "fp8fp32: [",
        "fp8fp32: [@128*128, ",
        "'128*128' must be numbers with x between them, as 64x64, or a whole number from 1",
    ),
    (FAMILY, "fp8fp32: [", "fp8fp32: [@128, ", "'128' must be 2 numbers (hdim_q, hdim_v) with x between them"),
    (FAMILY, "softcap=yes bias=elementwise", "softcap=yes @bais!=none", "no axis 'bais' in fmha_fwd; nearest: bias"),
    (FAMILY, "softcap=yes bias=elementwise", "@softcap=yes,no", "this rule would forbid everything"),
    (
        FAMILY,
        "dtype!=fp32,fp16,bf16 lse=yes",
        "@dtype=fp8bf16 bias=alibi softcap=yes",
        "rule 'fp8_without_lse' never applies: head dims and the other rules allow nothing that it forbids",
    ),
    (
        GEMM,
        "most: [256, 256, 1024]",
        "most: @[256, 256]",
        "most was of 2 numbers, must be of 3: tile_m, tile_n, tile_k",
    ),
    (FAMILY, 'word: "_d{}"', 'word: @"_d"', "this gives two values one word; {} is the value"),
    (
        FP32_MIN,
        "number: 801",
        "number: 801\nsize_budget: @20 miles",
        "'20 miles' is no size; write it as 800 kB, 20 MB or 1.5 GB",
    ),
    (FAMILY, "source_by: [dtype,", "source_by: [@dtyp,", "no axis 'dtyp'; nearest: dtype"),
    (FAMILY, "  type: tilekiln::", "  @typ: tilekiln::", "'typ' is not known here; nearest: type"),
    (FAMILY, "header: kernels/attention/fwd_engine.h", "header: @kernels/no.h", "kernels/no.h is missing"),
    (
        GENERIC,
        "fmha_fwd:\n    - {pipeline: qlanes,",
        "fmha_fwd:\n    - {pipeline: @klanes,",
        "no pipeline of fmha_fwd 'klanes'; nearest: qlanes",
    ),
    (
        GENERIC,
        "tile: 64x256",
        "tile: @64*64",
        "'64*64' is no tile: write 2 numbers with x between them (tile_q, tile_k), 1 to 65535",
    ),
    (
        GENERIC,
        "{pipeline: qlanes, tile: 64x256",
        "{pipeline: qlanes, @tlie: 64x256",
        f"no algorithm axis of {BWD} 'tlie'; nearest: tile",
    ),
    (GENERIC, "{pipeline: qlanes, tile: 64x256", "@{pipeline: qlanes", "'tile' is missing here"),
    (GENERIC, "{pipeline: qlanes, tile: 64x256", "@{tile: 64x256", "'pipeline' is missing here"),
    (GENERIC, "tile: 64x256", "tile: 64x256, rank: @256", "'256' must be a number from 0 to 255"),
    (
        GENERIC,
        "fmha_fwd:\n    - {pipeline: qlanes,",
        "fmha_fwd:\n    - {best: @seqlen_k>=1, pipeline: qlanes,",
        "no size of fmha_fwd 'seqlen_k'; nearest: seqlen_q",
    ),
    (
        GENERIC,
        "fmha_fwd:\n    - {pipeline: qlanes,",
        "fmha_fwd:\n    - {needs: seqlen_q>=9 @seqlen_q<=8, pipeline: qlanes,",
        "this leaves nothing of size 'seqlen_q'",
    ),
    (
        GENERIC,
        "fmha_fwd:\n    - {pipeline: qlanes,",
        "fmha_fwd:\n    - {needs: @seqlen_q!=9, pipeline: qlanes,",
        "'seqlen_q!=9': a size is compared with one number, by =, >= or <=",
    ),
    (
        FAMILY,
        "fit: {seqlen_q: tile_q}",
        "fit: {seqlen_q: @tile_m}",
        "no number of the algorithm 'tile_m'; nearest: tile_q",
    ),
    (
        FAMILY,
        "of: [tile_q, tile_k]",
        "of: [tile_q, tile_k], default: @64",
        "'64' is no tile: write 2 numbers with x between them (tile_q, tile_k), 1 to 65535",
    ),
    (FAMILY, "- name: sink\n", "- name: @tile_q\n", "'tile_q' means a part of the algorithm in selections"),
    (FAMILY, "    by: dtype", "    by: @dtpye", "no axis 'dtpye'; nearest: dtype"),
    (
        FP8,
        "fmha_fwd:",
        "@fmha_bwd_dot_do_o:",
        f"fmha_bwd_dot_do_o comes with {BWD}: exactly what its instances need; name that family",
    ),
    (
        AITER_BATCH,
        "- fmha_bwd_dq_dk_dv ",
        "- @fmha_bwd_dq ",
        "no inherited family 'fmha_bwd_dq'; nearest: fmha_bwd_dq_dk_dv",
    ),
    (
        FP32,
        "fmha_bwd_dq_dk_dv:\n    keep: dtype=fp32",
        "fmha_bwd_dq_dk_dv:\n    keep: @dtype=fp32 hdim_q=48",
        f"nothing of this is in the base of {BWD}; what is beyond it, a receipt adds (`add`)",
    ),
    (
        BWD_FAMILY,
        "- dtype=fp32 hdim",
        "- @dtype=fp32 hdim_v=80 hdim",
        f"no legal signature of {BWD} has dtype=fp32 hdim_q=32,64,128 hdim_v=80 softcap=no sink=no",
    ),
    (
        BWD_FAMILY,
        "[ndropout, dropout, dropout_store]",
        "@[ndropout, dropout]",
        "2 words for 3 values: none, apply, store",
    ),
    (BWD_FAMILY, "- name: sink\n", "- name: @family\n", "'family' means the family in selections"),
    (
        DOT,
        f"companion_of: {BWD}",
        "companion_of: @fmha_fwb",
        "no family with a plan of its own 'fmha_fwb'; nearest: fmha_fwd",
    ),
    (
        DOT,
        f"companion_of: {BWD}",
        "companion_of: @fmha_bwd_convert_dq",
        f"no family with a plan of its own 'fmha_bwd_convert_dq'; nearest: {BWD}",
    ),
    (DOT, "{name: mode, values: main}", "{name: @mood, values: main}", f"no axis of {BWD} 'mood'; nearest: mode"),
    (DOT, "{name: mode, values: main}", "@{name: mode}", "'about' is missing here"),
    (DOT, "- name: qlanes", "- name: @klanes", f"no pipeline of {BWD} 'klanes'; nearest: qlanes"),
    (
        GENERIC,
        "fmha_fwd:\n    - {pipeline: qlanes,",
        "fmha_fwd:\n    - {when: lse=@sometimes, pipeline: qlanes,",
        "axis 'lse' of fmha_fwd has no value 'sometimes'; values: no, yes",
    ),
    (AVX2, "extends: cpu-generic", "extends: @cpu-generix", "no target 'cpu-generix'; nearest: cpu-generic"),
    (
        AVX2,
        "backend: cpu",
        "backend: @vulkan",
        "no backend 'vulkan': nothing here compiles or runs its targets; backends: cpu, cuda, hip",
    ),
    (CPU, "machine: cpuid", "machine: @cpuld", "no machine 'cpuld'; nearest: cpuid"),
    (CPU, "backend: cpu", "backend: @xpu", "the file must lie in kernels/backends/xpu"),
    (
        AVX2,
        "flags: [-march",
        "refuses:\n  @fmha_fwt:\n    - {name: no_fp8, when: dtype=fp8bf16, says: it has none}\nflags: [-march",
        "no family 'fmha_fwt'; nearest: fmha_fwd",
    ),
    (
        AVX2,
        "flags: [-march",
        "refuses:\n  fmha_fwd:\n    - {name: no_fp8, when: dtype=@fp9, says: it has none}\nflags: [-march",
        "axis 'dtype' of fmha_fwd has no value 'fp9'; nearest: fp32; values: fp32, fp16, bf16, fp8bf16, fp8fp32, "
        "fp8fnuzbf16, bf8fnuzbf16",
    ),
    (AVX2, "[x86-64-v3]\n", "[@x86-64-v5]\n", "no CPU feature 'x86-64-v5'; nearest: x86-64-v4, x86-64-v3, x86-64-v2"),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), CASES, ids=[case[2].replace("\n", " ") for case in CASES])
def test_an_error_says_where_what_and_the_nearest_right_word(
    copy: Copy, file: str, old: str, new: str, message: str
) -> None:
    copy.edit(file, old, new)
    text = (copy.path / file).read_text()
    at = text.index("@")
    copy.edit(file, new, new.replace("@", ""))
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    with pytest.raises(CodegenError) as raised:
        check(copy.tree())
    assert str(raised.value).splitlines()[0] == f"{file}:{line}:{column}: {message}"
    assert raised.value.code == 2


def test_numbers_and_places_in_the_order_are_unique(copy: Copy) -> None:
    copy.edit(FLASH, "number: 2\n", "number: 100\n")
    with pytest.raises(CodegenError, match=r"^receipts/flash\.yaml:2:9: number 100 is taken by aiter_batch$"):
        copy.tree().all_receipts()
    copy.edit(AVX2, "order: 10", "order: 0")
    with pytest.raises(CodegenError, match=r"^kernels/targets/cpu-generic\.yaml:\d+:8: order 0 is taken by cpu-avx2$"):
        _ = copy.tree().targets


def test_broken_yaml_says_where(copy: Copy) -> None:
    copy.edit(FLASH, "number: 2", "number: [2")
    with pytest.raises(CodegenError, match=r"^receipts/flash\.yaml:3:\d+: did not find expected ',' or '\]'$"):
        copy.tree().receipt("flash")


def test_a_circle_is_shown(copy: Copy) -> None:
    copy.edit(FP32, "number: 800", "number: 800\nextends: fp32_min")
    circle = r"receipt 'fp32_min' extends itself: fp32 -> fp32_min -> fp32"
    with pytest.raises(CodegenError, match=rf"^receipts/fp32_min\.yaml:4:10: {circle}$"):
        copy.tree().receipt("fp32")


def test_a_missing_field_points_at_its_mapping(copy: Copy) -> None:
    copy.edit(FLASH, "about: Users of flash-attention's", "# Users of flash-attention's")
    with pytest.raises(CodegenError, match=r"^receipts/flash\.yaml:1:1: 'about' is missing here$"):
        copy.tree().receipt("flash")


@pytest.mark.day
def test_a_missing_pipeline_is_found(copy: Copy) -> None:
    source = copy.path / "kernels/attention/fmha_fwd/cpu/qlanes.cpp"
    source.unlink(missing_ok=True)
    with pytest.raises(
        CodegenError,
        match=r"^kernels/attention/fmha_fwd/family\.yaml:\d+:11: kernels/\S*/fmha_fwd/cpu/qlanes\.cpp is missing$",
    ):
        check(copy.tree())


@pytest.mark.day
def test_a_source_that_a_pipeline_shares_must_be_there(copy: Copy) -> None:
    shared = "layout.\n    shares: [kernels/attention/cpu/qlanes/stage%s.cpp]"
    copy.edit("kernels/attention/fmha_fwd/family.yaml", shared % "s", shared % "")
    with pytest.raises(
        CodegenError, match=r"/fmha_fwd/family\.yaml:\d+:\d+: kernels/attention/cpu/qlanes/stage\.cpp is missing$"
    ):
        check(copy.tree())


def test_a_folded_selection_points_at_its_beginning_and_a_quoted_one_at_the_word(copy: Copy) -> None:
    file, keep = "receipts/fp8.yaml", "keep: dtype=fp8bf16,fp8fp32 hdim_q=128,192"
    copy.edit(file, keep, "keep: >\n      dtype=fp8bf16\n      hdmi_q=128")
    with pytest.raises(CodegenError, match=r"^receipts/fp8\.yaml:6:11: no axis 'hdmi_q' in fmha_fwd; nearest: hdim_q$"):
        copy.tree().receipt("fp8")
    copy.edit(file, ">\n      dtype=fp8bf16\n      hdmi_q=128", "'dtype=fp8bf16 hdmi_q=128'")
    with pytest.raises(CodegenError, match=r"^receipts/fp8\.yaml:6:26: no axis 'hdmi_q' in fmha_fwd; nearest: hdim_q$"):
        copy.tree().receipt("fp8")


WORDS = (
    "[] {} null yes 5 -1 x '' [a] {a:1} 3.5 2026-01-01 dtype=bf16 *a &a !!python/object : % - 99999999999999999".split()
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.day
def test_no_edit_ends_in_anything_but_a_message(copy: Copy, seed: int) -> None:
    """Lines and words lost, doubled and exchanged: all is well still, or a CodegenError says what is not."""
    random = Random(seed)
    paths = sorted(copy.path.rglob("*.yaml"))
    for _ in range(10):
        path = random.choice(paths)
        old = path.read_text()
        lines = old.splitlines(keepends=True)
        at = random.randrange(len(lines))
        kind = random.randrange(4)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, random.choice(lines))
        elif kind == 2:
            lines[at] = lines[at].partition(":")[0] + f": {random.choice(WORDS)}\n"
        else:
            word = random.choice(re.findall(r"[^\s:,\[\]{}]+", old))
            lines = [old.replace(word, random.choice(WORDS), 1)]
        path.write_text("".join(lines))
        root = copy.tree()
        with suppress(CodegenError):
            for receipt in root.all_receipts():
                resolve(receipt.name, ["cpu-avx2"], root=root)
        path.write_text(old)


def test_the_tree_is_well(real: Tree) -> None:
    """As many of each as there are files; the instances are counted in the golden plans."""
    assert check(real).startswith(f"all is well: {what_there_is(ROOT)}; ")


def test_a_companion_that_a_target_lacks_is_found(copy: Copy) -> None:
    """Two targets could differ; a plan that cannot run its main instances is none."""
    dot = "fmha_bwd_dot_do_o:\n    - {pipeline: qlanes, tile: 64"
    copy.edit(GENERIC, dot, f"{dot}, when: mode=batch or hdim_v!=96")
    with pytest.raises(CodegenError) as raised:
        resolve("pytorch", ["cpu-avx2"], root=copy.tree())
    assert str(raised.value) == (
        "target cpu-avx2 has no fmha_bwd_dot_do_o for dtype=fp16 hdim_v=96 mode=group, "
        "which an instance of fmha_bwd_dq_dk_dv needs (receipt pytorch)"
    )
    assert resolve("pytorch", ["cpu-avx2"], "hdim_v=64", root=copy.tree()).instances
    with pytest.raises(CodegenError, match=r"^target cpu-generic has no fmha_bwd_dot_do_o for "):
        check(copy.tree())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "receipt: flash\nabout: a\0b\n",
            "2:9: the character U+0000 cannot stand in YAML; the file must be text, in UTF-8",
        ),
        (
            "receipt: flash\n".encode("utf-16-le").decode(),
            "1:2: the character U+0000 cannot stand in YAML; the file must be text, in UTF-8",
        ),
        (
            f"receipt: flash\nnumber: {'7' * 5000}\n",
            f"2:9: {'7' * 20}... (5000 characters) is no value that can be read; quote it if it is text",
        ),
        ("about: 2026-13-45\n", "1:8: 2026-13-45 is no value that can be read; quote it if it is text"),
        ("[" * 100_000, "1:201: more than 200 lists and mappings inside each other"),
        ("- " * 100_000 + "x", "1:401: more than 200 lists and mappings inside each other"),
        ("{a: " * 300 + "}" * 300, "1:801: more than 200 lists and mappings inside each other"),
        (
            "\n".join(" " * depth + "a:" for depth in range(300)),
            "201:201: more than 200 lists and mappings inside each ",
        ),
    ],
    ids=["NUL", "UTF-16", "digits", "date", "brackets", "dashes", "braces", "indentation"],
)
def test_texts_that_end_the_parser(copy: Copy, text: str, says: str) -> None:
    (copy.path / FLASH).write_text(text)
    with pytest.raises(CodegenError) as raised:
        resolve("flash", ["cpu-avx2"], root=copy.tree())
    assert str(raised.value).startswith(f"{FLASH}:{says}")


def test_bytes_that_are_no_text(copy: Copy) -> None:
    (copy.path / FLASH).write_bytes("receipt: flash".encode("utf-16"))
    with pytest.raises(CodegenError, match=rf"^{FLASH}: cannot be read: "):
        resolve("flash", ["cpu-avx2"], root=copy.tree())


def test_what_is_read_quickly_is_what_yaml_says() -> None:
    """Every file of the tree, and what only the loader itself may read."""
    texts = [path.read_text() for folder in ("kernels", "receipts") for path in sorted((ROOT / folder).rglob("*.yaml"))]
    assert len(texts) > 100
    odd = "{a: [0x1F, 017, 1_000, -3, +4, 0, 12, 1e3, .5, ~, null, '', yes, No, ON, 2020-01-02, 3:20], b: {}, c: []}"
    more = ["", "# nothing", "a: &x [1]\nb: *x", "a: {b: 1}\nc:\n  <<: {d: 2}", odd, "? 1\n: 2", "a: |\n  text\n"]
    for text in [*texts, *more]:
        assert yaml_io._load(text) == yaml.load(text, yaml_io._Loader), text


def test_the_cost_of_a_tile_is_of_numbers_alone(copy: Copy) -> None:
    """It is evaluated, so nothing else may stand there."""
    copy.edit(dispatcher.FILE, "forgiven: size + size // 4", "forgiven: size.real")
    with pytest.raises(CodegenError, match=r"dispatcher.yaml:\d+:\d+: must be of size, tile, whole numbers and"):
        dispatcher.read(copy.tree().places)
