# SPDX-License-Identifier: MIT
"""`scons` of a plain `pip install scons`: what needs no more works, the rest goes on with tools/dev or says how."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
# A Python without site-packages: SCons and nothing else, as pip would install it.
BARE = [getattr(sys, "_base_executable", sys.executable), "-S", "-m", "SCons", "-Q"]


@pytest.fixture
def scons(tree, tmp_path, script):
    """scons(*arguments, packages=(...)) runs it with these packages and SCons; a tools/dev says what it was told."""
    (tree.root / "tools").mkdir()
    said = ['echo "tools/dev $*"', 'echo "in $PWD with PYTHON=$PYTHON"']
    script("dev", said).rename(tree.root / "tools/dev")

    def run(*arguments, packages=(), cwd=None, **environment):
        site = tmp_path / ("site-" + "-".join(packages))
        site.mkdir(exist_ok=True)
        for name in ("SCons", *packages):
            spec = importlib.util.find_spec(name)
            assert spec is not None
            place = Path(spec.origin)
            place = place.parent if place.name == "__init__.py" else place
            if not (site / place.name).exists():
                (site / place.name).symlink_to(place)
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "SCONSFLAGS")}
        variables |= {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environment}
        where = cwd or tree.root
        return subprocess.run(
            [*BARE, *arguments], cwd=where, env=variables, capture_output=True, text=True, check=False
        )

    return run


def test_help_and_wrong_words_need_nothing(scons):
    said = scons("-h")
    assert (said.returncode, said.stdout, said.stderr) == (0, (GOLDEN / "help.txt").read_text(), "")
    said = scons("mode=relase")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("tilekiln: mode=relase is not possible. Did you mean release?")


@pytest.mark.parametrize("arguments", [["receipt=flash"], ["receipt=list"], ["-n", "receipt=flash", "where=hdim_q=64"]])
def test_goes_on_with_tools_dev(scons, tree, arguments):
    said = scons(*arguments)
    assert said.returncode == 0
    more = [] if arguments == ["receipt=list"] else ["numpy"]
    lacks = ["msgspec", "jinja2", "pyyaml", *more]
    assert said.stderr == (
        f"tilekiln: {BARE[0]}, which runs this scons, lacks {', '.join(lacks)}: going on with tools/dev scons "
        f"(or: {BARE[0]} -m pip install {' '.join(lacks)})\n"
    )
    assert said.stdout.splitlines() == [
        f"tools/dev scons -Q {' '.join(arguments)}",
        f"in {tree.root} with PYTHON={BARE[0]}",
    ]


def test_from_another_folder(scons, tree, tmp_path):
    said = scons("-C", str(tree.root), "receipt=flash", cwd=tmp_path)
    assert f"tools/dev scons -Q -C {tree.root} receipt=flash\nin {tmp_path} with" in said.stdout


def test_says_what_to_install_where_that_cannot_help(scons, tree):
    said = scons("receipt=flash", TILEKILN_IN_TOOLS_DEV="1")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == (
        f"tilekiln: {BARE[0]}, which runs this scons, lacks msgspec, jinja2, pyyaml, numpy, although tools/dev made "
        f"its environment. Remove that: rm -rf {tree.root}/.venv\n"
    )
    (tree.root / "tools/dev").unlink()
    said = scons("receipt=flash")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.endswith(f"Install what is missing: {BARE[0]} -m pip install msgspec jinja2 pyyaml numpy\n")


GENERATOR = ("msgspec", "jinja2", "yaml", "markupsafe")


@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [
        (["build/generic-release/lib/libtilekiln_fp32_min.so"], ""),
        (["install", "prefix=/nowhere"], ""),
        (["default"], "numpy"),
        (["report"], "squarify"),
        (["wheel"], "numpy, wheel"),
        (["demo"], "numpy, ml-dtypes, rich"),
        (["test"], "numpy, pytest, pytest-xdist"),
    ],
)
def test_numpy_is_for_the_extension_alone(scons, arguments, lacks):
    said = scons("-n", "receipt=fp32_min", "target=cpu-generic", *arguments, packages=GENERATOR)
    assert said.returncode == 0, said.stderr
    if lacks:
        assert f"lacks {lacks}: going on with tools/dev scons" in said.stderr
        assert said.stdout.startswith("tools/dev scons -Q -n receipt=fp32_min")
    else:
        assert said.stderr == ""
        assert "link    build/generic-release/lib/libtilekiln_fp32_min.so" in said.stdout
        assert "python/binding" not in said.stdout
