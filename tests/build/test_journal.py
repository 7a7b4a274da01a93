# SPDX-License-Identifier: MIT
"""The journal of a build that was cut off, or runs, as others read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_support.journal import FILE, Journal


@pytest.mark.parametrize("signed", ["same", "other"])
def test_a_build_that_only_tells_leaves_another_builds_files(tmp_path: Path, signed: str) -> None:
    """`scons -n`, with the compiler and flags of that build or with others."""
    made = tmp_path / "a.o"
    made.write_text("object")
    Journal(str(tmp_path), False).add(str(made), "same")
    assert not (tmp_path / FILE).exists()
    running = Journal(str(tmp_path), True)
    running.add(str(made), "same")
    listed = (tmp_path / FILE).read_bytes()
    assert Journal(str(tmp_path), False).takes(str(made), signed) == (signed == "same")
    assert made.read_text() == "object"
    assert (tmp_path / FILE).read_bytes() == listed


def test_a_build_removes_what_is_of_other_flags(tmp_path: Path) -> None:
    made = tmp_path / "a.o"
    made.write_text("object")
    Journal(str(tmp_path), True).add(str(made), "same")
    assert not Journal(str(tmp_path), True).takes(str(made), "other")
    assert not made.exists()
