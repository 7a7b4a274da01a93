# SPDX-License-Identifier: MIT
"""The command line of tools/bench amx: what it cannot do it says before it builds or times anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench import amx


def test_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["forwards"], "PART: was 'forwards', must be of build, tests, products, parts, attention, backward, rows"),
        (["rows", "--library", str(tmp_path)], f"--library: was {tmp_path}, must be a folder with libraries"),
        (["rows", "--threads", "two"], "--threads: was 'two', must be counts from 1 on or all, as 1,8,all"),
    ):
        with pytest.raises(SystemExit):
            amx.main(words)
        assert says in capsys.readouterr().err


def test_its_files_are_there() -> None:
    assert [name for name in amx.FILES if not (amx.ROOT / f"tests/python/test_{name}.py").is_file()] == []
