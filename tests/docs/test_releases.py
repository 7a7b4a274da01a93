# SPDX-License-Identifier: MIT
"""Files that name the version or the steps of CI agree."""

from __future__ import annotations

import re

import yaml

from tests.conftest import ROOT

VERSION = (ROOT / "VERSION").read_text().strip()


def test_citation_and_changelog_have_the_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert VERSION in sections[0]


def test_the_workflow_runs_what_everyone_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = workflow["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["sudo --preserve-env=PATH bash .ci/run"]
