# SPDX-License-Identifier: MIT
"""`codegen check --reach`: each instance can be chosen, each legal problem has a kernel; what is not so is named."""

from __future__ import annotations

import pytest

from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree, tree
from codegen.tell import reach
from tests.codegen.conftest import Copy

GENERIC = "kernels/targets/cpu-generic.yaml"
AVX2 = "kernels/targets/cpu-avx2.yaml"


@pytest.mark.day
def test_every_instance_is_reached_and_every_problem_has_a_kernel(pytestconfig: pytest.Config) -> None:
    """A third of the receipts a day, all with --full."""
    root, day = tree(), pytestconfig.option.sample_seed
    whole = pytestconfig.option.full
    found = reach.reach(root, root.all_receipts() if whole else root.all_receipts()[day % 3 :: 3])
    assert found.failures == []
    assert found.instances > found.signatures > (10_000 if whole else 100)
    assert found.by_number or not whole
    assert str(found).startswith(f"all is reached: {found.instances:,} instances of {found.signatures:,} signatures, ")


def failing(root: Tree, receipt: str) -> list[str]:
    found = reach.reach(root, [root.receipt(receipt)])
    with pytest.raises(CodegenError, match=r"^not reached:\n"):
        reach.check(root, [root.receipt(receipt)])
    return found.failures


def test_an_instance_that_another_always_beats_is_named(copy: Copy) -> None:
    copy.edit(
        GENERIC,
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n    - {pipeline: qlanes, tile: 64x32, rank: 9}\n",
    )
    failures = failing(copy.tree(), "fp32_min")
    assert failures[0].startswith(
        "receipt fp32_min: fmha_fwd on cpu-generic: qlanes 64x32 is never chosen (dtype=fp32 "
    )
    assert len(failures) == 6  # a CPU target each, of any machine


def test_sizes_that_no_algorithm_takes_are_named(copy: Copy) -> None:
    copy.edit(
        GENERIC,
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64, needs: seqlen_q<=4096 or seqlen_q>=4099}\n",
    )
    failures = failing(copy.tree(), "fp32_min")
    assert "fmha_fwd on cpu-generic: no algorithm takes a problem of seqlen_q=4097 (dtype=fp32" in failures[0]


def test_a_signature_that_nothing_answers_is_named_unless_a_larger_one_serves(copy: Copy) -> None:
    hole = "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64, when: %s}\n"
    text = (copy.path / GENERIC).read_text()
    whole = "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n"
    assert text.count(whole) == 1
    (copy.path / GENERIC).write_text(text.replace(whole, hole % "sink=no"))
    failures = failing(copy.tree(), "fp32_min")
    assert failures[0].startswith("receipt fp32_min: no kernel on cpu-generic for fmha_fwd dtype=fp32 hdim_q=48 ")
    assert " sink=yes " in failures[0]
    # Head dims up to 48 are served by the instances of 128; those of 128 by none.
    (copy.path / GENERIC).write_text(text.replace(whole, hole % "hdim_q=128"))
    root = copy.tree()
    assert reach.reach(root, [root.receipt("fp32_min")]).failures == []
    (copy.path / GENERIC).write_text(text.replace(whole, hole % "hdim_q=48"))
    assert " hdim_q=128 " in failing(copy.tree(), "fp32_min")[0]


def test_what_a_target_refuses_with_its_reason_is_no_failure(copy: Copy) -> None:
    with (copy.path / AVX2).open("a") as file:
        file.write("refuses:\n  fmha_fwd:\n    - {name: no_sink, when: sink=yes, says: it has no sinks}\n")
    root = copy.tree()
    assert reach.reach(root, [root.receipt("fp32_min")]).failures == []


def test_by_number_is_not_said_of_what_is_chosen(copy: Copy) -> None:
    copy.edit(
        GENERIC,
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64}\n",
        "  fmha_fwd:\n    - {pipeline: qlanes, tile: 64x64, by_number: yes}\n",
    )
    said = "qlanes 64x64 is chosen, though its target says by_number"
    assert said in failing(copy.tree(), "fp32_min")[0]
    copy.edit(GENERIC, "tile: 64x64, by_number: yes", "tile: 64x64, by_number: no")
    with pytest.raises(CodegenError, match="'False' must be yes, a selection, or left out"):
        failing(copy.tree(), "fp32_min")
    # An entry of some receipts alone is none for the others, whose tile has no kernel then.
    copy.edit(GENERIC, "tile: 64x64, by_number: no", "tile: 64x64, receipts: [flash]")
    assert "no kernel on cpu-generic for fmha_fwd" in failing(copy.tree(), "fp32_min")[0]
    copy.edit(GENERIC, "receipts: [flash]", "receipts: flash")
    with pytest.raises(CodegenError, match="'flash' must be a list of receipts"):
        failing(copy.tree(), "fp32_min")
