# SPDX-License-Identifier: MIT
"""The programs of docs/how-to/c-and-cpp.md, compiled as they stand there against an installed prefix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.consumers.conftest import ROOT, run
from tests.programs import need

PAGE = (ROOT / "docs/how-to/c-and-cpp.md").read_text()


def blocks(heading: str, language: str) -> list[str]:
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    assert section
    return re.findall(rf"^```{language}\n(.*?)^```$", section[1], re.M | re.S)


def carry_out(folder: Path, prefix: Path, heading: str, language: str) -> None:
    """Write the program under the name in its first line, run the shell lines there, compare what they print."""
    (program,), (commands,), (said,) = (blocks(heading, block) for block in (language, "sh", "text"))
    name = re.match(r"/[/*] (\w+\.\w+):", program)
    assert name
    (folder / name[1]).write_text(program)
    for cmake in blocks(heading, "cmake"):
        (folder / "CMakeLists.txt").write_text(cmake)
    commands = commands.replace("$PWD/build/try", str(prefix)).replace("-Wextra", "-Wextra -pedantic -Werror")
    assert run("sh", "-ec", commands, cwd=folder).endswith(said)


def test_c(installed: Path, tmp_path: Path) -> None:
    need("cc", "pkg-config")
    carry_out(tmp_path, installed, "C", "c")


def test_a_registry(installed: Path, tmp_path: Path) -> None:
    need("cc", "pkg-config")
    carry_out(tmp_path, installed, "Kernels of your own", "c")


@pytest.mark.needs("cmake", "ninja")
def test_cpp(installed: Path, tmp_path: Path) -> None:
    carry_out(tmp_path, installed, "C++", "cpp")
