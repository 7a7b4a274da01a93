# SPDX-License-Identifier: MIT
"""tools/release.py in a repository of three files: what it writes, and what it refuses before it writes anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import release

CHANGELOG = "# Changelog\n\n## Unreleased (0.9.0)\n\n### Added\n\n* A thing.\n\n## 0.8.0 (2026-01-01)\n\n* Older.\n"
FILES = {"VERSION": "0.9.0\n", "CITATION.cff": "title: A\nversion: 0.9.0\n", "CHANGELOG.md": CHANGELOG}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@localhost")
    monkeypatch.setattr(release, "generated", lambda root: None)  # these files are none that codegen knows
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "begin"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def read(tree: Path) -> dict[str, str]:
    return {name: (tree / name).read_text() for name in FILES}


def log(tree: Path) -> list[str]:
    return release.git(tree, "log", "--format=%s %D").splitlines()


def test_a_dry_run_says_all_and_writes_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["0.10.0", "--dry-run"], tree) == 0
    said = capsys.readouterr().out
    assert "+0.10.0\n" in said
    assert "would run git tag -a v0.10.0 -m Tilekiln 0.10.0\n" in said
    assert read(tree) == FILES
    assert len(log(tree)) == 1


@pytest.mark.parametrize("version", ["0.9.0", "0.10.0"])
def test_a_release(tree: Path, version: str) -> None:
    release.release(tree, version, "2026-11-29", dry_run=False, sign=False)
    after = read(tree)
    assert after["VERSION"] == f"{version}\n"
    assert after["CITATION.cff"] == f"title: A\nversion: {version}\ndate-released: 2026-11-29\n"
    assert after["CHANGELOG.md"] == CHANGELOG.replace("Unreleased (0.9.0)", f"{version} (2026-11-29)")
    assert log(tree)[0].startswith(f"release: {version} ")
    assert f"tag: v{version}" in log(tree)[0]
    assert release.git(tree, "status", "--porcelain") == ""
    with pytest.raises(release.RefusedError, match=f"must be above {version}, the newest tag"):
        release.check(tree, version)


def test_what_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["0.9"], tree) == 1
    assert capsys.readouterr().err == "release.py: version was '0.9', must be three numbers, as 0.9.0\n"
    (tree / "VERSION").write_text("0.9.1\n")
    assert release.main(["0.9.0"], tree) == 1
    assert "changes that are not committed: commit or stash them\nM VERSION" in capsys.readouterr().err
    release.git(tree, "checkout", "VERSION")
    assert release.main(["0.2.0", "--dry-run"], tree) == 1
    assert "must be 0.9.0, which VERSION says, or above" in capsys.readouterr().err
    (tree / "CHANGELOG.md").write_text(CHANGELOG.replace("* A thing.\n", ""))
    release.git(tree, "commit", "-qam", "nothing new")
    assert release.main(["0.9.0"], tree) == 1
    assert 'has nothing under "## Unreleased"' in capsys.readouterr().err
    assert len(log(tree)) == 2


def test_generated_files_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # so that there is no codegen
    with pytest.raises(release.RefusedError, match="generated files are out of date: python -m codegen write"):
        release.generated(tmp_path)


def test_this_tree_has_what_it_changes() -> None:
    made = release.made(ROOT, "99.0.0", "2026-11-29")
    assert made["VERSION"] == "99.0.0\n"
    assert "\nversion: 99.0.0\n" in made["CITATION.cff"]
    newest = re.search(r"^## (.*)$", made["CHANGELOG.md"], re.MULTILINE)
    said = (ROOT / "VERSION").read_text().strip()  # the tree of a release has nothing that is not released
    assert newest is not None
    assert re.fullmatch(rf"99\.0\.0 \(2026-11-29\)|{re.escape(said)} \(20\d\d-\d\d-\d\d\)", newest[1])
