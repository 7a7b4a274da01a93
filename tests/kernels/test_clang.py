# SPDX-License-Identifier: MIT
"""Clang takes every engine of the CPU as GCC does, without a warning: syntax and templates, nothing is built."""

from __future__ import annotations

import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from codegen.schema.tree import tree
from tests.conftest import ROOT
from tests.programs import need

CLANG = "clang++-22"
RECEIPTS = "flash,fp8,gemm_default,gemm_linear,norm_default,moe_default"


def checked(command: str) -> str:
    """Clang's output for the source of a compile command; "" where it finds nothing."""
    words = shlex.split(command)
    at = words.index("-o")
    words[at : at + 2] = ["-Werror"]
    words[words.index("-c")] = "-fsyntax-only"
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode or done.stderr else ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", list(tree().of_host))
@pytest.mark.day
def test_engines(target: str) -> None:
    need(CLANG)
    if beside := tree().of_host[target].beside:  # which has what this one lacks
        target = f"{beside},{target}"
    options = [f"receipt={RECEIPTS}", f"cxx={CLANG}", f"target={target}", "variant=clang", "verbose=yes", "-n"]
    listed = subprocess.run(
        [sys.executable, "-m", "SCons", "-Q", *options], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    commands = [line for line in listed.splitlines() if line.startswith(CLANG) and "/cpu/" in line.partition(" -c ")[2]]
    assert len(commands) > 15
    with ThreadPoolExecutor(2) as pool:
        assert [said for said in pool.map(checked, commands) if said] == []
