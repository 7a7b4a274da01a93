# SPDX-License-Identifier: MIT
"""A C program by pkg-config and a C++ program by find_package, over `scons install`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.consumers.conftest import run
from tests.programs import need

HERE = Path(__file__).parent


@pytest.mark.quick(1)
@pytest.mark.parametrize("prefix", ["as it is", "moved into a path with blanks"])
def test_a_c_program_by_pkg_config(installed: Path, tmp_path: Path, prefix: str) -> None:
    """It asks the loader for the library of the ABI that it was compiled for, by its number."""
    need("make", "pkg-config")
    if prefix != "as it is":
        installed = Path(shutil.copytree(installed, tmp_path / prefix, symlinks=True))
    shutil.copytree(HERE / "c_pkg_config", tmp_path / "c")
    run("make", cwd=tmp_path / "c", PKG_CONFIG_PATH=str(installed / "lib/pkgconfig"))
    assert (
        run(tmp_path / "c/attention") == f"fp32_min {(HERE.parents[1] / 'VERSION').read_text().strip()}, 10 instances\n"
    )
    assert "[libtilekiln_fp32_min.so.2]" in run("readelf", "-dW", tmp_path / "c/attention")


def test_pkg_config_says_what_is_there(installed: Path) -> None:
    need("pkg-config")

    def ask(*words: str) -> str:
        return run("pkg-config", *words, PKG_CONFIG_PATH=str(installed / "lib/pkgconfig")).strip()

    assert ask("--modversion", "tilekiln-flash") == (HERE.parents[1] / "VERSION").read_text().strip()
    assert ask("--variable=receipt", "tilekiln-flash") == "flash"
    manifest = Path(ask("--variable=manifest", "tilekiln-flash"))
    assert manifest.resolve() == installed / "lib/libtilekiln_flash.json"


def test_two_receipts_by_pkg_config(installed: Path, tmp_path: Path) -> None:
    """Functions of both have the same names: a program that is compiled for both is told."""
    need("make", "pkg-config")
    shutil.copytree(HERE / "c_pkg_config", tmp_path / "c")
    both = ("make", "PACKAGE=tilekiln-fp32_min tilekiln-flash")
    where = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    said = subprocess.run(both, cwd=tmp_path / "c", env=where, capture_output=True, text=True, check=False)
    assert said.returncode != 0  # by -Werror
    assert '"TILEKILN_ONE_RECEIPT_A_PROGRAM_OTHERS_BY_DLOPEN" redefined' in said.stderr


def configure(build: Path, prefix: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-G", "Ninja", "-S", str(HERE / "cpp_cmake"), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, env={**os.environ})


@pytest.mark.needs("cmake", "ninja")
def test_a_cpp_program_by_find_package_from_a_prefix_that_has_moved(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed, tmp_path / "moved")
    said = configure(tmp_path / "build", tmp_path / "moved")
    assert said.returncode == 0, said.stderr
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build/attention").count("\n") == 10
    needed = run("ldd", tmp_path / "build/attention")
    assert f"{tmp_path}/moved/lib/libtilekiln_fp32_min.so" in needed


@pytest.mark.needs("cmake", "ninja")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-DRECEIPTS=aiter"], "receipt aiter is not installed here; there are: flash, fp32_min."),
        (
            ["-DRECEIPTS=fp32_min;flash"],
            'The INTERFACE_TILEKILN_ONE_RECEIPT_A_PROGRAM_OTHERS_BY_DLOPEN property of "tilekiln::flash" does',
        ),
    ],
)
def test_what_cmake_refuses(installed: Path, tmp_path: Path, words: list[str], message: str) -> None:
    said = configure(tmp_path / "build", installed, *words)
    assert said.returncode != 0
    assert message in " ".join(said.stderr.split())
    told = "receipts fp32_min, flash: a target links one of them, as their functions have the same names;"
    assert (told in said.stdout) == ("-DRECEIPTS=fp32_min;flash" in words)


@pytest.mark.needs("cmake", "ninja")
@pytest.mark.parametrize(
    ("asked", "found"), [("0.9", True), ("0.9.0 EXACT", True), ("0.10", False), ("0.8.4", False), ("1.0", False)]
)
def test_versions(installed: Path, tmp_path: Path, asked: str, found: bool) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(host LANGUAGES CXX)\n"
        f"find_package(tilekiln {asked} QUIET)\n"
        'message(STATUS "found ${tilekiln_FOUND} ${tilekiln_flash_MANIFEST}")\n'
    )
    said = run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    assert f"found {1 if found else 0}" in said.replace("TRUE", "1")
    # Components left out: every receipt that is there.
    assert (f"{installed}/lib/libtilekiln_flash.json" in said) == found


@pytest.mark.needs("cmake", "ninja")
@pytest.mark.parametrize("project", ["project(host LANGUAGES NONE)", ""])
def test_before_a_language_is_enabled(installed: Path, tmp_path: Path, project: str) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\n{project}\nfind_package(tilekiln REQUIRED)\n"
        "project(host LANGUAGES CXX)\n"
    )
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
