# SPDX-License-Identifier: MIT
"""Names of wheels: `tilekiln` at PyPI is another project's, which nothing here may install or be mixed with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_support import wheels
from codegen.schema.tree import tree
from tests.conftest import ROOT

LINE = re.compile(r"pip\\?[\"', ]* install\b[^`\n]*")
OURS = re.compile(r"(?<![\w./-])tilekiln(?![\w.]|-<)[-\w]*(\[|==|\b)")


def lines_of_pip() -> list[tuple[str, str]]:
    """(file, line) of every mention of `pip install` in pages, messages and programs."""
    command = ["git", "ls-files", "*.md", "*.py", "*.jinja", "*.yaml", "tools/dev", ".ci"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    kept = [name for name in names if not name.startswith("tests/") and name != "CHANGELOG.md"]
    return [(name, line) for name in kept for line in LINE.findall((ROOT / name).read_text(encoding="utf-8"))]


def test_no_line_of_pip_can_find_the_other_project() -> None:
    found = lines_of_pip()
    assert len(found) > 15
    ours = [(name, line) for name, line in found if OURS.search(line.partition("install")[2])]
    assert len(ours) > 1
    wrong = [one for one in ours if "--no-index" not in one[1] or "--find-links" not in one[1]]
    assert wrong == []
    assert [one for one in ours if re.search(r" \"?tilekiln(\[|\"|$| )", one[1])] == []


def test_names_and_lines_follow_the_one_declaration() -> None:
    names = wheels.NAMES
    receipts = [receipt.name for receipt in tree().sound_receipts]
    made = {names["FACADE"], names["SOURCES"], *map(names["of_receipt"], receipts)}
    assert "tilekiln" not in made
    assert len(made) == 2 + len(receipts)
    line = names["install_line"](names["FACADE"])
    assert line == "pip install --no-index --find-links WHEELS tilekiln-python"
    assert tuple(map(int, (ROOT / "VERSION").read_text().split("."))) > (0, 8, 4)  # the other project's last


def test_no_metadata_names_the_other_project() -> None:
    wheel = wheels.sources(str(ROOT), "9.8.7")  # those of test_wheels.py are built
    said = wheel.information()[f"{wheel.stem}.dist-info/METADATA"].decode()
    assert "Requires-Dist: tilekiln-python==9.8.7" in said
    assert not re.search(r"^(Name|Requires-Dist): tilekiln\b(?!-)", said, re.MULTILINE)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with ours, as pip leaves it."""
    (tmp_path / "tilekiln").symlink_to(ROOT / "python/tilekiln")
    (tmp_path / "tilekiln_python-0.9.0.dist-info").mkdir()
    (tmp_path / "tilekiln_flash-0.9.0.dist-info").mkdir()
    return tmp_path


def imported(site: Path, program: str) -> str:
    """The last line that a Python says which imports from the folder first."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{program}"],
        cwd=site, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stderr.strip().rpartition("\n")[2]


def test_ours_alone_is_imported(site: Path) -> None:
    assert imported(site, "import tilekiln") == ""


@pytest.mark.parametrize("beside", ["tilekiln-0.8.4.dist-info", "tilekiln-0.1.0.egg-info"])
def test_two_projects_in_one_folder_are_noticed(site: Path, beside: str) -> None:
    (site / beside).mkdir()
    said = imported(site, "import tilekiln")
    version = beside.partition("-")[2].rpartition(".")[0]
    place = site / "tilekiln"
    assert said.startswith(f"ImportError: {place} holds files of two projects: the distribution tilekiln {version},")
    again = "pip install --no-index --find-links WHEELS tilekiln-python"
    assert said.endswith(f"pip uninstall -y tilekiln tilekiln-python && {again}")


def test_the_other_projects_init_over_ours_is_noticed(tmp_path: Path) -> None:
    """Installed later, its __init__ has taken the place of ours, and the rest of ours is there."""
    package = tmp_path / "tilekiln"
    package.mkdir()
    for path in (ROOT / "python/tilekiln").iterdir():
        if path.name != "__init__.py":
            (package / path.name).symlink_to(path)
    (package / "__init__.py").touch()
    (tmp_path / "tilekiln-0.8.4.dist-info").mkdir()
    assert imported(tmp_path, "import tilekiln.api.library").startswith("ImportError: ")
    assert "holds files of two projects" in imported(tmp_path, "import tilekiln.api.library")
