# SPDX-License-Identifier: MIT
"""Error texts for a wrong operator.yaml, and the code made of a right one."""

from __future__ import annotations

import pathlib
import re
from contextlib import suppress
from random import Random

import pytest

from codegen.emit.operators import render, written
from codegen.schema import operator_types as types
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell.check import check_places, check_proof
from tests.codegen.conftest import Copy
from tests.codegen.test_yaml_errors import WORDS

FWD, AREA = "kernels/attention/fmha_fwd/operator.yaml", "kernels/attention/arguments.yaml"
GEMM = "kernels/gemm/gemm/operator.yaml"

# The file, a text in it, the wrong text put in its place (the error must point at @), the message.
CASES = [
    (
        FWD,
        "operator: fmha_fwd",
        "operator: @fmha_forward",
        "the operator in kernels/attention/fmha_fwd must be named fmha_fwd",
    ),
    (FWD, "stages: [fmha_fwd]", "stages: [@fmha_fwb]", "no family 'fmha_fwb'; nearest: fmha_fwd"),
    (
        FWD,
        "  sink: {array: fp32, shape: H",
        "  sink: {@aray: fp32, shape: H",
        "'aray' is not known here; nearest: array",
    ),
    (FWD, "k: {array: as q", "k: {array: @as kv", "no argument 'kv'; nearest: v"),
    (FWD, "sink: {array: fp32", "sink: {array: @fp23", "no dtype 'fp23'; nearest: fp32"),
    (
        FWD,
        "sink: {array: fp32, shape: H",
        "sink: {array: fp32, @least: 0, shape: H",
        "'least' is no word of kind array; it may have place, optional, required, form, like, shape, shape_by, one, "
        "ones, when, only, read, strides, written_with, not_with, needs, together, says",
    ),
    (
        FWD,
        "sink: {array: fp32",
        "sink: @{array: fp32, int: 0",
        "'sink' is of several kinds: array, int; it must be one of array, result, written, float, int, flag, word, "
        "pair, dims, threads, instance, stream, executor",
    ),
    (
        FWD,
        "softcap: {float: 0",
        "softcap: {float: @1e-6",
        "'1e-6' is a text to YAML; a number needs its dot, as in 1.0e-6, or it is 'derived'",
    ),
    (
        FWD,
        'least_is: "off"',
        "least_is: @off",
        "the boolean no must be a text that is not empty (YAML reads yes, no, on and off as booleans: quote them)",
    ),
    (FWD, "k: B <Sk Hk> D, v", "k: @B <Sk Hx> D, v", "no length 'Hx'; nearest: H"),
    (FWD, "  include lengths:", "  @include length:", "no group 'length'; nearest: lengths"),
    (FWD, "  - alibi_slopes\n  - sink", "  - alibi_slopes\n  - @sinks", "no argument 'sinks'; nearest: sink"),
    (FWD, "  - include mask\n", "  - @include masks\n", "no included group 'masks'; nearest: mask"),
    (FWD, "  - include mask\n", "  - causal\n  - @include mask\n", "'causal' stands here twice"),
    (FWD, "  - include mask\n", "  - causal\n", "'window' has no turn here"),
    (FWD, "not_with: alibi_slopes", "not_with: @alibi", "no argument 'alibi'; nearest: alibi_slopes"),
    (FWD, "  mode: form", "  @mood: form", "no axis of fmha_fwd 'mood'; nearest: mode"),
    (FWD, "lse: lse", "lse: @lsee", "no argument 'lsee'; nearest: lse"),
    (FWD, "{elementwise: bias,", "{@element: bias,", "no value of bias 'element'; nearest: elementwise"),
    (FWD, "  qscale: host\n", "", "axis 'qscale' of fmha_fwd is missing here"),
    (FWD, "  - min_seqlen_q\n", "", "'min_seqlen_q' has no turn here"),
    (GEMM, "in_place: c", "in_place: @d", "no argument 'd'"),
    (
        GEMM,
        "  include activation:\n",
        "  activation: {word: [none, relu], about: what is last}\n",
        "no included group 'activation'",
    ),
    (
        "kernels/gemm/arguments.yaml",
        "    clamp_min: {",
        "    what: {word: axis, about: none}\n    clamp_min: {",
        "word: axis of 'what': no axis of ",
    ),
    (
        "kernels/gemm/arguments.yaml",
        "activation: {word: axis,",
        "activation: {word: [none, relu],",
        "the words of 'activation' must be the values of the axis: none, relu, gelu, gelu_tanh, silu, sigmoid",
    ),
    (
        "kernels/gemm/gemm_quant/operator.yaml",
        "  M: {name: m, of: a, most: 2147483647, equal: [out, out_scale]}",
        "  @M: {name: m, of: a, most: 2147483647, equal: [out]}",
        "nothing asks out_scale for the m (M): 'equal' of it must list out_scale",
    ),
    (
        "kernels/gemm/grouped_gemm/operator.yaml",
        "  G: {name: group count, word: groups, short: groups, of: b, most: 2147483646}",
        "  G: {name: group count, word: groups, short: groups, of: bias, most: 2147483646}",
        "the group count (G) is that of bias, which is no array of the main step",
    ),
    (GEMM, "length: M}", "length: @MM}", "no length 'MM'; nearest: M"),
    (GEMM, "independent: {length: M}", "independent: {length: @N}", "out does not begin with N in form plain"),
    (FWD, "backward: fmha_bwd", "backward: @fmha_bdw", "no operator 'fmha_bdw'; nearest: fmha_bwd"),
    (
        FWD,
        "instead: {by: fmha_fwd_splitkv",
        "instead: {by: @fmha_fwd_split",
        "no operator 'fmha_fwd_split'; nearest: fmha_fwd_splitkv",
    ),
    (FWD, "instead: {by: fmha_fwd_splitkv", "instead: {by: @fmha_bwd", "fmha_bwd takes other arrays"),
    (FWD, "length: Sq, most: {", "length: @Sqq, most: {", "no length 'Sqq'; nearest: Sq"),
    (FWD, "unless: [seqlen_q,", "unless: [@seqlen,", "no argument 'seqlen'; nearest: seqlen_q"),
    (FWD, "return_randval: randval", "return_randval: @randvall", "no argument 'randvall'; nearest: randval"),
    (AREA, "Sk: {name: seqlen,", "Sk: {@nam: seqlen,", "'nam' is not known here; nearest: name"),
    (
        AREA,
        "sink_size: {int: 0, least: 0",
        "sink_size: {int: 0, least: @no",
        "the boolean no must be a whole number (YAML reads yes, no, on and off as booleans: quote them)",
    ),
]


