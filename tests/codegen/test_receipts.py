# SPDX-License-Identifier: MIT
"""Receipts as files: what may be left out, what one that is wrong does to others, what a change does to all."""

from __future__ import annotations

import json

import pytest

from codegen.cli import help_pages
from codegen.emit.render import generate
from codegen.out import committed
from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.tell import docs, listing
from codegen.tell.check import changed, check
from tests.codegen.conftest import Copy

SMALL = """receipt: small
about: Someone who needs little.
families:
  fmha_fwd:
    keep: dtype=bf16 hdim_q=128 hdim_v=128 mode=batch mask=none bias=none
"""
BROKEN = "receipt: broken\nabout: Half written.\nfamilies:\n  fmha_fwd:\n    keep: dtype=bf17\n"
FAULT = (
    "receipts/broken.yaml:5:17: axis 'dtype' of fmha_fwd has no value 'bf17'; nearest: bf16; "
    "values: fp32, fp16, bf16, fp8bf16, fp8fp32, "
    "fp8fnuzbf16, bf8fnuzbf16"
)


def add(copy: Copy, name: str, text: str) -> None:
    (copy.path / "receipts" / f"{name}.yaml").write_text(text)


def test_a_receipt_needs_no_number(copy: Copy, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """It stands behind those that have one, and its number is null for programs."""
    add(copy, "aaa", SMALL.replace("small", "aaa"))
    add(copy, "small", SMALL)
    root = copy.tree()
    unnumbered = [receipt.name for receipt in root.all_receipts() if receipt.number is None]
    assert unnumbered == sorted(unnumbered) == [receipt.name for receipt in root.all_receipts()][-len(unnumbered) :]
    assert {"aaa", "small"} <= {*unnumbered}
    assert listing.receipt(root, "small", ["cpu-avx2"]).startswith("receipt small\nSomeone who needs little.\n")
    assert json.loads(listing.json([resolve("small", ["cpu-avx2"], root=root)]))["number"] is None
    assert "| [small](#small) | 32 | Someone who needs little. |" in docs.pages(root, help_pages())["receipts.md"]
    generate([resolve("small", ["cpu-avx2"], root=root)], tmp_path / "gen", committed.INFO)
    told = json.loads((tmp_path / "gen/small/manifest.json").read_text())["receipt"]
    assert told == {"name": "small", "number": None, "about": "Someone who needs little."}
    with pytest.raises(CodegenError, match=r", 888 fp8,.* aaa,.* small, .*vllm$"):
        root.receipt("no_such")


def test_a_receipt_that_is_wrong_stops_no_other(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    add(copy, "broken", BROKEN)
    add(copy, "child", "receipt: child\nabout: Of a broken one.\nextends: broken\n")
    add(copy, "twice", SMALL.replace("small", "twice").replace("families", "number: 2\nfamilies"))
    add(copy, ".hidden", "an editor's, half written: [")
    root = copy.tree()
    assert resolve("fp32_min", ["cpu-avx2"], root=root).instances
    assert capsys.readouterr().err == ""  # nobody has asked
    assert resolve("2", ["cpu-avx2"], "dtype=bf16", root=root).receipt == "flash"
    taken = "receipts/twice.yaml:3:9: number 2 is taken by flash"
    warning = f"codegen: warning: left out: {FAULT}\ncodegen: warning: left out: {taken}\n"
    assert capsys.readouterr().err == warning
    listed = listing.receipts(root, ["cpu-avx2"])
    assert "flash" in listed
    assert "broken" not in listed
    assert capsys.readouterr().err == ""  # once is enough
    for name in ("broken", "child"):
        with pytest.raises(CodegenError) as raised:
            resolve(name, ["cpu-avx2"], root=root)
        assert str(raised.value) == FAULT
    for everything in (check, lambda root: docs.pages(root, help_pages())):
        with pytest.raises(CodegenError) as raised:
            everything(copy.tree())
        assert str(raised.value) == f"{FAULT}\n{taken}"


def test_what_is_wrong_with_a_family_is_no_receipts_fault(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    copy.edit("kernels/attention/fmha_fwd/family.yaml", "source_by: [dtype,", "source_by: [dtyp,")
    with pytest.raises(
        CodegenError, match=r"^kernels/attention/fmha_fwd/family\.yaml:\d+:13: no axis 'dtyp'; nearest: dtype$"
    ):
        copy.tree().receipt("2")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "written", ["extends: flash", "extends:\n  flash", "'extends': \"flash\"", "extends : flash  # x"]
)
def test_extends_may_be_written_in_any_way(copy: Copy, written: str) -> None:
    add(copy, "small", f"receipt: small\nabout: Someone.\n{written}\nwithout: [fmha_batch_prefill]\n")
    families = {family.name for family in copy.tree().families_of(copy.tree().receipt("small"))}
    assert "fmha_fwd" in families
    assert "fmha_batch_prefill" not in families


def test_keep_under_extends_is_told_what_to_write(copy: Copy) -> None:
    """It would not narrow what is inherited, which is what people expect of it."""
    head = "receipt: small\nabout: Someone who needs little.\nextends: flash\n"
    add(copy, "small", f"{head}families:\n  fmha_fwd:\n    keep: dtype=bf16\n")
    with pytest.raises(CodegenError) as raised:
        copy.tree().receipt("small")
    assert str(raised.value) == (
        "receipts/small.yaml:6:11: fmha_fwd is inherited from flash: `only` narrows it, `add` widens it; "
        "to keep something else, write `without: [fmha_fwd]` as well"
    )
    add(copy, "small", f"{head}without: [fmha_fwd]\nfamilies:\n  fmha_fwd:\n    keep: dtype=fp8fp32\n")
    forward = resolve("small", ["cpu-avx2"], family="fmha_fwd", root=copy.tree()).instances
    assert {instance.signature["dtype"] for instance in forward} == {"fp8fp32"}


def test_check_names_the_receipts_that_have_changed(copy: Copy) -> None:
    docs.write(copy.tree(), str(copy.path / docs.FOLDER), help_pages())
    assert changed(copy.tree()) == []
    before = docs.counts(copy.tree())
    copy.edit("kernels/attention/fmha_fwd/family.yaml", "fp8fp32: [", "fp8fp32: [184x184, ")
    add(copy, "small", SMALL)
    (copy.path / "receipts/aiter_bwd_group.yaml").unlink()
    lines = [" ".join(line.split()) for text in changed(copy.tree()) for line in text.splitlines()]
    more = [name for name in ("ck_default", "ck_extended") if name in before]
    assert lines == [
        "since docs/reference/receipts.md was written, instances on one target have changed:",
        *(f"{name} {before[name]:,} -> {before[name] + 48:,}" for name in more),
        "small none -> 32",
        f"aiter_bwd_group {before['aiter_bwd_group']} -> none",
        "if that is meant: python -m codegen write",
    ]
