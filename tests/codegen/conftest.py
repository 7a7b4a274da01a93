# SPDX-License-Identifier: MIT
"""A copy of the tree's data that a test may edit, and the command line as a function."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
import yaml

from codegen.emit.operators import written
from codegen.schema.tree import Tree, tree
from tests.pristine import Pristine

ROOT = pathlib.Path(__file__).resolve().parents[2]


def what_there_is(root: pathlib.Path) -> str:
    """Counts of a tree's YAML files, as `codegen check` prints them."""
    families = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in root.glob("kernels/**/family.yaml")]
    counts = [
        (len(list(root.glob("receipts/*.yaml"))), "receipts"),
        (len(list(root.glob("kernels/**/operator.yaml"))), "operators"),
        (len(families), "families"),
        (sum(len(family.get("rules", [])) for family in families), "rules"),
        (len(list(root.glob("kernels/targets/*.yaml"))), "targets"),
    ]
    return ", ".join(f"{count} {word if count != 1 else word.removesuffix('s')}" for count, word in counts)


class Copy(NamedTuple):
    path: pathlib.Path

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace the one place where `old` stands."""
        target = self.path / file
        text = target.read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        target.write_text(text.replace(old, new))

    def tree(self) -> Tree:
        """Loaded anew, as a new process would."""
        return Tree(str(self.path))


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return Pristine(tmp_path_factory.mktemp("pristine"), what_the_generator_reads)


@pytest.fixture
def copy(tmp_path: pathlib.Path, pristine: Pristine) -> Copy:
    pristine.copy(tmp_path / "tree")
    return Copy(tmp_path / "tree")


def what_the_generator_reads(root: pathlib.Path) -> None:
    shutil.copytree(ROOT / "receipts", root / "receipts")
    shutil.copytree(ROOT / "kernels", root / "kernels")
    shutil.copytree(ROOT / "include", root / "include")
    for proof in ("python/tilekiln/reference", "tests/python", "docs/reference/operators"):
        shutil.copytree(ROOT / proof, root / proof, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for made in written.of_tree(tree()):
        (root / made).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / made, root / made)


@pytest.fixture(scope="session")
def real() -> Tree:
    return tree()


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python -m codegen WORDS...` as a process of its own."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "codegen", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )

    return run