@pytest.mark.parametrize(("file", "old", "new", "message"), CASES, ids=[case[2].replace("\n", " ") for case in CASES])
def test_an_error_says_where_and_what(copy: Copy, file: str, old: str, new: str, message: str) -> None:
    copy.edit(file, old, new.replace("@", ""))
    with pytest.raises(CodegenError) as raised:
        made(copy.tree())
    text = str(raised.value)
    assert f": {message}" in text, text
    if "@" in new:
        before = (copy.path / file).read_text().partition(new.replace("@", ""))[0] + new.partition("@")[0]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        assert text.startswith(f"{file}:{line}:{column}: ")


def made(root: Tree) -> None:
    """Everything that is made from the operators."""
    written.contents(root.operators, {})
    for operator in root.operators.values():
        render.context(operator, root.operators)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.day
def test_no_edit_ends_in_anything_but_a_message(copy: Copy, seed: int) -> None:
    random = Random(seed)
    paths = [*copy.path.rglob("operator.yaml"), *copy.path.rglob("arguments.yaml")]
    families = copy.tree().families
    for _ in range(60):
        path = random.choice(sorted(paths))
        old = path.read_text()
        lines = old.splitlines(keepends=True)
        at = random.randrange(len(lines))
        kind = random.randrange(4)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, random.choice(lines))
        elif kind == 2:
            word = random.choice(re.findall(r"[^\s:,\[\]{}]+", lines[at]) or ["-"])
            lines[at] = lines[at].replace(word, random.choice(WORDS), 1)
        else:
            word = random.choice(re.findall(r"[^\s:,\[\]{}]+", old))
            lines = [old.replace(word, random.choice(WORDS), 1)]
        path.write_text("".join(lines))
        root = copy.tree()
        root.__dict__["families"] = families  # they have not changed
        with suppress(CodegenError):
            made(root)
        path.write_text(old)


