# SPDX-License-Identifier: MIT
"""A library for targets of two backends, the host's and the paper device's, goes wherever others go."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from codegen.schema.tree import tree
from codegen.tell.verify import verify
from tests.conftest import ROOT, Scons, shared_objects

TARGETS = "cpu-generic,paper-generic"
WHERE = "dtype=fp32 or element=bytes4 or family=moe_sorting"  # the library of test_paper_device
OPTIONS = ("receipt=norm_default", f"target={TARGETS}", f"where={WHERE}")


@pytest.fixture(scope="module")
def library(build_library) -> Path:
    built: Path = build_library("norm_default", targets=TARGETS, where=WHERE)
    return built


def said_by_scons(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "SCons", "-Q", *OPTIONS, *arguments, *shared_objects()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_wheel_report_and_verify(library: Path, scons: Scons) -> None:
    scons(*OPTIONS, "wheel", "report")
    place = library.parents[1]
    [wheel] = (place / "wheel").glob("tilekiln_norm_default-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        [kernels] = [name for name in packed.namelist() if name.endswith(".so")]
        [about] = [name for name in packed.namelist() if name.endswith("METADATA")]
        assert packed.read(kernels) == library.read_bytes()
        assert "cpu-generic, paper-generic" in packed.read(about).decode()
    page = json.loads((place / "report/norm_default.json").read_text())
    assert page["targets"] == ["cpu-generic", "paper-generic"]
    text, well = verify(tree(), str(library))
    assert well, text
    assert "receipt norm_default, cpu-generic, paper-generic, where" in text


def test_installed_and_vendored(library: Path, scons: Scons, tmp_path: Path) -> None:
    scons(*OPTIONS, "install", f"prefix={tmp_path / 'prefix'}")
    assert (tmp_path / "prefix/lib" / library.name).read_bytes() == library.read_bytes()
    done = said_by_scons(f"vendor={tmp_path / 'vendored'}")
    assert done.returncode == 0, done.stderr
    listed = (tmp_path / "vendored/sources.mk").read_text()
    assert "kernels/backends/paper/backend.cpp" in listed
    assert (tmp_path / "vendored/kernels/backends/paper/backend.cpp").exists()


def test_the_hub_has_no_name_for_paper(library: Path) -> None:
    done = said_by_scons("hf-kernels")
    assert done.returncode == 2
    assert "Hugging Face's kernels has no variant for paper (`hub` of backend.yaml)" in done.stderr
