# SPDX-License-Identifier: MIT
"""tools/house.py: each count finds what is planted, ceilings hold, and only what became smaller is lowered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import house

PLANTED = {
    "files": ("docs/new.md", ""),
    "lines": ("README.md", "A line.\n"),
    "package-names": ("python/tilekiln/drawer.py", ""),
    "choosers": ("kernels/own.h", "static inline int64_t tile_cost(int64_t size, int64_t tile) {\n  return size;\n}\n"),
    "dispatcher": ("examples/dispatcher/loop.py", "print()\n"),
    "drawers": ("tools/gpu/other_cases.py", "DRAWN = 1\n"),
    "golden": ("tests/codegen/golden/deep/er.txt", "said\n"),
    "changelog": ("CHANGELOG.md", "* A line.\n"),
    "hip-builds": ("kernels/backends/hip/more.yaml", "a: 1\n"),
    "words": ("kernels/load.h", "// The copy engine loads it.\n"),
    "comments": (
        "kernels/norm/own.h",
        "int one();  // Of no account: it follows code.\n// Of rows.\n// The next line.\n// Of it.\n",
    ),
    "conditionals": ("kernels/norm/cuda/row.cu", "#if A\n#elif B\n#endif\n"),
    "long-lines": ("kernels/norm/cuda/long.cu", "// " + "a " * 60 + "\n"),
    "kernel-function": (
        "kernels/norm/cuda/rows.cu",
        "KERNEL void rows(\n    int n) {\n  run();\n" + "  run();\n" * 6 + "}\n",
    ),
    "python-function": ("tools/long.py", "class A:\n    def long(self):\n" + "        pass\n" * 9),
    "largest-file": ("kernels/large.h", "//\n" * 40),
    "kernels/room": ("kernels/room/a.h", "//\n" * 3),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one small file of each kind, and ceilings that it just meets."""
    declared = (ROOT / "tools/house.yaml").read_text()
    head, rest = declared.split("budgets:\n")
    _, rooms = rest.split("\n\n", 1)
    files = {
        "README.md": "Words.\n",
        "python/tilekiln/__init__.py": "",
        "tools/short.py": "def short():\n    return 1\n",
        "kernels/norm/cuda/few.cu": "KERNEL void few();\nint one() { return 1; }\nKERNEL void few() {\n}\n",
        "kernels/room/b.h": "//\n",
        "tools/house.yaml": f"{head}budgets:\n  kernels/room: 1\n\n{rooms}",
    }
    for name, text in files.items():
        _put(tmp_path / name, text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def _counted(root: Path) -> dict[str, int]:
    return house.measure(house.Tree(root, root / "tools/house.yaml"))


def test_every_count_has_a_plant() -> None:
    assert set(PLANTED) - {"kernels/room"} == set(house.COUNTS)


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_counted(tree: Path, name: str) -> None:
    before = _counted(tree)
    path, text = PLANTED[name]
    _put(tree / path, text)
    after = _counted(tree)
    sentences = house.grown(after, before)
    assert any(one.startswith(f"{name}: is {after[name]:,}, was at most {before[name]:,}. ") for one in sentences), (
        after
    )
    assert house.grown(after, after) == []


def test_a_function_goes_from_its_first_line_to_its_brace(tree: Path) -> None:
    _put(tree / "kernels/norm/cuda/rows.cu", PLANTED["kernel-function"][1])
    found = house.kernel_functions(house.Tree(tree, tree / "tools/house.yaml"))
    assert found == {"kernels/norm/cuda/few.cu:3": 2, "kernels/norm/cuda/rows.cu:1": 10}


def test_a_comment_that_goes_on_is_one(tree: Path) -> None:
    _put(tree / "kernels/norm/own.h", PLANTED["comments"][1])
    assert house.comments(house.Tree(tree, tree / "tools/house.yaml")) == {"kernels/norm/own.h": 1}


def test_only_smaller_counts_are_lowered_and_to_a_multiple_of_the_step() -> None:
    text = "counts:\n  files:  {at-most: 90, asked: 3, step: 10}\n  lines:  {at-most: 90}\n  words:  {at-most: 9}\n"
    most = {"files": 90, "lines": 90, "words": 9}
    counted = {"files": 71, "lines": 91, "words": 7}
    expected = text.replace("at-most: 90, asked", "at-most: 80, asked").replace("at-most: 9}", "at-most: 7}")
    assert house.lowered(text, counted, most) == expected


def test_what_is_released_does_not_count(tree: Path) -> None:
    _put(tree / "CHANGELOG.md", "## Unreleased (2.0.0)\n\n* New.\n\n## 1.0.0 (2026-11-30)\n\n* Old.\n")
    assert house.unreleased(house.Tree(tree, tree / "tools/house.yaml")) == {"CHANGELOG.md": 4}


def test_a_list_says_of_what_a_count_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--list", "choosers"]) == 0
    assert capsys.readouterr().out == "      1  include/tilekiln/choice/tile_cost.h\n"


def test_no_count_of_this_tree_grew(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main([]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert all(name in printed for name in house.COUNTS)
