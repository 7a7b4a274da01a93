# SPDX-License-Identifier: MIT
"""Symbols of a library; code of one instruction set can never stand in for another's (design decision 5)."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from codegen.schema.tree import tree
from tests.declared import functions
from tests.elf import left_to_the_loader

# Release and sanitize have the engines of other tests; debug holds two instruction sets, which is enough to collide.
TARGETS = {"release": "all", "debug": "cpu-avx2,cpu-avx512", "sanitize": "native"}


def nm(path: Path, *options: str) -> list[tuple[str, str]]:
    """(type letter, name) of every symbol."""
    said = subprocess.run(["nm", *options, str(path)], capture_output=True, text=True, check=True).stdout
    return [(line[17], line[19:].split("@")[0]) for line in said.splitlines() if line[17:18].strip()]


@pytest.mark.parametrize("mode", ["release", pytest.param("debug", marks=pytest.mark.turns(0)), "sanitize"])
def test_only_the_c_abi_is_exported(build_library, mode):
    library = build_library("fp32_min", targets=TARGETS[mode], mode=mode)
    exported = {name for _, name in nm(library, "-D", "--defined-only")}
    declared = functions(Path(__file__).resolve().parents[2], "fp32_min")
    assert len(declared) > 10
    assert exported == declared
    assert not left_to_the_loader(library)


@pytest.mark.parametrize("mode", ["release", pytest.param("debug", marks=pytest.mark.turns(0)), "sanitize"])
def test_engines_share_no_symbol(build_library, mode):
    """Each engine object shows its engine symbols and nothing else: nothing is left that a link could merge."""
    library = build_library("fp32_min", targets=TARGETS[mode], mode=mode)
    # The folder may hold joined objects of other receipts, which need more engines.
    families, seen = ("fmha_bwd_dq_dk_dv", "fmha_fwd"), set[str]()
    for target in json.loads(library.with_suffix(".json").read_text())["targets"]:
        if tree().target(target["name"]).beside:
            continue  # tiles have no fp32: tests/kernels/test_tiles.py
        word = target["name"].replace("-", "_")
        symbols = [f"tilekiln_{word}_{family}_qlanes" for family in families]
        key = hashlib.sha256(" ".join(symbols).encode()).hexdigest()[:8]
        engine = library.parents[1] / f"obj/engine/{target['name']}-{key}.o"
        shown = {name for letter, name in nm(engine, "--defined-only") if letter.isupper() or letter in "uvw"}
        assert shown == set(symbols)
        assert not shown & seen
        seen |= shown
        # A COMDAT group would be merged by its name, whatever its symbols are.
        groups = subprocess.run(["readelf", "-gW", str(engine)], capture_output=True, text=True, check=True).stdout
        assert "COMDAT" not in groups


def test_a_release_library_needs_only_the_system(build_library):
    library = build_library("fp32_min", targets=TARGETS["release"])
    said = subprocess.run(["readelf", "-dW", str(library)], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", said)
    assert {name.split(".so")[0] for name in needed} <= {
        "libstdc++",
        "libm",
        "libc",
        "libgcc_s",
        "libpthread",
        "ld-linux-x86-64",
    }
    assert "RPATH" not in said
    assert "RUNPATH" not in said