def test_check_says_which_file_is_out_of_date(copy: Copy) -> None:
    copy.edit("include/tilekiln/operators/fmha_fwd.h", "  float softcap;", "  double softcap;")
    with pytest.raises(CodegenError, match=r"^out of date: include/tilekiln/operators/fmha_fwd\.h\nwrite them: "):
        written.check(copy.tree())


def test_the_page_explains_every_word(real: Tree) -> None:
    page = (pathlib.Path(real.root) / "docs/explanation/operators.md").read_text()
    kinds = (
        types.OperatorFile,
        types.AreaFile,
        types.ArgumentFile,
        types.SymbolFile,
        types.CallFile,
    )
    for kind in (
        *kinds,
        types.NumberFile,
        types.UntouchedFile,
        types.IndependentFile,
        types.TorchFile,
    ):
        for word in kind.__struct_fields__:
            assert re.search(rf"`{word}\b", page), f"{word} of {kind.__name__}"
    for words in types.RANGES:
        assert f"`{words}`" in page


def test_stubs_have_the_functions_of_every_operator(real: Tree) -> None:
    text = (pathlib.Path(real.root) / "python/tilekiln/_generated/declared.pyi").read_text()
    for name, operator in real.operators.items():
        for suffix in ("", "_find", "_why", *(f"_{number}" for number in operator.file.numbers)):
            assert f"    def {name}{suffix}(self, " in text
    binding = (pathlib.Path(real.root) / "python/tilekiln/_binding.pyi").read_text()
    assert "class Library(Functions):" in binding


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("python/tilekiln/reference/softmax.py", "reference"),
        ("tests/python/test_softmax.py", "tests"),
        ("docs/reference/operators/softmax.md", "page"),
    ],
)
def test_check_demands_what_proves_an_operator(copy: Copy, missing: str, what: str) -> None:
    root = copy.tree()
    softmax = root.operators["softmax"]
    check_proof(root, softmax)
    (copy.path / missing).unlink()
    said = rf"^kernels/norm/softmax/operator\.yaml:1:\d+: the {what} of softmax, {re.escape(missing)}, must be there: "
    with pytest.raises(CodegenError, match=said):
        check_proof(root, softmax)


def test_check_demands_what_makes_an_operator_run(copy: Copy) -> None:
    root = copy.tree()
    softmax = root.operators["softmax"]
    check_places(root, softmax, {"softmax"})
    with pytest.raises(
        CodegenError, match=r"family\.yaml:\d+:9: no receipt has softmax: name it under `families:` of one"
    ):
        check_places(root, softmax, set())
    for target in (copy.path / "kernels/targets").glob("*.yaml"):
        target.write_text(re.sub(r"^  softmax:.*\n(    .*\n)*", "", target.read_text(), flags=re.M))
    root = copy.tree()
    with pytest.raises(CodegenError, match=r"family\.yaml:\d+:9: no target has a pipeline of softmax: name one under"):
        check_places(root, root.operators["softmax"], {"softmax"})
    (copy.path / "kernels/norm/softmax/host.cpp").unlink()
    said = r"operator\.yaml:1:\d+: kernels/norm/softmax/host\.cpp is missing: `fill` and `launch` stand there"
    with pytest.raises(CodegenError, match=said):
        check_places(root, root.operators["softmax"], {"softmax"})


def test_check_demands_that_the_tests_name_the_operator(copy: Copy) -> None:
    (copy.path / "tests/python/test_linear.py").write_text("def test_products() -> None: ...\n")
    said = r"^kernels/gemm/flatmm/operator\.yaml:17:8: the tests of flatmm, tests/python/test_linear\.py, must name it$"
    with pytest.raises(CodegenError, match=said):
        check_proof(root := copy.tree(), root.operators["flatmm"])
