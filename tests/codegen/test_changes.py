# SPDX-License-Identifier: MIT
"""`codegen diff REVISION`: what a change does to generated text, shown against a revision of git."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from codegen.cli import main
from codegen.out.changes import sample
from codegen.schema.tree import Tree
from tests.codegen.conftest import ROOT, Copy

PART = ("fp8", "--target", "cpu-generic", "--where", "dtype=fp8bf16 hdim_q=192 mode=batch sink=no softcap=no")
TEMPLATE = "kernels/runtime/rows.cpp.jinja"
RULE = "kernels/attention/fmha_fwd/family.yaml"


class Checkout:
    """A copy of the tree in a repository of its own, at its first commit."""

    def __init__(self, copy: Copy) -> None:
        self.copy, self.path = copy, copy.path
        shutil.copytree(ROOT / "codegen", self.path / "codegen", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("VERSION", "LICENSE"):
            shutil.copy(ROOT / name, self.path / name)
        self.git("init", "--quiet", "--initial-branch=trunk")
        self.commit("first")

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=test", "-c", "user.email=test@test", "-c", "core.hooksPath=/dev/null")
        subprocess.run(["git", *who, *words], cwd=self.path, check=True, capture_output=True)

    def commit(self, about: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--no-gpg-sign", "--message", about)

    def diff(self, *words: str, path: str = "") -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHONPATH": str(self.path), "PATH": path or os.environ["PATH"]}
        command = [sys.executable, "-m", "codegen", "diff", *words]
        done = subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, check=False, timeout=400
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def checkout(copy: Copy) -> Checkout:
    return Checkout(copy)


def changed(text: str) -> list[str]:
    """Lines of a diff that are of one side only."""
    return [line for line in text.splitlines() if line[:1] in "+-" and not line.startswith(("+++ ", "--- "))]


@pytest.mark.day
@pytest.mark.turns(0)
def test_a_change_of_a_template_and_nothing_else(checkout: Checkout) -> None:
    # A source of the runtime alters every hash, and nothing that is generated.
    checkout.copy.edit("kernels/runtime/names.cpp", "#include <stdlib.h>", "// Edited.\n#include <stdlib.h>")
    code, said, warned = checkout.diff("HEAD", *PART)
    assert (code, warned) == (0, "")
    assert re.fullmatch(r"the same since HEAD \([0-9a-f]{12}\): what is generated for fp8\n", said)
    text = (checkout.path / TEMPLATE).read_text()
    (checkout.path / TEMPLATE).write_text(f"// Edited.\n{text}")
    code, said, warned = checkout.diff("HEAD", *PART)
    assert (code, warned, changed(said)) == (1, "", ["+// Edited."])
    assert "+++ b/generated/fp8/rows/fmha_fwd/cpu-generic/fp8bf16_d192x128.cpp" in said
    checkout.commit("second")
    # Compares with HEAD without words, and some of every family; as an example of the help says, a branch and part of
    # a receipt.
    assert re.match(r"the same since HEAD .*norm_default, ", checkout.diff()[1])
    example = ("gemm_default", "--target", "cpu-avx2", "--where", "family=gemm dtype=bf16", "--stat")
    code, said, _ = checkout.diff("trunk~1", *example)
    assert code == 1
    assert re.search(r"\n (\d+) files changed, \1 insertions\(\+\)\n", said)
    for words in (("fp8", "--where", "dtpye=bf16"), ("--where", "dtpye=bf16")):
        assert checkout.diff("HEAD", *words)[::2] == (
            2,
            "codegen: where: no axis 'dtpye'; nearest: dtype\n  dtpye=bf16\n  ^\n",
        )
    # No comparison is made up of a revision whose generator is broken.
    (checkout.path / "codegen/__main__.py").write_text("raise RuntimeError('broken')\n")
    checkout.commit("third")
    shutil.copy(ROOT / "codegen/__main__.py", checkout.path / "codegen/__main__.py")
    code, said, warned = checkout.diff("HEAD", *PART)
    assert (code, said) == (2, "")
    assert re.match(r"codegen: the generator of HEAD failed: .*RuntimeError: broken$", warned, re.DOTALL)


@pytest.mark.day
def test_a_change_of_a_plan_is_rows_of_the_manifest_too(checkout: Checkout) -> None:
    """Rows that a rule takes away are gone in the table, the sources of rows and the manifest."""
    file = checkout.path / RULE
    rule = "rules:\n  - {name: no_window, when: dtype=fp8bf16 mask=window, says: there is no window}\n"
    file.write_text(file.read_text().replace("rules:\n", rule, 1))
    code, said, _ = checkout.diff("HEAD", *PART)
    assert code == 1
    lines = changed(said)
    names = {side: {line.split('"')[1] for line in lines if line.startswith(f'{side}["fmha_fwd_')} for side in "+-"}
    gone = names["-"] - names["+"]
    assert len(gone) == 3
    assert all("_window_" in name for name in gone), gone
    assert not names["+"] - names["-"]
    row = "+extern const Row fmha_fwd_cpu_generic_fp8bf16_d192x128_000000000000[3]"
    assert any(line.startswith(row) for line in lines)


@pytest.mark.day
def test_what_one_side_lacks_is_said(checkout: Checkout) -> None:
    (checkout.path / "receipts/fp32_min.yaml").rename(checkout.path / "receipts/fp32_small.yaml")
    new = checkout.path / "receipts/fp32_small.yaml"
    new.write_text(new.read_text().replace("fp32_min", "fp32_small"))
    code, said, warned = checkout.diff("HEAD", "fp32_small", "fp32_min", "--target", "cpu-generic")
    assert (code, said) == (1, "")
    assert warned == (
        "codegen: warning: receipt fp32_small is not compared: HEAD does not have it\n"
        "codegen: warning: receipt fp32_min is not in the working tree; HEAD has it\n"
    )
    # A value that the revision does not have: its generator's own sentence, and the exit code of an error.
    file = checkout.path / RULE
    text = file.read_text()
    (checkout.path / "receipts/fp32_small.yaml").unlink()
    checkout.git("checkout", "--", "receipts")
    assert text.count("values: [none, window]") == 1
    file.write_text(text.replace("values: [none, window]", "values: [none, window, sparse]"))
    code, said, warned = checkout.diff("HEAD", "fp8", *PART[1:3], "--where", "mask=sparse hdim_q=192")
    assert code == 2
    assert warned.startswith("codegen: warning: receipt fp8 is not compared: HEAD says: where: axis 'mask' ")


@pytest.mark.day
def test_what_git_cannot_answer(checkout: Checkout, tmp_path: pathlib.Path) -> None:
    nowhere = "codegen: git knows no revision 'nowhere', nor is it a receipt or a manifest\n"
    assert checkout.diff("nowhere", *PART) == (2, "", nowhere)
    assert checkout.diff("HEAD", *PART, path=str(tmp_path)) == (
        2,
        "",
        "codegen: diff compares with a revision of git, and there is no program git in PATH\n",
    )
    shutil.rmtree(checkout.path / ".git")
    code, said, warned = checkout.diff("HEAD", *PART)
    assert (code, said) == (2, "")
    sentence = f"codegen: diff compares with a revision of git, and {checkout.path} is no checkout: fatal: not a git "
    assert warned.startswith(sentence)
    checkout.git("init", "--quiet")
    assert checkout.diff()[2] == nowhere.replace("nowhere", "HEAD")
    (checkout.path / "codegen").rename(tmp_path / "codegen")
    checkout.commit("without a generator")
    (tmp_path / "codegen").rename(checkout.path / "codegen")
    said = "codegen: HEAD has no generator: there is no codegen/__main__.py in its tree\n"
    assert checkout.diff("HEAD", *PART) == (2, "", said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("flash",),
            "diff of receipts or manifests needs two, was flash; what changed in one since a revision: diff HEAD flash",
        ),
        (
            ("fp8", "flash", "2"),
            "diff of receipts or manifests needs two, was fp8 flash 2; "
            "what changed in one since a revision: diff HEAD fp8",
        ),
        (
            ("flash", "fp8", "--stat"),
            "diff --stat is of what changed since a revision, as HEAD, which comes first",
        ),
        (
            ("flash", "fp8", "--where", "hdim_q=64"),
            "diff --where is of what changed since a revision, as HEAD, which comes first",
        ),
        (("HEAD", "--names"), "diff --names is of two receipts or manifests: diff flash pytorch --names"),
        (
            ("HEAD", "fp8", "--target", "cuda-sm90a"),
            "diff since a revision takes targets of CPUs, was cuda-sm90a: kernels of its library are objects, "
            "which 'nvcc' makes",
        ),
    ],
)
def test_wrong_words(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *words]) == 2
    assert capsys.readouterr().err.startswith(f"codegen: {message}")


def test_the_sample_has_every_family_and_is_small(real: Tree) -> None:
    names = sample(real)
    listed = {family.name for name in names for family in real.families_of(real.receipt(name))}
    assert listed == set(real.families)
    for name in names:  # and none is there in vain
        others = {family.name for one in names if one != name for family in real.families_of(real.receipt(one))}
        assert {family.name for family in real.families_of(real.receipt(name))} - others
