# SPDX-License-Identifier: MIT
"""The Dockerfile and the workflows by their linters, and what the Dockerfile runs, in a clean copy of the tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.conftest import copy_sources
from tests.build.test_wheels import repacked
from tests.conftest import PYTHON, ROOT, shared_objects

DOCKERFILE = ROOT / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of each line, joined where it goes on."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word, re.sub(r"\s+", " ", rest)) for word, rest in found]


@pytest.mark.needs("hadolint", "zizmor")
def test_linters() -> None:
    for command in (["hadolint", DOCKERFILE], ["zizmor", "--offline", "--quiet", ROOT / ".github"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.day
@pytest.mark.turns(0)
def test_its_lines(tmp_path: Path) -> None:
    """Debian's packages are those of CI, and pip's are repacked of this environment: no container is needed."""
    tree = copy_sources(tmp_path / "tilekiln")
    for name in ("tools", "requirements"):
        (tree.root / name).symlink_to(ROOT / name)
    place = tmp_path / "pip"
    place.mkdir()
    for name in ("numpy", "ml-dtypes"):
        repacked(name, place)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {
        "RECEIPT": "fp32_min",
        "TARGET": f"native {' '.join(shared_objects())}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(place),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    lines = [rest for word, rest in instructions() if word == "RUN"]
    installs, packs = [line for line in lines if "apt-get" in line], [line for line in lines if "apt-get" not in line]
    assert len(installs) == len(packs) == 2
    packages = re.findall(r"--no-install-recommends (.*?) &&", installs[0])[0].split()
    assert {"g++", "python3", "python3-venv", "python3-dev"} <= set(packages)
    for line in packs:
        line = line.replace("tools/dev --with packaging ", f"{PYTHON} -m ").replace("-m scons", "-m SCons")
        for folder in ("/opt/tilekiln", "/wheels"):
            line = re.sub(rf"(?<![\w/]){folder}\b", str(tmp_path / folder[1:].replace("/", "-")), line)
        done = subprocess.run(
            line, shell=True, cwd=tree.root, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    command = next(rest for word, rest in instructions() if word == "CMD")
    program, *words = re.findall(r'"(.*?)"', command)
    said = subprocess.run(
        [tmp_path / "opt-tilekiln/bin" / program, *words], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PATH": environment["PATH"]},
    ).stdout  # fmt: skip
    assert "receipt: fp32_min" in said
