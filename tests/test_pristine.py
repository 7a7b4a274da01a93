# SPDX-License-Identifier: MIT
"""Copies by hard links: what a test does to its own is not in the next one."""

from __future__ import annotations

from pathlib import Path

from tests.pristine import Pristine


def test_every_copy_is_as_the_first(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "a").mkdir()
        for name in ("a/one", "a/two", "three", "four"):
            (folder / name).write_text(name)

    pristine = Pristine(tmp_path, fill)
    for number in range(3):
        copy = tmp_path / str(number)
        pristine.copy(copy)
        files = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
        assert files == {name: name for name in ("a/one", "a/two", "three", "four")}
        assert (copy / "three").stat().st_mode & 0o777 != 0o600
        (copy / "a/one").write_text("ONE")  # in place, as long as before
        (copy / "three").chmod(0o600)
        (copy / "a/two").unlink()
        (copy / "four").write_text("longer than before")
        (copy / "new").write_text("")
    assert (tmp_path / "original/a/one").read_text() == "a/one"
