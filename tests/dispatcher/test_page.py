# SPDX-License-Identifier: MIT
"""The program of docs/how-to/dispatcher.md, compiled and run as it stands there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT

PAGE = ROOT / "docs/how-to/dispatcher.md"


def test_page(build_library: Callable[..., Path], tmp_path: Path) -> None:
    text = PAGE.read_text()
    (program,), (said,) = (re.findall(rf"^```{word}\n(.*?)^```$", text, re.M | re.S) for word in ("cpp", "text"))
    (tmp_path / "basic.cpp").write_text(program)
    compiler = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include"]
    subprocess.run([*compiler, "basic.cpp", "-ldl", "-o", "basic"], cwd=tmp_path, check=True)
    library = build_library("flash")
    done = subprocess.run([tmp_path / "basic", library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said
