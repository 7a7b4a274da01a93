# SPDX-License-Identifier: MIT
"""Every source says its licence, and tools/spdx.py puts the line where one lacks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codegen.emit.licence import LINE
from tools import spdx


def test_sources_of_the_tree() -> None:
    found = spdx.without()
    assert not found, f"without the line: {', '.join(found[:20])}: tools/dev python tools/spdx.py --write"


def test_what_it_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "include").mkdir()
    given = {
        "a.py": "#!/usr/bin/python3\nx = 1\n",
        "b.cpp": "int f();\n",
        "include/c.h": "int g();\n",
        "d.md": "# D\n",
    }
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    assert spdx.main([], tmp_path) == 1
    assert "b.cpp: has no line" in capsys.readouterr().out
    assert spdx.main(["--write"], tmp_path) == 0
    made = {name: (tmp_path / name).read_text() for name in given}
    assert made["a.py"] == f"#!/usr/bin/python3\n# {LINE}\nx = 1\n"
    assert made["b.cpp"] == f"// {LINE}\nint f();\n"
    assert made["include/c.h"] == f"/* {LINE} */\nint g();\n"
    assert made["d.md"] == given["d.md"]
    assert spdx.main(["--write"], tmp_path) == spdx.main([], tmp_path) == 0
    assert {name: (tmp_path / name).read_text() for name in given} == made
    assert spdx.main(["--wrote"], tmp_path) == 2
