# SPDX-License-Identifier: MIT
"""A build system of somebody else's: twenty lines that know nothing but the JSON of `codegen sources`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.conftest import ROOT, run

PLAN = ("fp32_min", "--target", "cpu-generic", "--where", "family=fmha_fwd hdim_q=48")


def build(tree: Path) -> Path:
    """Builds the library from tilekiln-sources.json alone, as the how-to page says; its path."""
    said: dict[str, Any] = json.loads((tree / "tilekiln-sources.json").read_bytes())
    compiler = os.environ.get("CXX", "g++")
    common = [f"-std={said['standard']}", *(f"-I{path}" for path in said["include"])]
    common += said["flags_of_compiler"]["clang++" if "clang" in run(compiler, "--version") else "g++"]
    objects: list[str] = []
    for group in said["groups"]:
        command = [compiler, *common, *group["flags"], "-c"]
        made = [f"{source}.{group['name']}.o" for source in group["sources"]]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            commands = [[*command, source, "-o", out] for source, out in zip(group["sources"], made, strict=True)]
            list(pool.map(lambda words: run(*words, cwd=tree), commands))
        if group["keep"]:
            run(*said["join"], "-o", "partial.o", *made, cwd=tree)
            made = [f"{group['name']}.o"]
            run("objcopy", *(f"--keep-global-symbol={name}" for name in group["keep"]), "partial.o", made[0], cwd=tree)
        objects += made
    run(compiler, *said["link"], *objects, "-o", said["library"], cwd=tree)
    return tree / str(said["library"])


@pytest.mark.day
@pytest.mark.turns(0)
def test_the_description_is_enough_to_build(tmp_path: Path) -> None:
    run(sys.executable, "-m", "codegen", "sources", *PLAN, "--write", tmp_path / "tree", cwd=ROOT)
    library = ctypes.CDLL(str(build(tmp_path / "tree")))
    library.tilekiln_instance_name.restype = ctypes.c_char_p
    names = [
        library.tilekiln_instance_name(ctypes.c_int64(at)).decode() for at in range(library.tilekiln_instance_count())
    ]
    assert names == run(sys.executable, "-m", "codegen", "list", *PLAN, cwd=ROOT).splitlines()
